//! Small models of the protocol in all orders in which threads and memory may act.
//!
//! With words of loom they show that no reader sees words of another epoch and that nobody waits for ever, with a
//! ledger that no two accesses race.

use super::ledger::{Ledger, ModelWord};
use super::{ENDLESS, NONE, who};
use crate::exchange::{Board, Epoch, ExchangeError, Full, Late, Mailbox, Patience, State};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;

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
                for epoch in [Epoch::LAST, Epoch::FIRST] {
                    if publish(&mailbox, epoch, &patience, [content(0, epoch); 2]).is_err() {
                        assert_eq!(patience, NONE);
                        return;
                    }
                }
            })
        };
        W::enter(0);
        for epoch in [Epoch::LAST, Epoch::FIRST] {
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

/// Card 0 asks the others and reads their rows, twice.
fn two_requests<W: ModelWord>(cards: usize, preemptions: Option<usize>) {
    explore(preemptions, move || {
        let requests: Arc<Vec<Mailbox<W>>> = Arc::new((1..cards).map(|_| Mailbox::new(1).unwrap()).collect());
        let board = Arc::new(Board::<W>::new(cards, cards - 1, 1).unwrap());
        let others: Vec<_> = (1..cards)
            .map(|card| {
                let (requests, board) = (Arc::clone(&requests), Arc::clone(&board));
                thread::spawn(move || {
                    W::enter(card);
                    for epoch in [Epoch::LAST, Epoch::FIRST] {
                        let mut request = requests[card - 1].wait(epoch, &ENDLESS, who(card, 0)).unwrap();
                        assert_eq!(request.word(), Ok(content(0, epoch)), "words of another epoch");
                        request.finish().unwrap();
                        let row = [f32::from_bits(content(card as u32, epoch))];
                        board.post(card, epoch, |rows| rows.put(card - 1, &row)).unwrap();
                    }
                })
            })
            .collect();
        W::enter(0);
        for epoch in [Epoch::LAST, Epoch::FIRST] {
            for card in 1..cards {
                requests[card - 1]
                    .publish(epoch, &ENDLESS, who(0, card), |w| w.word(content(0, epoch)))
                    .unwrap();
            }
            for card in 1..cards {
                board.wait(card, epoch, &ENDLESS, None).unwrap();
                let mut row = [0.0];
                board.read(card - 1, &mut row).unwrap();
                assert_eq!(row[0].to_bits(), content(card as u32, epoch), "rows of another epoch");
            }
        }
        for card in others {
            card.join().unwrap();
        }
    });
}

#[test]
fn two_requests_to_one_card_get_their_rows() {
    two_requests::<AtomicU32>(2, None);
    two_requests::<Ledger>(2, None);
}

#[test]
fn two_requests_to_two_cards_get_their_rows() {
    two_requests::<AtomicU32>(3, Some(2));
    two_requests::<Ledger>(3, Some(1));
}

/// Three cards in a row hand over two times.
fn handovers<W: ModelWord>(preemptions: usize) {
    fn forward<W: ModelWord>(mailbox: &Mailbox<W>, from: usize, epoch: Epoch, value: u32) {
        let fill = |w: &mut crate::exchange::Writer<'_, W>| -> Result<(), Full> { w.word(value) };
        mailbox.publish(epoch, &ENDLESS, who(from, from + 1), fill).unwrap();
    }
    fn receive<W: ModelWord>(mailbox: &Mailbox<W>, to: usize, epoch: Epoch) -> u32 {
        mailbox.wait(epoch, &ENDLESS, who(to, to - 1)).unwrap().word().unwrap()
    }
    explore(Some(preemptions), || {
        let ways: Arc<[Mailbox<W>; 2]> = Arc::new([Mailbox::new(1).unwrap(), Mailbox::new(1).unwrap()]);
        let first = {
            let ways = Arc::clone(&ways);
            thread::spawn(move || {
                W::enter(1);
                for epoch in [Epoch::LAST, Epoch::FIRST] {
                    forward(&ways[0], 0, epoch, content(0, epoch));
                }
            })
        };
        let second = {
            let ways = Arc::clone(&ways);
            thread::spawn(move || {
                W::enter(2);
                for epoch in [Epoch::LAST, Epoch::FIRST] {
                    let value = receive(&ways[0], 1, epoch);
                    forward(&ways[1], 1, epoch, value + 1);
                }
            })
        };
        W::enter(0);
        for epoch in [Epoch::LAST, Epoch::FIRST] {
            assert_eq!(receive(&ways[1], 2, epoch), content(0, epoch) + 1, "words of another epoch");
        }
        first.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn handovers_along_three_cards_arrive_whole() {
    handovers::<AtomicU32>(2);
    handovers::<Ledger>(1);
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
        match board.wait(1, Epoch::FIRST, &ENDLESS, None) {
            Ok(()) => {
                let mut row = [0.0];
                board.read(0, &mut row).unwrap();
                assert_eq!(row, [1.5], "rows of another epoch");
            }
            Err(late) => assert_eq!(late.found, State::Failed),
        }
        let late = board.wait(1, Epoch::FIRST.next(), &ENDLESS, None).unwrap_err();
        assert_eq!(late.found, State::Failed);
        card.join().unwrap();
    });
}
