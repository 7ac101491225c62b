//! A card in the host's memory beside cards of another kind: it computes experts, which those ask it for.

use super::workspace::{Batch, Walker};
use super::{Cpu, Loaded, Shared, view};
use crate::load::Weights;
use crate::model::program::{BufferId, CardPrograms, Program, Step, StepKind};
use crate::{Result, RuntimeError};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How it exchanges data with the others: the protocol of [`crate::exchange`] over memory that both reach.
pub(in crate::backend) trait Ways: Send + Sync {
    /// Waits for a message from card `from` whose stretches have these lengths in bytes, and takes it: all words, each
    /// stretch rounded up to a multiple of 16 bytes.
    ///
    /// # Errors
    /// Where it does not come in time, or the other card has failed.
    fn receive(
        &self,
        from: usize,
        layer: Option<usize>,
        stretches: &[u64],
        words: &mut Vec<u32>,
    ) -> Result<()>;

    /// Puts rows, by their numbers, on the board of card `to`.
    ///
    /// # Errors
    /// Where there is no such board or row.
    fn give(&self, to: usize, rows: &mut dyn Iterator<Item = (usize, &[f32])>) -> Result<()>;
}

/// The card.
pub(in crate::backend) struct HostCard {
    walker: Walker,
    ways: Arc<dyn Ways>,
    words: Vec<u32>,
}

/// What the card has of a program, for any number of runs at the same time.
pub(in crate::backend) struct HostLoaded(Arc<Loaded>);

impl HostLoaded {
    /// Card `card`'s share of a program. `vectors` are the values of all small vectors.
    ///
    /// # Errors
    /// Where it is given anything but experts, or one that it cannot read.
    pub(in crate::backend) fn new(
        cpu: &Cpu,
        card: usize,
        (program, cards): (&Program, &CardPrograms),
        weights: &Arc<Weights>,
        vectors: Vec<Vec<f32>>,
    ) -> Result<Self> {
        let shared = Shared {
            isa: cpu.isa,
            program: program.clone(),
            cards: cards.clone(),
            weights: Arc::clone(weights),
            vectors,
            tables: Vec::new(),
            ngrams: BTreeMap::new(),
            routed: None,
        };
        for (of, steps) in cards.lists().filter(|(of, _)| *of == card) {
            for step in steps {
                check(of, step)?;
                if let Step::Experts { products, .. } = step {
                    let all = products.iter().flat_map(|p| p.weights.iter());
                    let mut own = all.filter(|m| m.card == card);
                    own.try_for_each(|m| view(&shared, StepKind::Experts, m).map(drop))?;
                }
            }
        }
        let pool = Arc::clone(&cpu.pool);
        Ok(Self(Arc::new(Loaded { card, pool, shared: Arc::new(shared) })))
    }

    /// Working memory for runs of it.
    pub(in crate::backend) fn card(&self, ways: Arc<dyn Ways>) -> HostCard {
        HostCard { walker: Walker::new(Arc::clone(&self.0)), ways, words: Vec::new() }
    }
}

/// Refuses a step that the card cannot do beside others.
///
/// # Errors
/// What it lacks.
pub(in crate::backend) fn check(card: usize, step: &Step) -> Result<()> {
    match step {
        Step::Begin(_)
        | Step::Receive { .. }
        | Step::Return { .. }
        | Step::Experts { .. }
        | Step::SiluMul { .. }
        | Step::Quantize { .. }
        | Step::Rotate { .. } => Ok(()),
        other => Err(RuntimeError::Incompatible(format!(
            "card {card} is the host's (cpu) and computes experts alone beside NVIDIA cards, not the step {}; place it \
             so (--placement paired), or leave it out",
            other.name()
        ))),
    }
}

