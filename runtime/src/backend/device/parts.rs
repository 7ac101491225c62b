//! Lists of steps in parts, between which the host gathers rows of n-gram tables, and what they are recorded as.

use super::driver::Graph;
use super::plan::Op;
use crate::model::program::Step;
use crate::sample::Deciding;

/// How a list of steps goes to the card.
pub(super) struct Planned {
    ops: Vec<Op>,
    /// Where the host gathers rows: before which operation, and for which step.
    stops: Vec<(usize, usize)>,
}

impl Planned {
    pub(super) fn new(ops: Vec<Op>, steps: &[Step]) -> Self {
        let step = |op: &Op| match op {
            Op::Step(i) => Some(*i),
            _ => None,
        };
        let mut stops = Vec::new();
        for (at, op) in ops.iter().enumerate() {
            let Some(i) = step(op).filter(|i| matches!(steps[*i], Step::Ngram { .. })) else { continue };
            // What measures parts of a model waits where one begins, and rows are gathered before that.
            let begins = |j: usize| matches!(steps[j], Step::Begin(_));
            let begun = at > 0 && step(&ops[at - 1]).is_some_and(begins);
            stops.push((at - usize::from(begun), i));
        }
        Self { ops, stops }
    }

    /// The operations in parts, each with the step for which rows are gathered before it.
    pub(super) fn parts(&self) -> impl Iterator<Item = (Option<usize>, &[Op])> {
        let begins = std::iter::once((0, None)).chain(self.stops.iter().map(|(at, step)| (*at, Some(*step))));
        let ends = self.stops.iter().map(|(at, _)| *at).chain([self.ops.len()]);
        let parts = begins.zip(ends).map(|((begin, step), end)| (step, &self.ops[begin..end]));
        // Whatever follows all of them follows the last.
        let count = self.stops.len();
        parts.enumerate().filter(move |(i, (_, ops))| *i == count || !ops.is_empty()).map(|(_, part)| part)
    }
}

/// A run of one token of each sequence as it was recorded: graphs, and for which step rows are gathered before each.
pub(super) struct Recorded(pub(super) Vec<(Option<usize>, Graph)>);

impl Recorded {
    /// How many graphs.
    pub(super) fn parts(&self) -> usize {
        self.0.len()
    }
}

/// The lists of steps that are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum List {
    /// Body and head.
    Trunk,
    /// Those of the block that drafts.
    Draft,
    /// The body of the block that drafts.
    KeepUp,
}

/// What launches of a run depend on, beside what lies in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    pub(super) list: List,
    pub(super) sequences: usize,
    /// Of all of them.
    pub(super) tokens: usize,
    /// Where the sequence keeps everything, where launches depend on it.
    pub(super) memory: u64,
    /// Parts that attention is cut into.
    pub(super) splits: usize,
    /// Where the tables are.
    pub(super) tables: u64,
    /// What is done with the logits.
    pub(super) deciding: Deciding,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::program::{BufferId, Matrix, Part};
    use gantry_formats::block::GgmlType;
    use gantry_formats::layout::Layout;

    fn lookup() -> Step {
        let layout = Layout::Raw(GgmlType::F32);
        let table =
            Matrix { name: "t".into(), card: 0, offset: 0, stored_rows: 4, rows: 0..4, cols: 4, layout };
        Step::Ngram { table, hash: 0, y: BufferId(0) }
    }

    fn add() -> Step {
        Step::Add { x: BufferId(0), y: BufferId(1) }
    }

    fn parts(steps: &[Step], ops: Vec<Op>) -> Vec<(Option<usize>, usize)> {
        Planned::new(ops, steps).parts().map(|(step, ops)| (step, ops.len())).collect()
    }

    #[test]
    fn a_part_ends_where_rows_are_wanted() {
        let begin = || Step::Begin(Part::Ngram);
        let steps = [add(), begin(), lookup(), add(), add()];
        let each = |n: usize| (0..n).map(Op::Step).collect::<Vec<_>>();
        assert_eq!(parts(&steps, each(5)), [(None, 1), (Some(2), 4)]);
        // Steps that were done together with others, and one that begins nothing.
        let some = vec![Op::Step(0), Op::Wide(3, Some(4)), Op::Step(2)];
        assert_eq!(parts(&steps, some), [(None, 2), (Some(2), 1)]);
        // Nothing is before the first, and each of two has its own rows.
        let steps = [begin(), lookup(), lookup(), add()];
        assert_eq!(parts(&steps, each(4)), [(Some(1), 2), (Some(2), 2)]);
        // What follows an empty list follows its only part.
        assert_eq!(parts(&[], Vec::new()), [(None, 0)]);
    }
}
