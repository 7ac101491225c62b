//! Many exchanges by real threads with delays at every step, checked word for word.

use super::who;
use crate::exchange::{Board, Delays, Epoch, ExchangeError, Mailbox, Patience, Reader, Who};
use std::sync::Arc;
use std::time::Duration;

const STEPS: u32 = 1_000;
const PATIENCE: Patience = Patience { bound: Duration::from_secs(60) };
const ROWS: usize = 6;
const WIDTH: usize = 20;

/// So that the counters wrap half-way.
fn start() -> Epoch {
    Epoch::new(u32::MAX - STEPS / 2).unwrap()
}

/// What is sent in a step: any word, different everywhere.
fn word(step: u32, card: usize, i: usize) -> u32 {
    let x = (u64::from(step) << 32 | (card as u64) << 24 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> 32) as u32
}

fn words(step: u32, card: usize, count: usize) -> Vec<u32> {
    (0..count).map(|i| word(step, card, i)).collect()
}

fn floats(step: u32, card: usize, count: usize) -> Vec<f32> {
    words(step, card, count).into_iter().map(f32::from_bits).collect()
}

fn bytes(step: u32, card: usize, count: usize) -> Vec<i8> {
    words(step, card, count).into_iter().map(|word| word as i8).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Ids, quants and scales of a step for a card: as many as the step says.
fn sizes(step: u32, card: usize) -> [usize; 3] {
    [word(step, card, 1000) % 9, word(step, card, 1001) % 90, word(step, card, 1002) % 30].map(|n| n as usize)
}

fn send(mailbox: &Mailbox, step: u32, epoch: Epoch, from: usize, to: usize) -> Result<(), ExchangeError> {
    let [ids, quants, scales] = sizes(step, to);
    mailbox.publish(epoch, &PATIENCE, who(from, to), |w| {
        w.word(step)?;
        w.u32s(&words(step, to, ids))?;
        w.i8s(&bytes(step, to, quants))?;
        w.f32s(&floats(step, to, scales))
    })
}

fn check(mut message: Reader<'_>, step: u32, to: usize) {
    let [ids, quants, scales] = sizes(step, to);
    assert_eq!(message.word(), Ok(step));
    let mut got = (vec![0; ids], vec![0; quants], vec![0.0; scales]);
    message.u32s(&mut got.0).unwrap();
    message.i8s(&mut got.1).unwrap();
    message.f32s(&mut got.2).unwrap();
    assert_eq!(got.0, words(step, to, ids), "step {step}");
    assert_eq!(got.1, bytes(step, to, quants), "step {step}");
    assert_eq!(bits(&got.2), words(step, to, scales), "step {step}");
    message.finish().unwrap();
}

/// Whether a card has work in a step: now and then one has none, and sends nothing.
fn works(step: u32, card: usize) -> bool {
    !word(step, card, 2000).is_multiple_of(8)
}

/// The card whose row it is.
fn owner(step: u32, row: usize, cards: usize) -> usize {
    word(step, 0, 3000 + row) as usize % cards
}

fn requests(cards: usize, seed: u64) {
    let delays = Arc::new(Delays::new(seed, Duration::from_micros(100)));
    let mailbox = || Mailbox::new(200).unwrap().with_delays(Some(&delays));
    let requests: Vec<Mailbox> = (1..cards).map(|_| mailbox()).collect();
    let board: Board = Board::new(cards, ROWS, WIDTH).unwrap().with_delays(Some(&delays));
    let rows_of = |step, card| (0..ROWS).filter(move |&row| owner(step, row, cards) == card);
    let steps = || (0..STEPS).zip(std::iter::successors(Some(start()), |epoch| Some(epoch.next())));
    std::thread::scope(|scope| {
        for card in 1..cards {
            let (request, board) = (&requests[card - 1], &board);
            scope.spawn(move || {
                for (step, epoch) in steps().filter(|&(step, _)| works(step, card)) {
                    check(request.wait(epoch, &PATIENCE, who(card, 0)).unwrap(), step, card);
                    board
                        .post(card, epoch, |rows| {
                            rows_of(step, card).try_for_each(|row| rows.put(row, &floats(step, row, WIDTH)))
                        })
                        .unwrap();
                }
            });
        }
        for (step, epoch) in steps() {
            let asked = || (1..cards).filter(|&card| works(step, card));
            for card in asked() {
                send(&requests[card - 1], step, epoch, 0, card).unwrap();
            }
            for card in asked() {
                board.wait(epoch, &PATIENCE, Who { waiting: 0, for_card: card, layer: Some(step) }).unwrap();
                for row in rows_of(step, card) {
                    let mut got = [0.0; WIDTH];
                    board.read(row, &mut got).unwrap();
                    assert_eq!(bits(&got), words(step, row, WIDTH), "step {step}, card {card}, row {row}");
                }
            }
        }
    });
    assert!(delays.taken() > u64::from(STEPS) * 20, "{} delays", delays.taken());
}

#[test]
fn two_cards_answer_a_thousand_requests() {
    requests(2, 1);
}

#[test]
fn three_cards_answer_a_thousand_requests() {
    requests(3, 2);
}

#[test]
fn four_cards_answer_a_thousand_requests() {
    requests(4, 3);
}

#[test]
fn four_cards_hand_over_a_thousand_times() {
    let delays = Arc::new(Delays::new(4, Duration::from_micros(100)));
    let ways: Vec<Mailbox> = (0..3).map(|_| Mailbox::new(200).unwrap().with_delays(Some(&delays))).collect();
    let steps = || (0..STEPS).zip(std::iter::successors(Some(start()), |epoch| Some(epoch.next())));
    std::thread::scope(|scope| {
        for card in 0..4usize {
            let (from, to) = (card.checked_sub(1).map(|way| &ways[way]), ways.get(card));
            scope.spawn(move || {
                for (step, epoch) in steps() {
                    if let Some(from) = from {
                        check(from.wait(epoch, &PATIENCE, who(card, card - 1)).unwrap(), step, card);
                    }
                    if let Some(to) = to {
                        send(to, step, epoch, card, card + 1).unwrap();
                    }
                }
            });
        }
    });
}

/// A card fails somewhere; all others end at once, and say who it was.
#[test]
fn a_failure_in_any_step_ends_all_cards() {
    for failing in [0, 1, 7, 8, 99] {
        let requests: Vec<Mailbox> = (0..2).map(|_| Mailbox::new(1).unwrap()).collect();
        let board: Board = Board::new(3, 2, 1).unwrap();
        let steps = || std::iter::successors(Some(Epoch::FIRST), |epoch| Some(epoch.next())).zip(0..);
        let (requests, board) = (&requests, &board);
        let ends = std::thread::scope(|scope| {
            let cards: Vec<_> = (1..3)
                .map(|card| {
                    scope.spawn(move || {
                        let request = &requests[card - 1];
                        for (epoch, step) in steps() {
                            if let Err(late) = request.wait(epoch, &PATIENCE, who(card, 0)) {
                                return (late.who.for_card, late.found);
                            }
                            if card == 2 && step == failing {
                                board.fail(card);
                                request.refuse();
                                return (card, crate::exchange::State::Failed);
                            }
                            board.post(card, epoch, |rows| rows.put(card - 1, &[0.5])).unwrap();
                        }
                        unreachable!("steps do not end")
                    })
                })
                .collect();
            let step = |epoch| {
                for card in 1..3 {
                    requests[card - 1].publish(epoch, &PATIENCE, who(0, card), |w| w.word(1))?;
                }
                (1..3).try_for_each(|card| {
                    board
                        .wait(epoch, &PATIENCE, Who { waiting: 0, for_card: card, layer: Some(4) })
                        .map_err(ExchangeError::from)
                })
            };
            let error = steps().find_map(|(epoch, _)| step(epoch).err()).unwrap();
            assert!(error.to_string().starts_with("card 2 failed, card 0 waited for it in layer"), "{error}");
            requests.iter().for_each(Mailbox::abort);
            cards.into_iter().map(|card| card.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(ends, [(0, crate::exchange::State::Failed), (2, crate::exchange::State::Failed)]);
    }
}
