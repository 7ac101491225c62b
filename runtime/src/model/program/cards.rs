//! One program on several cards: a list of steps for each, with what they give each other in between.
//!
//! A step runs on the card that has its weights; one without weights where the step before ran. Two kinds of
//! boundary come of that:
//! - Layers of one card follow those of another: buffers that are still read are handed over.
//! - Experts of one layer lie on several cards: the card that routes sends the ids and the input to the others, each
//!   computes its own experts with the same steps, and writes their rows to the card that routes, which then goes on
//!   as if it had computed all of them.
//!
//! With everything on one card its list is the program's, step for step.

use super::{Access, BufferId, Holders, Part, Program, Step};
use crate::{Result, RuntimeError};
use gantry_formats::role::Role;
use std::ops::Range;
use std::sync::Arc;

/// What is checked where cards compute experts for another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertCheck {
    /// Nothing.
    #[default]
    Off,
    /// The card that routes computes all experts too and compares every word of the others' rows.
    Verify,
    /// The card that routes computes all experts, and the others none: a run on its own rows only.
    Own,
}

/// The lists that together do what one list does.
#[derive(Clone, Debug)]
pub struct Split {
    /// By card; empty for one that has nothing to do.
    pub lists: Vec<Vec<Step>>,
    /// The card where the input is expected.
    pub start: usize,
    /// The card where the output is left.
    pub end: usize,
}

/// A program cut for some cards.
#[derive(Clone, Debug)]
pub struct CardPrograms {
    /// [`Program::body`], to [`Program::residual`].
    pub body: Split,
    /// [`Program::head`], from [`Program::chosen`] to [`Program::logits`].
    pub head: Split,
    /// Body and head of [`Program::draft`].
    pub draft: Option<(Split, Split)>,
    /// By [`KeptId`](super::KeptId): the card that keeps it.
    pub kept: Vec<usize>,
}

impl CardPrograms {
    /// Cuts `program` for `cards` cards.
    ///
    /// # Errors
    /// Where its weights lie so that it cannot be cut: what one layer keeps on two cards, or experts whose matrices lie
    /// on different cards.
    pub fn new(program: &Program, cards: usize, check: ExpertCheck) -> Result<Self> {
        let body = split(program, &program.body, cards, check, None, program.residual)?;
        let head = |steps: &[Step], from: usize| {
            split(program, steps, cards, check, Some((program.chosen, from)), program.logits)
        };
        let draft = match &program.draft {
            None => None,
            Some(d) => {
                let own = split(program, &d.body, cards, check, Some((d.hidden, body.end)), d.residual)?;
                let head = head(&d.head, own.end)?;
                Some((own, head))
            }
        };
        let head = head(&program.head, body.end)?;
        let kept = kept(program, [&body, &head].into_iter().chain(draft.iter().flat_map(|(b, h)| [b, h])))?;
        Ok(Self { body, head, draft, kept })
    }

    /// All lists of all parts, with their cards.
    pub fn lists(&self) -> impl Iterator<Item = (usize, &[Step])> {
        let splits = [&self.body, &self.head].into_iter().chain(self.draft.iter().flat_map(|(b, h)| [b, h]));
        splits.flat_map(|s| s.lists.iter().map(Vec::as_slice).enumerate())
    }

    /// Whether cards compute experts for another.
    pub fn shares_experts(&self) -> bool {
        self.lists().any(|(_, steps)| steps.iter().any(|s| matches!(s, Step::Collect { .. })))
    }
}

/// The card of each thing kept.
fn kept<'a>(program: &Program, splits: impl Iterator<Item = &'a Split>) -> Result<Vec<usize>> {
    let mut cards: Vec<Option<usize>> = vec![None; program.kept.len()];
    let lists = splits.flat_map(|s| s.lists.iter().enumerate());
    for (card, step) in lists.flat_map(|(card, steps)| steps.iter().map(move |s| (card, s))) {
        for id in step.kept() {
            match &mut cards[id.0] {
                Some(other) if *other != card => {
                    return Err(fault(format!(
                        "what a layer keeps is used on card {other} and on card {card}"
                    )));
                }
                slot => *slot = Some(card),
            }
        }
    }
    Ok(cards.into_iter().map(|card| card.unwrap_or(0)).collect())
}

fn fault(what: String) -> RuntimeError {
    RuntimeError::Incompatible(format!("the model cannot be cut for these cards: {what}"))
}

