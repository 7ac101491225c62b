//! What a model takes of this machine's memory beside its weights.

use super::buffers::Buffers;
use super::links::Sizes;
use super::sequence::{kept_bytes, positions};
use super::{HEAD_ROWS, KeptBytes, Program, Settings, Step};
use crate::model::program::{Buffer, BufferId, CardPrograms, Columns, Kept};
use gantry_kernels::cpu::attention_scores;
use std::collections::BTreeSet;

/// Bytes of something that a sequence keeps.
pub(super) fn kept(kept: &Kept, settings: &Settings) -> KeptBytes {
    let whole = kept_bytes(kept, settings) as u64;
    match *kept {
        Kept::Cache(shape) if shape.window.is_none() => {
            let (row, ratio) = (whole / positions(shape, settings) as u64, shape.ratio as u64);
            // An entry stands for several positions, and there is room for one at least.
            let fixed = if ratio > 1 { row } else { 0 };
            KeptBytes { whole, position: row.div_ceil(ratio), fixed }
        }
        _ => KeptBytes { whole, position: 0, fixed: whole },
    }
}

/// Bytes that each card takes of a session's working memory beside what [`scratch`] counts for the first: the buffers
/// that its steps use, and what is on its way to it.
pub(super) fn beside(program: &Program, cards: &CardPrograms, settings: &Settings) -> Vec<u64> {
    let batch = settings.batch.max(settings.window) as u64;
    let mut bytes = vec![0u64; cards.body.lists.len()];
    let mut add = |card: usize, row: usize| {
        if let Some(sum) = bytes.get_mut(card) {
            *sum = sum.saturating_add((row as u64).saturating_mul(batch));
        }
    };
    let Sizes { words, rows } = Sizes::of(program, cards);
    words.into_iter().for_each(|((_, to), words)| add(to, words.saturating_mul(4)));
    rows.into_iter().for_each(|(to, (rows, width))| add(to, rows.saturating_mul(width).saturating_mul(4)));
    let mut used = BTreeSet::new();
    // The first card's buffers are counted with the program.
    for (card, step) in cards.lists().filter(|(card, _)| *card > 0) {
        let accesses = step.iter().flat_map(|s| s.reads().into_iter().chain(s.writes()));
        used.extend(accesses.map(|a| (card, a.buffer().0)));
    }
    for (card, id) in used {
        let buffer = &program.buffers[id];
        add(card, Buffers::row_bytes(buffer).saturating_mul(buffer.rows));
    }
    bytes
}

/// Bytes of a session's working memory.
pub(super) fn scratch(program: &Program, settings: &Settings, threads: usize) -> u64 {
    // What is drafted is verified as a whole.
    let batch = settings.batch.max(settings.window);
    let times = |bytes: usize, n: usize| (bytes as u64).saturating_mul(n as u64);
    let buffers = program.buffers.iter().enumerate().map(|(id, b)| {
        let head = [program.logits.0, program.chosen.0].contains(&id);
        let tokens = if head { batch.min(HEAD_ROWS) } else { batch };
        times(Buffers::row_bytes(b).saturating_mul(b.rows), tokens)
    });
    // Products on their way into a part of a buffer, or from experts to tokens; and inputs of an expert's tokens,
    // brought together. The largest of them.
    let result = |y: &Columns| {
        let Buffer { rows, width, .. } = program.buffers[y.buffer.0];
        if rows == 1 && y.len == width { 0 } else { rows.saturating_mul(4 * y.len) }
    };
    let aside = program.steps().map(|step| match step {
        Step::Gemm { y, .. } => result(y),
        Step::Experts { ids, products, .. } => {
            let all = products.iter().map(|p| p.weights.experts()).min().unwrap_or(0);
            let used = ids.map_or(all, |ids| program.buffers[ids.0].width);
            let gathered = |x: BufferId| used.saturating_mul(Buffers::row_bytes(&program.buffers[x.0]));
            products.iter().fold(0usize, |n, p| n.saturating_add(result(&p.y)).saturating_add(gathered(p.x)))
        }
        _ => 0,
    });
    let aside = times(aside.max().unwrap_or(0), batch);
    // Each thread keeps the scores of the query heads that share a key head.
    let group = program.steps().filter_map(|step| match step {
        Step::Attention { heads, .. } => Some(heads.query / heads.kv),
        _ => None,
    });
    let scores = times(attention_scores(group.max().unwrap_or(0), settings.context), 4 * threads);
    buffers.chain([aside, scores]).fold(0, u64::saturating_add)
}
