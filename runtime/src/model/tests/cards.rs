//! Programs on several cards give the bits that they give on one.

use super::*;
use crate::RuntimeError;
use crate::exchange::{Delays, Patience};
use crate::model::program::{CardPrograms, ExpertCheck, Routing};
use std::sync::Arc;
use std::time::Duration;

/// Two layers of experts between products, as far as decoders are made of them.
struct Layers {
    stored: Stored,
    table: Matrix,
    /// By layer: a square matrix, a router, and by expert gate-up and down.
    layers: Vec<(Matrix, Matrix, Vec<[Matrix; 2]>)>,
}

const LAYERS: usize = 3;

impl Layers {
    /// All on card 0.
    fn new(layout: Layout) -> Self {
        let mut stored = Stored::new();
        let (table, _) = stored.inputs();
        let square = |stored: &mut Stored, layout: Layout, rows: usize| {
            let bytes = layout.bytes(rows as u64, COLS as u64).unwrap() as usize;
            let values: Vec<u8> = (0..bytes).map(|_| (stored.random.next() % 0x3c) as u8).collect();
            stored.add(layout, rows, values.into_iter())
        };
        let layers = (0..LAYERS).map(|_| {
            let dense = square(&mut stored, layout, COLS);
            let router = square(&mut stored, Layout::Raw(GgmlType::BF16), ROWS);
            let expert = |_| [2 * COLS, COLS].map(|rows| square(&mut stored, layout, rows));
            (dense, Matrix { rows: 0..EXPERTS, ..router }, (0..EXPERTS).map(expert).collect())
        });
        let layers = layers.collect();
        Self { stored, table, layers }
    }

    /// The program with each layer's matrices on the card that `dense` says, and each expert on those that `experts`
    /// says.
    fn program(&self, dense: &[usize], experts: impl Fn(usize, usize) -> Vec<usize>) -> Program {
        let mut b = Builder::default();
        let residual = b.buffer("residual", COLS, Format::F32);
        b.push(Step::Embed { table: Matrix { card: dense[0], ..self.table.clone() }, y: residual });
        for (layer, (square, router, bank)) in self.layers.iter().enumerate() {
            let card = dense[layer];
            let on = |m: &Matrix, card: usize| Matrix { card, ..m.clone() };
            // Halves of a wider buffer, so that what is written in parts is handed over whole.
            let wide = b.buffer("wide", 2 * COLS, Format::F32);
            // What experts add must weigh as much as what is there, else nothing of theirs would be seen.
            b.norm_in_place(b.piece(residual), None, 1e-6);
            for half in 0..2 {
                let y = b.columns(wide, half * COLS, COLS);
                b.gemm(on(square, card), residual, y);
            }
            let x = b.buffer("narrow", COLS, Format::F32);
            b.push(Step::SiluMul { x: wide, clamp: None, y: x });
            b.norm_in_place(b.piece(x), None, 1e-6);
            let logits = b.buffer("logits", EXPERTS, Format::F32);
            b.gemm(on(router, card), x, b.whole(logits));
            let ids = b.buffer("ids", USED, Format::Ids);
            let weights = b.buffer("weights", USED, Format::F32);
            let routing = Routing {
                experts: EXPERTS,
                used: USED,
                gating: Gating::Softmax,
                groups: 1,
                groups_used: 1,
                normalize: true,
                scale: 1.0,
            };
            b.push(Step::Route { routing, layer, logits, bias: None, given: None, ids, weights });
            let matrices = |which: usize| {
                let of = |(e, m): (usize, &[Matrix; 2])| {
                    experts(layer, e).into_iter().map(|card| on(&m[which], card)).collect()
                };
                ExpertMatrices::new(bank.iter().enumerate().map(of).collect()).unwrap()
            };
            let gate_up = b.rows("gates and ups", USED, 2 * COLS, Format::F32);
            b.experts(Some(ids), vec![(matrices(0), None, x, b.whole(gate_up))]);
            let hidden = b.rows("hidden", USED, COLS, Format::F32);
            b.push(Step::SiluMul { x: gate_up, clamp: None, y: hidden });
            let answers = b.rows("answers", USED, COLS, Format::F32);
            b.experts(Some(ids), vec![(matrices(1), None, hidden, b.whole(answers))]);
            let y = b.buffer("mixed", COLS, Format::F32);
            b.push(Step::Mix { x: answers, weights, y });
            b.norm_in_place(b.piece(y), None, 1e-12);
            b.push(Step::Add { x: y, y: residual });
        }
        let body = b.take_steps();
        let chosen = b.buffer("chosen", COLS, Format::F32);
        let logits = b.buffer("head", COLS, Format::F32);
        let last = Matrix { card: dense[LAYERS - 1], ..self.layers[0].0.clone() };
        b.gemm(last, chosen, b.whole(logits));
        let steps = [body, b.take_steps()];
        Program::bare(b.buffers, steps, [residual, chosen, logits])
    }

