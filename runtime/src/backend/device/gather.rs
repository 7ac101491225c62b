//! Rows of n-gram tables on their way to a card. The tables stay in their files: the host reads the rows as they are
//! stored, while the card does the steps before the one that takes them.
#![allow(unsafe_code, reason = "a copy whose bytes are kept")]

use super::batch::Batch;
use super::driver::Pinned;
use super::kernels::{Args, groups};
use super::loaded::{Loaded, wrong};
use super::plan::FEW;
use super::registry;
use super::sequence::CardSequence;
use super::steps::{Around, EACH, Runner};
use crate::backend::ngram::NgramTable;
use crate::model::program::BufferId;
use crate::{Result, RuntimeError};
use gantry_formats::block::GgmlType;
use gantry_formats::layout::Layout;
use std::collections::BTreeMap;

/// Planes begin at multiples of this.
const ALIGN: usize = 256;

/// How rows lie that were gathered: those of a token side by side, as a row of a matrix of their own. In the table's
/// layout, or in f32 where no kernel looks rows of that up.
struct Form {
    layout: Layout,
    /// Bytes of a token, by plane.
    planes: Vec<usize>,
}

impl Form {
    fn of(table: &NgramTable) -> Self {
        let layout = table.table.layout;
        match registry::embed(layout) {
            Some(_) => Self { layout, planes: table.planes().map(|bytes| bytes * table.heads()).collect() },
            None => Self {
                layout: Layout::Raw(GgmlType::F32),
                planes: vec![table.table.cols * table.heads() * 4],
            },
        }
    }

    /// Where the planes of `n` tokens begin, and where they end.
    fn starts(&self, n: usize) -> impl Iterator<Item = usize> + '_ {
        let mut end = 0;
        std::iter::once(0).chain(self.planes.iter().map(move |bytes| {
            end += (bytes * n).next_multiple_of(ALIGN);
            end
        }))
    }

    fn bytes(&self, n: usize) -> usize {
        self.starts(n).last().unwrap_or(0)
    }
}

/// Bytes that rows of `values` values a token take on a card, at most, where they are copied there.
pub(super) fn bytes(values: usize, tokens: usize) -> u64 {
    // A plane of scales beside the quants is no longer than f32 would be.
    (values as u64).saturating_mul(tokens as u64).saturating_mul(4).saturating_add(2 * ALIGN as u64)
}

/// Rows of all tables of a card's steps, where the card reads them or copies from. A run fills them once its stream has
/// done all of the run before.
pub(super) struct Gathered {
    /// None where no table is this card's.
    memory: Option<Pinned>,
    /// By hash, as in [`Loaded::ngrams`]: the first byte.
    places: BTreeMap<usize, (usize, Form)>,
    /// Of the tokens: which rows.
    rows: Vec<u64>,
}

impl Gathered {
    /// Room for `most` tokens.
    pub(super) fn new(loaded: &Loaded, most: usize) -> Result<Self, super::CardError> {
        let mut end = 0;
        let own = loaded.ngrams.iter().filter(|(_, table)| table.table.card == loaded.card);
        let place = |(hash, table): (&usize, &NgramTable)| {
            let form = Form::of(table);
            let first = end;
            end += form.bytes(most);
            (*hash, (first, form))
        };
        let places = own.map(place).collect();
        let memory = (end > 0).then(|| Pinned::new(&loaded.context, end, "rows of a table")).transpose()?;
        Ok(Self { memory, places, rows: Vec::new() })
    }

