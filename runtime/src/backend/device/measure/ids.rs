//! Ids that steps read: experts of tokens, chosen positions. A model computes them; here they are made up.

use crate::model::program::{BufferId, Program, Routing, Selection, Step};
use std::collections::{BTreeMap, BTreeSet};

/// What a buffer of ids holds.
#[derive(Clone, Copy)]
enum Meaning {
    Experts(Routing),
    Chosen(Selection),
}

/// The buffers of ids of a model.
pub(super) struct Ids(BTreeMap<usize, Meaning>);

impl Ids {
    pub(super) fn of(program: &Program) -> Self {
        let known = program.steps().filter_map(|step| match step {
            Step::Route { routing, ids, .. } => Some((ids.0, Meaning::Experts(*routing))),
            Step::Select { selection, ids, .. } => Some((ids.0, Meaning::Chosen(*selection))),
            _ => None,
        });
        Self(known.collect())
    }

    /// Each buffer with ids for `n` tokens, the last of them at position `length` - 1.
    pub(super) fn made_up(&self, program: &Program, n: usize, length: usize) -> Vec<(BufferId, Vec<u32>)> {
        let each = self.0.iter().map(|(&id, meaning)| {
            let width = program.values(BufferId(id));
            let ids = (0..n).flat_map(|t| match meaning {
                Meaning::Experts(routing) => experts(routing, t),
                Meaning::Chosen(selection) => chosen(selection, width, length),
            });
            (BufferId(id), ids.collect())
        });
        each.collect()
    }
}

/// Different experts of a token, not those of its neighbours.
fn experts(routing: &Routing, token: usize) -> Vec<u32> {
    let count = routing.experts.max(1);
    let first = token.wrapping_mul(0x9e37_79b9) >> 7;
    // The step has no divisor in common with the count, so that nothing comes twice.
    let step = (count * 5 / 8..).find(|s| gcd(*s, count) == 1).unwrap_or(1);
    (0..routing.used).map(|j| ((first + j * step) % count) as u32).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Positions or entries, evenly spread and ascending.
fn chosen(selection: &Selection, width: usize, length: usize) -> Vec<u32> {
    let all = if selection.expand { length } else { length / selection.ratio.max(1) };
    (0..width)
        .map(|i| {
            if width <= all {
                (i * all / width) as u32
            } else if i < all {
                i as u32
            } else {
                u32::MAX
            }
        })
        .collect()
}

/// How many different ids there are.
pub(super) fn distinct(ids: &[u32]) -> usize {
    ids.iter().collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::program::Gating;

    #[test]
    fn a_token_has_different_experts() {
        for experts in [1, 2, 7, 8, 60, 128, 512] {
            let used = experts.min(10);
            let routing = Routing {
                experts,
                used,
                gating: Gating::Softmax,
                groups: 1,
                groups_used: 1,
                normalize: false,
                scale: 1.0,
            };
            for token in 0..100 {
                let ids = super::experts(&routing, token);
                assert_eq!((ids.len(), distinct(&ids)), (used, used), "{ids:?} of {experts}");
                assert!(ids.iter().all(|id| (*id as usize) < experts));
            }
        }
    }

    #[test]
    fn chosen_positions_exist_and_ascend() {
        let of = |expand| Selection { heads: 1, len: 8, top: 6, ratio: 4, expand };
        assert_eq!(chosen(&of(false), 6, 100), [0, 4, 8, 12, 16, 20]);
        assert_eq!(chosen(&of(false), 6, 12), [0, 1, 2, u32::MAX, u32::MAX, u32::MAX]);
        let positions = chosen(&of(true), 27, 100);
        assert!(positions.windows(2).all(|w| w[0] < w[1]) && positions[26] < 100, "{positions:?}");
    }
}
