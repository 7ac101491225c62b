//! The choice of a token on the card: of all logits only those that decide come to the host.

use super::driver::{CardError, Context, DeviceMemory, Pinned};
use super::kernels::{Args, groups};
use super::loaded::Loaded;
use super::steps::Runner;
use crate::Result;
use crate::sample::Deciding;
use std::sync::Arc;

/// Logits of a group of `gantry_top_k`, and the most that it keeps of them; those of a group of `gantry_argmax`.
const TOP: usize = 1024;
const MOST: usize = 256;
const HIGHEST: usize = 4096;

/// Bytes of a key: a logit and its token.
const KEY: usize = 8;

/// What the kernels call a logit that is no number.
const BROKEN: u64 = u64::MAX;

/// Where choices are made.
pub(super) struct Choice {
    /// Keys of all groups, and those of the groups after that, in turn.
    keys: DeviceMemory,
    /// What came of the last round: the card writes it here by itself.
    found: Pinned,
}

/// Bytes of keys for so many logits: of a first round and of a second.
fn halves(vocab: usize) -> [u64; 2] {
    let first = groups(vocab, TOP) * MOST;
    let second = groups(first, TOP) * MOST;
    [first, second].map(|keys| ((keys * KEY) as u64).next_multiple_of(256))
}

/// Bytes on the card for so many logits.
pub(super) fn bytes(vocab: usize) -> u64 {
    halves(vocab).iter().sum()
}

/// What can be chosen on a card; else all logits are brought.
pub(super) fn on_card(deciding: Deciding) -> Deciding {
    match deciding {
        Deciding::Best(most) if most == 0 || most > MOST => Deciding::All,
        deciding => deciding,
    }
}

impl Choice {
    pub(super) fn new(context: &Arc<Context>, vocab: usize) -> Result<Self, CardError> {
        let what = "what a token is chosen from";
        let keys = DeviceMemory::new(context, bytes(vocab), what)?;
        Ok(Self { keys, found: Pinned::new(context, MOST * KEY, what)? })
    }

    /// Launches the choice from the first row of logits.
    pub(super) fn give(&self, runner: &Runner, loaded: &Loaded, deciding: Deciding) -> Result<()> {
        let (logits, vocab) = (runner.buffers.at(loaded.program.logits), loaded.program.vocab);
        let (kernel, of, most) = match deciding {
            Deciding::All => return Ok(()),
            Deciding::Highest => ("gantry_argmax", HIGHEST, 1),
            Deciding::Best(most) => ("gantry_top_k", TOP, most),
        };
        let in_turn = [self.keys.address(), self.keys.address() + halves(vocab)[0]];
        let (mut from, mut count) = ([logits, 0], vocab);
        for turn in 0.. {
            let n = groups(count, of);
            let to = if n <= 1 { self.found.address() } else { in_turn[turn % 2] };
            let args = Args::at(&[from[0], from[1], to]).int(&[count]);
            let args = if deciding == Deciding::Highest { args } else { args.int(&[most]) };
            runner.launch(loaded, kernel, [n, 1, 1], &args)?;
            if n <= 1 {
                break;
            }
            (from, count) = ([0, to], n * most);
        }
        Ok(())
    }

    /// Waits for what was chosen, the best first; `None` where a logit is no number or none is possible.
    pub(super) fn take(
        &self,
        runner: &Runner,
        vocab: usize,
        deciding: Deciding,
    ) -> Result<Option<Vec<(u32, f32)>>, CardError> {
        runner.stream.synchronize()?;
        let most = match deciding {
            Deciding::Best(most) => most.min(MOST),
            _ => 1,
        };
        let keys = self.found[..most * KEY].as_chunks().0.iter().map(|key| u64::from_le_bytes(*key));
        let mut best = Vec::with_capacity(most);
        for key in keys.take_while(|key| *key != 0) {
            let (token, logit) = decoded(key);
            if key == BROKEN || token as usize >= vocab {
                return Ok(None);
            }
            best.push((token, logit));
        }
        Ok(Some(best).filter(|best| !best.is_empty()))
    }
}

/// The token and the logit that a key stands for.
fn decoded(key: u64) -> (u32, f32) {
    let order = (key >> 32) as u32;
    let bits = if order >> 31 == 1 { order & 0x7fff_ffff } else { !order };
    (u32::MAX - key as u32, f32::from_bits(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `top_key` of `kernels/device/sample.c`.
    fn key(logit: f32, token: u32) -> u64 {
        let bits = logit.to_bits();
        let order = if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 };
        u64::from(order) << 32 | u64::from(u32::MAX - token)
    }

    #[test]
    fn keys_order_logits_and_come_back() {
        let logits = [f32::MAX, 1.5, 1e-42, 0.0, -0.0, -1e-42, -2.0, f32::MIN];
        let keys: Vec<u64> = logits.iter().flat_map(|x| [key(*x, 3), key(*x, 151_935)]).collect();
        assert!(keys.windows(2).all(|w| w[0] > w[1]), "{keys:x?}");
        for (i, key) in keys.iter().enumerate() {
            let (token, logit) = decoded(*key);
            assert_eq!((token, logit.to_bits()), ([3, 151_935][i % 2], logits[i / 2].to_bits()));
        }
    }

    #[test]
    fn rounds_fit() {
        for vocab in [1, 1023, 1024, 1025, 32_000, 151_936, 1_000_000] {
            for (of, most) in [(TOP, 1), (TOP, 40), (TOP, MOST), (HIGHEST, 1)] {
                let mut count = groups(vocab, of);
                for turn in 0.. {
                    if count == 1 {
                        break;
                    }
                    assert!(
                        (count * most * KEY) as u64 <= halves(vocab)[turn % 2],
                        "{vocab}, {most}, round {turn}"
                    );
                    count = groups(count * most, of);
                }
            }
        }
    }
}