/// Cuts `steps`, whose input, where it is named, lies on a card, and whose output is `output`.
fn split(
    program: &Program,
    steps: &[Step],
    cards: usize,
    check: ExpertCheck,
    input: Option<(BufferId, usize)>,
    output: BufferId,
) -> Result<Split> {
    let first = steps.iter().find_map(|s| s.source(program)).map_or(0, |m| m.card);
    let start = input.map_or(first, |(_, card)| card);
    let mut valid = vec![Vec::new(); program.buffers.len()];
    if let Some((buffer, card)) = input {
        valid[buffer.0].push(card);
    }
    let lists = vec![Vec::new(); cards];
    let mut cut = Cut { program, check, lists, card: start, valid, part: None, layer: None, output };
    let mut at = 0;
    while at < steps.len() {
        let step = &steps[at];
        if check != ExpertCheck::Own && is_shared(step) {
            let end = steps[at..].iter().position(|s| matches!(s, Step::Mix { .. }));
            let end = at + end.ok_or_else(|| fault("experts on several cards that nothing mixes".into()))?;
            cut.shared(&steps[at..end], &steps[end..])?;
            at = end;
            continue;
        }
        if let Some(matrix) = step.source(program)
            && matrix.card != cut.card
        {
            cut.turn(matrix.card, Role::of(&matrix.name, 2).layer, &steps[at..]);
        }
        match step {
            Step::Begin(part) => cut.part = Some(*part),
            Step::Route { layer, .. } => cut.layer = Some(*layer),
            _ => {}
        }
        cut.push(step.clone());
        at += 1;
    }
    let end = cut.valid[output.0].first().copied().unwrap_or(cut.card);
    Ok(Split { lists: cut.lists, start, end })
}

/// Whether the experts of a step lie on several cards.
fn is_shared(step: &Step) -> bool {
    match step {
        Step::Experts { products, .. } => {
            products.iter().any(|p| p.weights.iter().any(|m| Some(m.card) != first_card(&p.weights)))
        }
        _ => false,
    }
}

fn first_card(weights: &super::ExpertMatrices) -> Option<usize> {
    weights.iter().next().map(|m| m.card)
}

/// A list being cut.
struct Cut<'a> {
    program: &'a Program,
    check: ExpertCheck,
    lists: Vec<Vec<Step>>,
    /// The card that steps go to.
    card: usize,
    /// By buffer: the cards that have what was written last.
    valid: Vec<Vec<usize>>,
    /// The part that steps belong to.
    part: Option<Part>,
    /// The layer that routed last.
    layer: Option<usize>,
    output: BufferId,
}

