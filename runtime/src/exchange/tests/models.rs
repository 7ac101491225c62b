//! Small models of the protocol in all orders in which threads and memory may act.
//!
//! With words of loom they show that no reader sees words of another epoch and that nobody waits for ever, with a
//! ledger that no two accesses race.

use super::ledger::{Ledger, ModelWord};
use super::{ENDLESS, NONE, who};
use crate::exchange::{Board, Epoch, ExchangeError, Late, Mailbox, Patience, State, Who};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How a writer sends two words.
pub(super) type Publish<W> = fn(&Mailbox<W>, Epoch, &Patience, [u32; 2]) -> Result<(), ExchangeError>;
/// How a reader takes two words.
pub(super) type Take<W> = fn(&Mailbox<W>, Epoch, &Patience) -> Result<[u32; 2], Late>;

pub(super) fn publish<W: ModelWord>(
    mailbox: &Mailbox<W>,
    epoch: Epoch,
    patience: &Patience,
    words: [u32; 2],
) -> Result<(), ExchangeError> {
    mailbox.publish(epoch, patience, who(0, 1), |w| w.u32s(&words))
}

pub(super) fn take<W: ModelWord>(
    mailbox: &Mailbox<W>,
    epoch: Epoch,
    patience: &Patience,
) -> Result<[u32; 2], Late> {
    let mut words = [0; 2];
    let mut reader = mailbox.wait(epoch, patience, who(1, 0))?;
    assert_eq!(reader.written(), 2, "words of another epoch");
    reader.u32s(&mut words).unwrap();
    Ok(words)
}

/// The exchanges of a model; the counter wraps between them.
pub(super) const EPOCHS: [Epoch; 2] = [Epoch::LAST, Epoch::FIRST];

/// What card `card` sends in an exchange.
pub(super) fn content(card: u32, epoch: Epoch) -> u32 {
    epoch.get().wrapping_mul(16) + card
}

/// Tries all orders with at most so many preemptions; with all that there are for `None`.
pub(super) fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

/// One card sends another two messages.
pub(super) fn two_messages<W: ModelWord>(patience: Patience, publish: Publish<W>, take: Take<W>) {
    explore(None, move || {
        let mailbox = Arc::new(Mailbox::<W>::new(2).unwrap());
        let writer = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || {
                W::enter(1);
                for epoch in EPOCHS {
                    if publish(&mailbox, epoch, &patience, [content(0, epoch); 2]).is_err() {
                        assert_eq!(patience, NONE);
                        return;
                    }
                }
            })
        };
        W::enter(0);
        for epoch in EPOCHS {
            match take(&mailbox, epoch, &patience) {
                Ok(words) => assert_eq!(words, [content(0, epoch); 2], "words of another epoch"),
                Err(_) => {
                    assert_eq!(patience, NONE);
                    break;
                }
            }
        }
        writer.join().unwrap();
    });
}

#[test]
fn two_messages_arrive_whole() {
    two_messages::<AtomicU32>(ENDLESS, publish, take);
    two_messages::<AtomicU32>(NONE, publish, take);
}

#[test]
fn two_messages_do_not_race() {
    two_messages::<Ledger>(ENDLESS, publish, take);
}

/// How a thread of a model ends that has no more patience: two looks. With three threads two waiters may take turns
/// for ever, so each gives up, and where all three took theirs in time the exchange was complete.
type End = Result<(), ExchangeError>;

/// Counts those of the orders tried in which the exchange was complete.
#[derive(Clone, Default)]
struct Complete(std::sync::Arc<AtomicUsize>);

