//! Which experts a card has, as kernels see it: where their matrices lie, and whose turn it is where there are copies.

use super::loaded::wrong;
use super::tables::{TableId, Tables};
use crate::Result;
use crate::model::program::{ExpertMatrices, Holders, Matrix, Program, Step};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What kernels take for an expert that a card has not.
const ELSEWHERE: u64 = u64::MAX;

/// The experts of a model on a card.
pub(super) struct Experts {
    by_matrices: BTreeMap<Key, Places>,
    /// By holders, of each card.
    turns: Vec<(Holders, Vec<TableId>)>,
}

/// Where the matrices of a layer's experts lie.
struct Places {
    /// Of those on this card.
    own: TableId,
    /// Of all, where a card has them: this one, if it does.
    all: TableId,
    /// Where experts have copies.
    turns: Option<TableId>,
    /// How many rows after the one before it an expert's begins in what is stored.
    step: usize,
}

/// [`Places`] on the card.
pub(super) struct Held {
    /// Table of addresses.
    pub(super) at: u64,
    /// Table of copies, and which of them is this card's; 0 where nothing depends on it.
    pub(super) turns: u64,
    /// How many rows after the one before it an expert's begins in what is stored.
    pub(super) step: usize,
}

/// Matrices of experts by the first one's name, card, first byte and rows.
type Key = (Arc<str>, usize, usize, usize, usize);

fn key(weights: &ExpertMatrices) -> Result<Key> {
    let first = weights.copy(0, 0).ok_or_else(|| wrong("program", "a layer without experts".into()))?;
    Ok((Arc::clone(&first.name), first.card, first.offset, first.rows.start, first.rows.end))
}

impl Experts {
    /// Tables for card `card` of those whose arenas begin at `arenas`.
    pub(super) fn new(program: &Program, card: usize, arenas: &[u64], tables: &mut Tables) -> Result<Self> {
        let mut experts = Self { by_matrices: BTreeMap::new(), turns: Vec::new() };
        for step in program.steps() {
            let Step::Experts { products, .. } = step else { continue };
            for product in products {
                let key = key(&product.weights)?;
                if experts.by_matrices.contains_key(&key) {
                    continue;
                }
                let step = stride(&product.weights)?;
                let all = (0..product.weights.experts()).map(|e| product.weights.copy(e, card));
                let all: Vec<&Matrix> = all.flatten().collect();
                let address = |m: &&Matrix| arenas[m.card] + m.offset as u64;
                let own = |m: &&Matrix| if m.card == card { address(m) } else { ELSEWHERE };
                let (own, all) = (tables.longs(all.iter().map(own)), tables.longs(all.iter().map(address)));
                let holders = product.weights.holders();
                let several = holders.cards().len() > 1;
                let turns =
                    if several { experts.add_turns(&holders, arenas.len(), tables) } else { Vec::new() };
                let copied = product.weights.iter().count() > product.weights.experts();
                let turns = turns.get(card).copied().filter(|_| copied);
                experts.by_matrices.insert(key, Places { own, all, turns, step });
            }
        }
        Ok(experts)
    }

    /// The turns of all cards.
    fn add_turns(&mut self, holders: &Holders, cards: usize, tables: &mut Tables) -> Vec<TableId> {
        if let Some((_, known)) = self.turns.iter().find(|(known, _)| known == holders) {
            return known.clone();
        }
        let made: Vec<TableId> =
            (0..cards).map(|card| tables.ints(holders.turns(card).into_iter().flatten())).collect();
        self.turns.push((holders.clone(), made.clone()));
        made
    }

    pub(super) fn held(
        &self,
        weights: &ExpertMatrices,
        only: bool,
        at: impl Fn(TableId) -> u64,
    ) -> Result<Held> {
        let places = self.by_matrices.get(&key(weights)?);
        let places = places.ok_or_else(|| wrong("program", "experts that were not there".into()))?;
        Ok(match only {
            true => Held { at: at(places.own), turns: places.turns.map_or(0, at), step: places.step },
            false => Held { at: at(places.all), turns: 0, step: places.step },
        })
    }

    pub(super) fn turns(&self, holders: &Holders, of: usize, at: impl Fn(TableId) -> u64) -> Result<u64> {
        let found = self.turns.iter().find(|(known, _)| known == holders);
        let found = found.and_then(|(_, turns)| turns.get(of));
        found.map(|id| at(*id)).ok_or_else(|| wrong("program", "experts of no card".into()))
    }
}

/// How many rows after the one before it each expert's matrix begins in what is stored. Each has one of its own, or all
/// are one.
fn stride(weights: &ExpertMatrices) -> Result<usize> {
    let all: Vec<&Matrix> = (0..weights.experts()).filter_map(|expert| weights.copy(expert, 0)).collect();
    let first = all.first().ok_or_else(|| wrong("program", "experts without a matrix".into()))?;
    let step = all.get(1).map_or(0, |second| second.rows.start.saturating_sub(first.rows.start));
    let alike = |expert: usize, m: &Matrix| {
        m.rows.start == first.rows.start + expert * step && m.stored_rows == first.stored_rows
    };
    // All copies are stored alike, since all are of one bank's shape.
    let of = (0..weights.experts()).flat_map(|e| weights.copies(e).iter().map(move |m| (e, m)));
    match of.into_iter().find(|(expert, m)| !alike(*expert, m)) {
        Some((expert, m)) => Err(wrong(&m.name, format!("expert {expert} is not stored like the others"))),
        None => Ok(step),
    }
}