impl Cut<'_> {
    fn push(&mut self, step: Step) {
        for id in step.written() {
            self.valid[id.0] = vec![self.card];
        }
        self.lists[self.card].push(step);
    }

    /// Goes on with `rest` on `card`, for a step of `layer`.
    fn turn(&mut self, card: usize, layer: Option<u32>, rest: &[Step]) {
        let layer = layer.map(|layer| layer as usize);
        let elsewhere = |s: &Step| s.source(self.program).is_some_and(|m| m.card != card);
        let own = &rest[..rest.iter().position(elsewhere).unwrap_or(rest.len())];
        let mut from: Vec<(usize, Vec<BufferId>)> = Vec::new();
        for id in (0..self.program.buffers.len()).map(BufferId) {
            let used = |s: &Step| s.reads().iter().chain(&s.writes()).any(|a| a.buffer() == id);
            let valid = &self.valid[id.0];
            let Some(&holder) = valid.first().filter(|_| !valid.contains(&card)) else { continue };
            let needed = self.is_read(id, rest) || id == self.output && !self.is_overwritten(id, rest);
            if !own.iter().any(used) || !needed {
                continue;
            }
            match from.iter_mut().find(|(other, _)| *other == holder) {
                Some((_, buffers)) => buffers.push(id),
                None => from.push((holder, vec![id])),
            }
            self.valid[id.0].push(card);
        }
        for (from, buffers) in from {
            self.lists[from].push(Step::Send { to: card, layer, buffers: buffers.clone() });
            self.lists[card].push(Step::Receive { from, layer, buffers });
        }
        self.card = card;
        self.lists[card].extend(self.part.map(Step::Begin));
    }

    /// Whether `steps` read what a buffer holds before them.
    fn is_read(&self, id: BufferId, steps: &[Step]) -> bool {
        let mut written = Written::default();
        steps.iter().any(|step| {
            let reads = self.ranges(id, step.reads()).iter().any(|r| !written.covers(r));
            self.ranges(id, step.writes()).into_iter().for_each(|r| written.add(r));
            reads
        })
    }

    /// Whether `steps` write all that a buffer has.
    fn is_overwritten(&self, id: BufferId, steps: &[Step]) -> bool {
        let mut written = Written::default();
        let all = steps.iter().flat_map(|s| self.ranges(id, s.writes()));
        all.for_each(|r| written.add(r));
        written.covers(&(0..self.program.values(id)))
    }

    fn ranges(&self, id: BufferId, accesses: Vec<Access>) -> Vec<Range<usize>> {
        let own = accesses.into_iter().filter(|a| a.buffer() == id);
        own.flat_map(|a| a.ranges(&self.program.buffers)).collect()
    }

    /// `steps` compute experts that lie on several cards; `rest` follows.
    fn shared(&mut self, steps: &[Step], rest: &[Step]) -> Result<()> {
        let experts = || {
            steps.iter().filter_map(|s| match s {
                Step::Experts { ids, products, .. } => Some((ids, products)),
                _ => None,
            })
        };
        let holders: Vec<Holders> =
            experts().flat_map(|(_, products)| products.iter().map(|p| p.weights.holders())).collect();
        if holders.windows(2).any(|w| w[0] != w[1]) {
            return Err(fault("the matrices of one expert lie on different cards".into()));
        }
        let ids = experts().find_map(|(ids, _)| *ids);
        let y = experts().next_back().and_then(|(_, products)| products.first()).map(|p| p.y.buffer);
        let (Some(holders), Some(ids), Some(y)) = (holders.into_iter().next(), ids, y) else {
            return Err(fault("experts on several cards that no router chooses".into()));
        };
        let (root, layer) = (self.card, self.layer);
        let mut inputs = vec![ids];
        for id in (0..self.program.buffers.len()).map(BufferId).filter(|id| *id != ids) {
            if self.is_read(id, steps) {
                inputs.push(id);
            }
            let inside = steps.iter().any(|s| s.written().contains(&id));
            if inside && id != y && self.is_read(id, rest) {
                let name = self.program.buffers[id.0].name;
                return Err(fault(format!("{name} of experts on several cards is read outside of them")));
            }
        }
        let cards = holders.cards();
        let holders = Arc::new(holders);
        let others: Vec<usize> = cards.iter().copied().filter(|card| *card != root).collect();
        for &to in &others {
            self.lists[root].push(Step::Send { to, layer, buffers: inputs.clone() });
            let list = &mut self.lists[to];
            list.push(Step::Receive { from: root, layer, buffers: inputs.clone() });
            list.extend(steps.iter().map(|s| only(s, Some(to))));
            list.push(Step::Return { to: root, holders: Arc::clone(&holders), ids, y });
        }
        let compare = self.check == ExpertCheck::Verify;
        if compare || cards.contains(&root) {
            let own = if compare { None } else { Some(root) };
            steps.iter().for_each(|s| self.push(only(s, own)));
        }
        self.push(Step::Collect { from: others, layer, holders, ids, y, compare });
        Ok(())
    }
}

/// A step that computes only the experts of card `card`.
fn only(step: &Step, card: Option<usize>) -> Step {
    match step {
        Step::Experts { ids, products, .. } => {
            Step::Experts { only: card, ids: *ids, products: products.clone() }
        }
        other => other.clone(),
    }
}

/// Values that were written, as ranges that do not touch.
#[derive(Default)]
struct Written(Vec<Range<usize>>);

impl Written {
    fn add(&mut self, new: Range<usize>) {
        let mut new = new;
        self.0.retain(|r| {
            let touches = r.start <= new.end && new.start <= r.end;
            if touches {
                new = new.start.min(r.start)..new.end.max(r.end);
            }
            !touches
        });
        self.0.push(new);
    }

    fn covers(&self, range: &Range<usize>) -> bool {
        range.is_empty() || self.0.iter().any(|r| r.start <= range.start && range.end <= r.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_where_they_touch() {
        let mut written = Written::default();
        written.add(0..4);
        written.add(8..12);
        assert!(written.covers(&(1..3)) && !written.covers(&(3..5)) && !written.covers(&(0..12)));
        written.add(4..8);
        assert!(written.covers(&(0..12)) && !written.covers(&(0..13)));
        assert!(written.covers(&(20..20)));
    }
}