impl HostCard {
    /// Runs the card's list for tokens at these positions.
    ///
    /// # Errors
    /// Where another card is waited for in vain.
    pub(in crate::backend) fn walk(&mut self, steps: &[Step], positions: &[u32]) -> Result<()> {
        self.walker.positions.clear();
        self.walker.positions.extend_from_slice(positions);
        let loaded = Arc::clone(&self.walker.loaded);
        for step in steps {
            match step {
                Step::Begin(_) => {}
                Step::Receive { from, layer, buffers } => self.receive(&loaded, (*from, *layer), buffers)?,
                Step::Return { to, holders, ids, y } => {
                    let width = loaded.program.buffers[y.0].width;
                    let own = |card| card == loaded.card;
                    let rows = self.walker.rows(&loaded, holders, *ids, positions.len(), own);
                    let values = self.walker.buffers.f32(*y);
                    let mut rows = rows.into_iter().map(|(row, _)| (row, &values[row * width..][..width]));
                    self.ways.give(*to, &mut rows)?;
                }
                // Nothing that it computes depends on ids of tokens or on sequences.
                step => {
                    let mut batch = Batch { tokens: positions, spans: &[], sequences: &mut [] };
                    self.walker.step(&loaded, step, &mut batch)?;
                }
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        loaded: &Loaded,
        (from, layer): (usize, Option<usize>),
        ids: &[BufferId],
    ) -> Result<()> {
        let n = self.walker.positions.len();
        let all = ids.iter().flat_map(|id| loaded.program.buffers[id.0].bytes(n)).filter(|bytes| *bytes > 0);
        let all: Vec<u64> = all.collect();
        self.ways.receive(from, layer, &all, &mut self.words)?;
        let mut rest = &self.words[..];
        for id in ids {
            let buffer = &loaded.program.buffers[id.0];
            let both = buffer.bytes(n).map(|bytes| {
                let words = bytes.next_multiple_of(16) as usize / 4;
                let (own, later) = rest.split_at(words.min(rest.len()));
                rest = later;
                own
            });
            self.walker.buffers.take_words(*id, n * buffer.rows, buffer.width, both)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::program::{Buffer, Columns, ExpertMatrices, ExpertProduct, Format, Matrix, Split};
    use gantry_formats::block::GgmlType;
    use gantry_formats::layout::{Layout, Order, Scales};
    use gantry_kernels::cpu::{Activations, I8Rows, Q8Rows, gemm};
    use std::sync::Mutex;

    const COLS: usize = 96;
    const ROWS: usize = 48;
    const EXPERTS: usize = 4;
    const USED: usize = 2;
    /// Of each token; the last is no expert's number.
    const IDS: [u32; 6] = [1, 2, 3, 1, 0, 9];

    /// Another card: what it sends, and the rows that it gets.
    struct Other {
        stretches: Vec<u64>,
        words: Vec<u32>,
        rows: Mutex<Vec<(usize, Vec<f32>)>>,
    }

    impl Ways for Other {
        fn receive(
            &self,
            from: usize,
            layer: Option<usize>,
            all: &[u64],
            words: &mut Vec<u32>,
        ) -> Result<()> {
            assert_eq!((from, layer, all), (0, Some(5), &self.stretches[..]));
            words.clone_from(&self.words);
            Ok(())
        }

        fn give(&self, to: usize, rows: &mut dyn Iterator<Item = (usize, &[f32])>) -> Result<()> {
            assert_eq!(to, 0);
            self.rows.lock().unwrap().extend(rows.map(|(row, values)| (row, values.to_vec())));
            Ok(())
        }
    }

    /// Bytes as words, rounded up to a multiple of 16 bytes.
    fn stretch(bytes: &[u8]) -> Vec<u32> {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(16), 0xee);
        bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    fn bytes_of(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    /// Experts 1 and 3 are its own: their rows have the bits of plain products of what was sent, and no others are given.
    #[test]
    fn rows_of_its_own_experts_are_products_of_what_was_sent() {
        let i8 = |scales| Layout::i8(Order::NMajor, scales).unwrap();
        let layouts = [
            (Layout::Raw(GgmlType::F32), Format::F32),
            (Layout::q8_0_split(), Format::Q8),
            (i8(Scales::Channel), Format::I8),
        ];
        for (layout, format) in layouts {
            let each = layout.bytes(ROWS as u64, COLS as u64).unwrap() as usize;
            // Small quants, and scales and floats that are numbers.
            let stored: Vec<u8> = (0..EXPERTS * each).map(|i| (i * i % 59) as u8).collect();
            let of = |e: usize| {
                let (name, rows) = ("m".into(), 0..ROWS);
                vec![Matrix {
                    name,
                    card: e % 2,
                    offset: e * each,
                    stored_rows: ROWS,
                    rows,
                    cols: COLS,
                    layout,
                }]
            };
            let weights = ExpertMatrices::new((0..EXPERTS).map(of).collect()).unwrap();
            let buffer = |name, rows, width, format| Buffer { name, rows, width, format };
            let buffers = vec![
                buffer("ids", 1, USED, Format::Ids),
                buffer("x", 1, COLS, format),
                buffer("y", USED, ROWS, Format::F32),
            ];
            let [ids, x, y] = [0, 1, 2].map(BufferId);
            let (scale, whole) = (None, Columns { buffer: y, start: 0, len: ROWS });
            let holders = Arc::new(weights.holders());
            let list = vec![
                Step::Receive { from: 0, layer: Some(5), buffers: vec![ids, x] },
                Step::Experts {
                    only: Some(1),
                    ids: Some(ids),
                    products: vec![ExpertProduct { weights: weights.clone(), x, scale, y: whole }],
                },
                Step::Return { to: 0, holders, ids, y },
            ];
            let program = Program::bare(buffers, [Vec::new(), Vec::new()], [y, y, y]);
            let split = |list| Split { lists: vec![Vec::new(), list], start: 0, end: 0 };
            let body = split(list.clone());
            let cards = CardPrograms { body, head: split(Vec::new()), draft: None, kept: Vec::new() };
            let arenas = Arc::new(Weights::of(&[Vec::new(), stored.clone()]).unwrap());
            let cpu = Cpu::new(2).unwrap();
            let loaded = HostLoaded::new(&cpu, 1, (&program, &cards), &arenas, Vec::new()).unwrap();

            let n = IDS.len() / USED;
            let input: Vec<f32> = (0..n * COLS).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
            let (mut q8, mut q) = (Q8Rows::new(), I8Rows::new());
            q8.quantize(cpu.isa, &cpu.pool, &input, COLS);
            q.quantize(cpu.isa, &cpu.pool, &input, COLS);
            let quants = |quants: &[i8]| quants.iter().map(|q| q.cast_unsigned()).collect::<Vec<u8>>();
            let (activations, sent) = match format {
                Format::Q8 => (Activations::Q8(&q8), vec![quants(q8.quants()), bytes_of(q8.scales())]),
                Format::I8 => {
                    let rows = (0..n).flat_map(|row| quants(&q.quants(row)[..COLS])).collect();
                    (Activations::I8(&q), vec![rows, bytes_of(q.scales())])
                }
                _ => (Activations::F32(&input), vec![bytes_of(&input)]),
            };
            let ids: Vec<u8> = IDS.iter().flat_map(|id| id.to_le_bytes()).collect();
            let sent: Vec<Vec<u8>> = [ids].into_iter().chain(sent).collect();
            let other = Arc::new(Other {
                stretches: sent.iter().map(|bytes| bytes.len() as u64).collect(),
                words: sent.iter().flat_map(|bytes| stretch(bytes)).collect(),
                rows: Mutex::default(),
            });
            let mut card = loaded.card(other.clone());
            // Twice, for what a run leaves must not matter.
            for _ in 0..2 {
                other.rows.lock().unwrap().clear();
                card.walk(&list, &[7, 8, 9]).unwrap();
                let rows = other.rows.lock().unwrap().clone();
                let numbers: Vec<usize> = rows.iter().map(|(row, _)| *row).collect();
                assert_eq!(numbers, [0, 2, 3], "{layout}");
                for (row, values) in rows {
                    let matrix = weights.get(IDS[row] as usize, 0).unwrap();
                    let view = view(&loaded.0, StepKind::Experts, matrix).unwrap();
                    let mut all = vec![0.0; n * ROWS];
                    gemm(cpu.isa, &cpu.pool, &view, activations, &mut all);
                    let want = &all[row / USED * ROWS..][..ROWS];
                    assert!(want.iter().any(|v| *v != 0.0) && want.iter().all(|v| v.is_finite()), "{layout}");
                    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&values), bits(want), "{layout}, row {row}");
                }
            }
        }
    }

    #[test]
    fn other_steps_are_refused() {
        let step = Step::Add { x: BufferId(0), y: BufferId(1) };
        let error = check(3, &step).unwrap_err().to_string();
        assert!(error.starts_with("card 3 is the host's") && error.contains("the step Add"), "{error}");
        assert!(check(3, &Step::Rotate { x: BufferId(0), y: BufferId(1) }).is_ok());
    }
}