    /// What it gives with the same bytes on each of `cards` cards.
    fn run(&self, program: Program, cards: usize, run: &RunOptions, batch: usize) -> Result<Vec<u32>> {
        let device = Device::cpu(Some(2)).unwrap();
        let weights = Weights::of(&vec![self.stored.bytes.clone(); cards]).unwrap();
        let logits = Stored::run_program(&device, program, weights, run, (TOKENS, batch))?;
        assert!(logits.iter().all(|v| v.is_finite()));
        assert!(logits.windows(2).any(|w| w[0] != w[1]));
        Ok(logits.into_iter().map(f32::to_bits).collect())
    }
}

fn layouts() -> impl Iterator<Item = Layout> {
    let device = Device::cpu(Some(1)).unwrap();
    let all = super::layouts(&device, StepKind::Experts).into_iter();
    // One of each kind of activations, rotated and not.
    let kind = |l: &Layout| (crate::model::program::activations_for(*l), l.is_rotated());
    let mut seen = Vec::new();
    all.filter(move |l| {
        let new = !seen.contains(&kind(l));
        seen.push(kind(l));
        new
    })
}

#[test]
fn experts_on_any_cards_give_the_bits_of_one_card() {
    for layout in layouts() {
        let model = Layers::new(layout);
        let off = RunOptions::default();
        let one = model.run(model.program(&[0; LAYERS], |_, _| vec![0]), 1, &off, TOKENS).unwrap();
        let mut random = Random(11);
        for cards in 2..=4 {
            // Some experts on one card, some on several; now and then none on card 0.
            let mut holders = vec![vec![Vec::new(); EXPERTS]; LAYERS];
            for holders in holders.iter_mut().flatten() {
                let mask = 1 + random.next() as usize % ((1 << cards) - 1);
                holders.extend((0..cards).filter(|card| mask >> card & 1 == 1));
            }
            for check in [ExpertCheck::Off, ExpertCheck::Verify, ExpertCheck::Own] {
                for batch in [1, 4, TOKENS] {
                    let program = model.program(&[0; LAYERS], |layer, e| holders[layer][e].clone());
                    let run = RunOptions { check, ..RunOptions::default() };
                    let got = model.run(program, cards, &run, batch).unwrap();
                    assert!(got == one, "{layout}, {cards} cards, {check:?}, batches of {batch}");
                }
            }
        }
    }
}

#[test]
fn layers_on_any_cards_give_the_bits_of_one_card() {
    let layout = Layout::Raw(GgmlType::BF16);
    let model = Layers::new(layout);
    let off = RunOptions::default();
    let one = model.run(model.program(&[0; LAYERS], |_, _| vec![0]), 1, &off, TOKENS).unwrap();
    for dense in [[0, 0, 1], [0, 1, 1], [0, 1, 2], [1, 0, 1], [2, 1, 0]] {
        for batch in [1, 5] {
            // Each layer with its experts, and with experts elsewhere.
            let own = model.program(&dense, |layer, _| vec![dense[layer]]);
            assert!(model.run(own, 3, &off, batch).unwrap() == one, "{dense:?}, batches of {batch}");
            let both = model.program(&dense, |layer, e| vec![(layer + e) % 3]);
            assert!(model.run(both, 3, &off, batch).unwrap() == one, "{dense:?} apart, batches of {batch}");
        }
    }
}

