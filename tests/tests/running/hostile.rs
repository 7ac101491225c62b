//! Saved sessions that were damaged, cut, or made by someone else.

use super::models::{Made, Random, bits};
use gantry_runtime::{ModelOptions, Session};

fn options() -> ModelOptions {
    ModelOptions { context: Some(64), batch: 8, window: 4, ..ModelOptions::default() }
}

/// `session` holds some text; `saved` is refused and what it held is still there.
struct Victim {
    session: Session,
    unharmed: Vec<u8>,
}

impl Victim {
    fn new(mut session: Session) -> Self {
        session.prefill(&[8, 9, 10]).expect("logits");
        let unharmed = session.save().unwrap();
        Self { session, unharmed }
    }

    fn refuses(&mut self, saved: &[u8], what: &str) {
        assert!(self.session.restore(saved).is_err(), "{what} was taken");
        assert_eq!(self.session.position(), 3, "{what}");
        assert!(!self.session.logits().is_empty(), "{what}");
    }

    /// Nothing changed.
    fn unharmed(mut self, what: &str) {
        assert!(self.session.save().unwrap() == self.unharmed, "{what}");
        let mut fresh = self.session.model().session().expect("a session");
        let want = bits(fresh.prefill(&[8, 9, 10, 11]).expect("logits"));
        assert!(bits(self.session.decode(11).expect("logits")) == want, "{what}");
    }
}

#[test]
fn every_cut_and_every_flipped_byte_is_refused() {
    for preset in ["llama-tiny", "qwen4exp-mtp-tiny", "deepseek4-tiny"] {
        let model = Made::new(preset, &[]).load(&options());
        let mut session = model.session().expect("a session");
        session.prefill(&Random::new(1).tokens(2)).expect("logits");
        let saved = session.save().unwrap();
        let mut victim = Victim::new(model.session().expect("a session"));
        // Every one of a small session; the heads, the end and every so many of a large one.
        let stride = saved.len() / 6000 + 1;
        let places = || (0..saved.len()).filter(|i| i % stride == 0 || *i < 300 || i + 100 > saved.len());
        println!("{preset}: {} bytes, {} places", saved.len(), places().count());
        for i in places() {
            victim.refuses(&saved[..i], &format!("{preset}: cut to {i} of {}", saved.len()));
            let mut bad = saved.clone();
            bad[i] ^= 1 << (i % 8);
            victim.refuses(&bad, &format!("{preset}: byte {i} of {}", saved.len()));
        }
        victim.refuses(&[&saved[..], &[0]].concat(), "a byte more");
        victim.unharmed(preset);
    }
}

#[test]
fn a_session_of_another_container_is_refused() {
    // The same weights, but for one key: another container all the same.
    let [a, b] = ["context_length=1024", "context_length=1023"].map(|set| Made::new("llama-tiny", &[set]));
    let (a, b) = (a.load(&options()), b.load(&options()));
    let mut victim = Victim::new(b.session().expect("a session"));
    let mut session = a.session().expect("a session");
    session.prefill(&[5, 6]).expect("logits");
    victim.refuses(&session.save().unwrap(), "of another container");
    victim.unharmed("llama");
}

/// Whoever makes a session with a sound hash cannot make it a fault: it is refused or goes on.
#[test]
fn a_forged_session_is_refused_or_runs() {
    const ROOT: usize = 32;
    for preset in ["llama-tiny", "qwen4exp-mtp-tiny", "deepseek4-tiny", "qwen3next-tiny"] {
        let model = Made::new(preset, &[]).load(&options());
        let mut session = model.session().expect("a session");
        session.prefill(&Random::new(3).tokens(37)).expect("logits");
        session.prefill(&Random::new(4).tokens(3)).expect("logits");
        let saved = session.save().unwrap();
        let mut random = Random::new(6);
        // Numbers of 8 bytes: counts and positions, wherever they are.
        let mut heads: Vec<usize> = (ROOT..saved.len() - 40)
            .filter(|&i| {
                let n = u64::from_le_bytes(saved[i..i + 8].try_into().expect("8 bytes"));
                (1..100_000).contains(&n)
            })
            .collect();
        heads.truncate(400);
        let (mut refused, mut ran) = (0, 0);
        for at in heads {
            for change in [-1i64, 1, -3, 8, -8, 40, i64::MAX / 2] {
                let mut forged = saved.clone();
                let n = u64::from_le_bytes(forged[at..at + 8].try_into().expect("8 bytes"));
                forged[at..at + 8].copy_from_slice(&n.wrapping_add_signed(change).to_le_bytes());
                let end = forged.len() - 32;
                let hash = gantry_formats::hash::hash(&forged[ROOT..end]);
                forged[end..].copy_from_slice(&hash);
                let mut other = model.session().expect("a session");
                match other.restore(&forged) {
                    Err(_) => refused += 1,
                    Ok(()) => {
                        ran += 1;
                        for n in [1, 2, 9] {
                            let tokens = random.tokens(n);
                            let _ = other.rewind(other.position().saturating_sub(1));
                            if n <= other.left() {
                                other.prefill(&tokens).expect("logits");
                            }
                        }
                    }
                }
            }
        }
        println!("{preset}: {refused} refused, {ran} ran");
        assert!(refused > 0, "{preset}");
    }
}
