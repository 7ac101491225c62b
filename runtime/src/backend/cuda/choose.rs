//! The choice of a token on the card: of all logits only those that decide come to the host.

use super::driver::{Context, CudaError, DeviceMemory, Pinned};
use super::kernels::{Args, groups};
use super::loaded::Loaded;
use super::steps::Runner;
use crate::Result;
use crate::sample::Deciding;
use std::sync::Arc;

/// Logits of a group of `gantry_top_k`, and the most that it keeps of them.
const GROUP: usize = 1024;
const MOST: usize = 256;

/// Bytes of a key: a logit and its token.
const KEY: usize = 8;

/// What the kernels call a logit that is no number.
const BROKEN: u64 = u64::MAX;

/// Where choices are made.
pub(super) struct Choice {
    /// Keys of all groups, and those of the groups after that, in turn.
    keys: DeviceMemory,
    /// On their way.
    pinned: Pinned,
}

/// Bytes of keys for so many logits.
pub(super) fn bytes(vocab: usize) -> u64 {
    let first = (groups(vocab, GROUP) * MOST * KEY) as u64;
    first + first.div_ceil(4) + 256 + (MOST * KEY) as u64
}

/// What can be chosen on a card; else all logits are brought.
pub(super) fn on_card(deciding: Deciding) -> Deciding {
    match deciding {
        Deciding::Best(most) if most == 0 || most > MOST => Deciding::All,
        deciding => deciding,
    }
}

impl Choice {
    pub(super) fn new(context: &Arc<Context>, vocab: usize) -> Result<Self, CudaError> {
        let what = "what a token is chosen from";
        let keys = DeviceMemory::new(context, bytes(vocab), what)?;
        Ok(Self { keys, pinned: Pinned::new(context, MOST * KEY, what)? })
    }

    /// Where the keys of one round are, of several in turn: the first has the most.
    fn round(&self, turn: usize, vocab: usize) -> u64 {
        let first = ((groups(vocab, GROUP) * MOST * KEY) as u64).next_multiple_of(256);
        self.keys.address() + if turn.is_multiple_of(2) { 0 } else { first }
    }

    /// Launches the choice from the first row of logits.
    pub(super) fn give(&self, runner: &Runner, loaded: &Loaded, deciding: Deciding) -> Result<()> {
        let (logits, vocab) = (runner.buffers.at(loaded.program.logits), loaded.program.vocab);
        match deciding {
            Deciding::All => Ok(()),
            Deciding::Highest => {
                let args = Args::at(&[logits, self.keys.address()]).long(&[vocab]).int(&[vocab]);
                runner.launch(loaded, "gantry_argmax", [1, 1, 1], &args)
            }
            Deciding::Best(most) => {
                let mut from = [logits, 0];
                let mut count = vocab;
                for turn in 0.. {
                    let to = self.round(turn, vocab);
                    let n = groups(count, GROUP);
                    let args = Args::at(&[from[0], from[1], to]).int(&[count, most]);
                    runner.launch(loaded, "gantry_top_k", [n, 1, 1], &args)?;
                    if n <= 1 {
                        break;
                    }
                    (from, count) = ([0, to], n * most);
                }
                Ok(())
            }
        }
    }

    /// Brings what was chosen, the best first; `None` where a logit is no number or none is possible.
    pub(super) fn bring(
        &mut self,
        runner: &Runner,
        vocab: usize,
        deciding: Deciding,
    ) -> Result<Option<Vec<(u32, f32)>>, CudaError> {
        let Deciding::Best(most) = deciding else {
            let token = &mut self.pinned[..4];
            self.keys.read(0, token, &runner.stream)?;
            let token = u32::from_le_bytes([token[0], token[1], token[2], token[3]]);
            return Ok((token as usize).lt(&vocab).then(|| vec![(token, 0.0)]));
        };
        // The last round is the one of a single group.
        let (mut count, mut last) = (groups(vocab, GROUP), 0);
        while count > 1 {
            (count, last) = (groups(count * most, GROUP), last + 1);
        }
        let at = self.round(last, vocab) - self.keys.address();
        let keys = &mut self.pinned[..most * KEY];
        self.keys.read(at, keys, &runner.stream)?;
        let keys = keys.as_chunks().0.iter().map(|key| u64::from_le_bytes(*key)).take_while(|key| *key != 0);
        let mut best = Vec::with_capacity(most);
        for key in keys {
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
    fn rounds_do_not_overlap_and_fit() {
        for vocab in [1, 1023, 1024, 1025, 32_000, 151_936, 1_000_000] {
            for most in [1, 40, MOST] {
                let first = ((groups(vocab, GROUP) * MOST * KEY) as u64).next_multiple_of(256);
                let mut count = groups(vocab, GROUP);
                for turn in 0.. {
                    let (at, end) = if turn % 2 == 0 { (0, first) } else { (first, bytes(vocab)) };
                    assert!(at + (count * most * KEY) as u64 <= end, "{vocab}, {most}, round {turn}");
                    if count == 1 {
                        break;
                    }
                    count = groups(count * most, GROUP);
                }
            }
        }
    }
}