impl Complete {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn all(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Card 0 asks the others and reads their rows, twice. Gives the number of orders with all of that.
pub(super) fn two_requests<W: ModelWord>(
    cards: usize,
    preemptions: Option<usize>,
    patience: Patience,
) -> usize {
    fn answer<W: ModelWord>(request: &Mailbox<W>, board: &Board<W>, card: usize, patience: &Patience) -> End {
        for epoch in EPOCHS {
            let mut request = request.wait(epoch, patience, who(card, 0))?;
            assert_eq!(request.word(), Ok(content(0, epoch)), "words of another epoch");
            request.finish()?;
            let row = [f32::from_bits(content(card as u32, epoch))];
            board.post(card, epoch, |rows| rows.put(card - 1, &row))?;
        }
        Ok(())
    }
    fn ask<W: ModelWord>(requests: &[Mailbox<W>], board: &Board<W>, patience: &Patience) -> End {
        for epoch in EPOCHS {
            for (card, request) in (1..).zip(requests) {
                request.publish(epoch, patience, who(0, card), |w| w.word(content(0, epoch)))?;
            }
            for card in 1..=requests.len() {
                board.wait(epoch, patience, Who { waiting: 0, for_card: card, layer: None })?;
                let mut row = [0.0];
                board.read(card - 1, &mut row)?;
                assert_eq!(row[0].to_bits(), content(card as u32, epoch), "rows of another epoch");
            }
        }
        Ok(())
    }
    let complete = Complete::default();
    let count = complete.clone();
    explore(preemptions, move || {
        let requests: Arc<Vec<Mailbox<W>>> = Arc::new((1..cards).map(|_| Mailbox::new(1).unwrap()).collect());
        let board = Arc::new(Board::<W>::new(cards, cards - 1, 1).unwrap());
        let others: Vec<_> = (1..cards)
            .map(|card| {
                let (requests, board) = (Arc::clone(&requests), Arc::clone(&board));
                thread::spawn(move || {
                    W::enter(card);
                    if answer(&requests[card - 1], &board, card, &patience).is_err() {
                        assert_eq!(patience, NONE);
                    }
                })
            })
            .collect();
        W::enter(0);
        match ask(&requests, &board, &patience) {
            Ok(()) => count.add(),
            Err(_) => assert_eq!(patience, NONE),
        }
        for card in others {
            card.join().unwrap();
        }
    });
    complete.all()
}

#[test]
fn two_requests_to_one_card_get_their_rows() {
    assert!(two_requests::<AtomicU32>(2, None, ENDLESS) > 0);
    assert!(two_requests::<Ledger>(2, None, ENDLESS) > 0);
}

#[test]
fn two_requests_to_two_cards_get_their_rows() {
    assert!(two_requests::<AtomicU32>(3, Some(3), NONE) > 0);
    assert!(two_requests::<Ledger>(3, Some(3), NONE) > 0);
}

/// Three cards in a row hand over two times. Gives the number of orders with all of that.
pub(super) fn handovers<W: ModelWord>(preemptions: usize) -> usize {
    fn forward<W: ModelWord>(mailbox: &Mailbox<W>, from: usize, epoch: Epoch, value: u32) -> End {
        mailbox.publish(epoch, &NONE, who(from, from + 1), |w| w.word(value))
    }
    fn receive<W: ModelWord>(mailbox: &Mailbox<W>, to: usize, epoch: Epoch) -> Result<u32, ExchangeError> {
        Ok(mailbox.wait(epoch, &NONE, who(to, to - 1))?.word()?)
    }
    let complete = Complete::default();
    let count = complete.clone();
    explore(Some(preemptions), move || {
        let ways: Arc<[Mailbox<W>; 2]> = Arc::new([Mailbox::new(1).unwrap(), Mailbox::new(1).unwrap()]);
        let first = {
            let ways = Arc::clone(&ways);
            thread::spawn(move || -> End {
                W::enter(1);
                EPOCHS.into_iter().try_for_each(|epoch| forward(&ways[0], 0, epoch, content(0, epoch)))
            })
        };
        let second = {
            let ways = Arc::clone(&ways);
            thread::spawn(move || -> End {
                W::enter(2);
                for epoch in EPOCHS {
                    let value = receive(&ways[0], 1, epoch)?;
                    forward(&ways[1], 1, epoch, value + 1)?;
                }
                Ok(())
            })
        };
        W::enter(0);
        let third = EPOCHS.into_iter().try_for_each(|epoch| {
            assert_eq!(receive(&ways[1], 2, epoch)?, content(0, epoch) + 1, "words of another epoch");
            Ok::<_, ExchangeError>(())
        });
        let ends = [first.join().unwrap(), second.join().unwrap(), third];
        if ends.iter().all(Result::is_ok) {
            count.add();
        }
    });
    complete.all()
}

#[test]
fn handovers_along_three_cards_arrive_whole() {
    assert!(handovers::<AtomicU32>(3) > 0);
    assert!(handovers::<Ledger>(3) > 0);
}

#[test]
fn an_aborted_mailbox_gives_its_last_message_or_none() {
    explore(None, || {
        let mailbox = Arc::new(Mailbox::<AtomicU32>::new(2).unwrap());
        let writer = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || {
                publish(&mailbox, Epoch::FIRST, &ENDLESS, [content(0, Epoch::FIRST); 2]).unwrap();
                mailbox.abort();
            })
        };
        match take(&mailbox, Epoch::FIRST, &ENDLESS) {
            Ok(words) => assert_eq!(words, [content(0, Epoch::FIRST); 2], "words of another epoch"),
            Err(late) => assert_eq!(late.found, State::Failed),
        }
        let late = take(&mailbox, Epoch::FIRST.next(), &ENDLESS).unwrap_err();
        assert_eq!(late.found, State::Failed);
        writer.join().unwrap();
    });
}

#[test]
fn a_refusal_stops_the_writer() {
    explore(None, || {
        let mailbox = Arc::new(Mailbox::<AtomicU32>::new(2).unwrap());
        let reader = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || {
                let words = take(&mailbox, Epoch::FIRST, &ENDLESS).unwrap();
                assert_eq!(words, [content(0, Epoch::FIRST); 2], "words of another epoch");
                mailbox.refuse();
            })
        };
        let mut epoch = Epoch::FIRST;
        let stopped = loop {
            match publish(&mailbox, epoch, &ENDLESS, [content(0, epoch); 2]) {
                Ok(()) => epoch = epoch.next(),
                Err(stopped) => break stopped,
            }
        };
        assert!(epoch == Epoch::FIRST.next() || epoch == Epoch::FIRST.next().next());
        assert!(matches!(stopped, ExchangeError::Late(Late { found: State::Failed, .. })));
        reader.join().unwrap();
    });
}

#[test]
fn a_card_that_fails_stops_card_0() {
    explore(None, || {
        let board = Arc::new(Board::<AtomicU32>::new(2, 1, 1).unwrap());
        let card = {
            let board = Arc::clone(&board);
            thread::spawn(move || {
                board.post(1, Epoch::FIRST, |rows| rows.put(0, &[1.5])).unwrap();
                board.fail(1);
            })
        };
        match board.wait(Epoch::FIRST, &ENDLESS, Who { waiting: 0, for_card: 1, layer: None }) {
            Ok(()) => {
                let mut row = [0.0];
                board.read(0, &mut row).unwrap();
                assert_eq!(row, [1.5], "rows of another epoch");
            }
            Err(late) => assert_eq!(late.found, State::Failed),
        }
        let late = board
            .wait(Epoch::FIRST.next(), &ENDLESS, Who { waiting: 0, for_card: 1, layer: None })
            .unwrap_err();
        assert_eq!(late.found, State::Failed);
        card.join().unwrap();
    });
}