    /// Reads the rows of all tokens of a batch.
    fn fill(
        &mut self,
        loaded: &Loaded,
        hash: usize,
        batch: &Batch,
        sequences: &[&mut CardSequence],
    ) -> Result<()> {
        let Self { memory, places, rows } = self;
        let (table, (first, form)) = loaded.ngrams.get(&hash).zip(places.get(&hash)).ok_or_else(no_table)?;
        let memory = memory.as_mut().ok_or_else(no_table)?;
        let (weights, pool) = (&*loaded.weights, &*loaded.pool);
        weights.check_unchanged(table.table.card).map_err(RuntimeError::from)?;
        let heads = table.heads();
        rows.clear();
        rows.resize(batch.n * heads, 0);
        for (span, sequence) in batch.spans.iter().zip(sequences) {
            let own = &mut rows[span.row * heads..][..span.tokens * heads];
            table.each_token(pool, own, heads, |t, rows| {
                table.rows(&sequence.tokens, span.start + t, rows);
                Ok(())
            })?;
        }
        let rows = &rows[..];
        let of = |t: usize| rows[t * heads..][..heads].iter();
        if form.layout != table.table.layout {
            let all = &mut memory[*first..][..batch.n * form.planes[0]];
            return table.each_token(pool, all, form.planes[0], |t, into| {
                let (mut stored, mut values) = (Vec::new(), vec![0.0; table.table.cols]);
                for (row, into) in of(t).zip(into.chunks_exact_mut(4 * table.table.cols)) {
                    table.values(weights, *row, &mut stored, &mut values)?;
                    into.as_chunks_mut().0.iter_mut().zip(&values).for_each(|(b, v)| *b = v.to_le_bytes());
                }
                Ok(())
            });
        }
        for (plane, (bytes, start)) in form.planes.iter().zip(form.starts(batch.n)).enumerate() {
            let all = &mut memory[first + start..][..batch.n * bytes];
            table.each_token(pool, all, *bytes, |t, into| {
                let mut each = of(t).zip(into.chunks_exact_mut(bytes / heads));
                each.try_for_each(|(row, into)| table.read(weights, plane, *row, into))
            })?;
        }
        Ok(())
    }
}

impl Runner {
    /// Reads the rows that a run takes with the hashes `hash`, and gives the card its copy of many; few are read by the card
    /// where they are. The stream has done all that it was given by the run before.
    pub(super) fn gather(&mut self, around: &Around<'_, '_>, hash: usize) -> Result<()> {
        let n = around.batch.n;
        self.gathered.fill(around.loaded, hash, around.batch, around.sequences)?;
        if n > FEW {
            let (first, form) = self.gathered.places.get(&hash).ok_or_else(no_table)?;
            let memory = self.gathered.memory.as_ref().ok_or_else(no_table)?;
            let all = &memory[*first..][..form.bytes(n)];
            // SAFETY: the bytes are this runner's, which waits for its stream before it goes; the next run writes to them,
            // and runs end when the stream has done all of theirs.
            unsafe { self.partial.write_async(0, all, &self.stream) }?;
        }
        Ok(())
    }

    /// [`Step::Ngram`](crate::model::program::Step::Ngram): looks up what was gathered.
    pub(super) fn ngram(&self, around: &Around<'_, '_>, hash: usize, y: BufferId, n: usize) -> Result<()> {
        let (first, form) = self.gathered.places.get(&hash).ok_or_else(no_table)?;
        let width = around.loaded.program.values(y);
        let kernel = registry::embed(form.layout).ok_or_else(no_table)?;
        let memory = self.gathered.memory.as_ref().ok_or_else(no_table)?;
        let from = if n > FEW { self.partial.address() } else { memory.address() + *first as u64 };
        let args = Args::at(&[from, around.batch.rows(), self.buffers.at(y)]).long(&[0]);
        let args = match form.layout {
            Layout::Q8_0Split { .. } => args.long(&[form.starts(n).nth(1).unwrap_or(0)]),
            _ => args,
        };
        let args = args.int(&[n, 1, width]);
        self.launch(around.loaded, kernel, [groups(width, EACH), n, 1], &args)
    }
}

fn no_table() -> RuntimeError {
    wrong("program", "a step that looks up n-grams in a table that is not this card's".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_lie_one_after_another() {
        let form = Form { layout: Layout::q8_0_split(), planes: vec![2560, 160] };
        assert_eq!(form.starts(1).collect::<Vec<_>>(), [0, 2560, 2816]);
        assert_eq!(form.starts(3).collect::<Vec<_>>(), [0, 7680, 8192]);
        for n in [1, 32, 33, 512] {
            assert!(form.bytes(n) as u64 <= bytes(2560, n), "{n} tokens");
        }
    }
}