#[test]
fn on_one_card_the_lists_are_the_program() {
    let model = Layers::new(Layout::Raw(GgmlType::BF16));
    let program = model.program(&[0; LAYERS], |_, _| vec![0]);
    let text = |steps: &[Step]| format!("{steps:?}");
    // Also where there are other cards, which hold nothing.
    for cards in 1..4 {
        for check in [ExpertCheck::Off, ExpertCheck::Verify, ExpertCheck::Own] {
            let cut = CardPrograms::new(&program, cards, check).unwrap();
            assert_eq!(text(&cut.body.lists[0]), text(&program.body));
            assert_eq!(text(&cut.head.lists[0]), text(&program.head));
            assert!(cut.lists().all(|(card, steps)| card == 0 || steps.is_empty()));
            assert!(!cut.shares_experts());
        }
    }
}

#[test]
fn a_card_that_computes_otherwise_is_found_and_named() {
    let model = Layers::new(Layout::Raw(GgmlType::BF16));
    // Both cards hold every expert, so that card 0 has bytes of its own to compare with.
    let program = || model.program(&[0; LAYERS], |_, _| vec![0, 1]);
    let mut bytes = vec![model.stored.bytes.clone(); 2];
    for [gate_up, _] in &model.layers[1].2 {
        let all = gate_up.offset..gate_up.offset + 4 * COLS * COLS;
        bytes[1][all].iter_mut().skip(1).step_by(2).for_each(|high| *high ^= 0x80);
    }
    let run = |check| {
        let device = Device::cpu(Some(2)).unwrap();
        let patience = Patience { bound: Duration::from_secs(300) };
        let run = RunOptions { check, patience, ..RunOptions::default() };
        let weights = Weights::of(&bytes).unwrap();
        Stored::run_program(&device, program(), weights, &run, (TOKENS, TOKENS))
    };
    let start = std::time::Instant::now();
    let Err(error) = run(ExpertCheck::Verify) else { panic!("nothing was found") };
    assert!(matches!(error, RuntimeError::Experts(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("card 1") && text.contains("layer 1"), "{text}");
    // Nobody was left waiting for the card that gave up.
    assert!(start.elapsed() < Duration::from_secs(60));
    // Without the check nobody notices.
    let one = model.run(program(), 2, &RunOptions::default(), TOKENS).unwrap();
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert!(bits(run(ExpertCheck::Off).unwrap()) != one);
}

#[test]
fn delays_at_every_step_of_the_protocol_change_nothing() {
    let model = Layers::new(Layout::Raw(GgmlType::BF16));
    let one = model.run(model.program(&[0; LAYERS], |_, _| vec![0]), 1, &RunOptions::default(), 1).unwrap();
    for cards in 2..=4 {
        let delays = Arc::new(Delays::new(cards as u64, Duration::from_micros(200)));
        let run = RunOptions { delays: Some(Arc::clone(&delays)), ..RunOptions::default() };
        let apart = || model.program(&[0; LAYERS], |layer, e| vec![(layer + e) % cards]);
        let rounds = 1000 / (TOKENS * LAYERS * 3) + 1;
        for round in 0..rounds {
            assert!(model.run(apart(), cards, &run, 1).unwrap() == one, "{cards} cards, round {round}");
        }
        let dense = [0, 1, cards - 1];
        let layers = model.program(&dense, |layer, _| vec![dense[layer]]);
        assert!(model.run(layers, cards, &run, 2).unwrap() == one, "layers on {cards} cards");
        assert!(delays.taken() > 1000, "{}", delays.taken());
    }
}
