//! Models in which one rule is broken each. That they fail shows that the models of the right protocol say something.

use super::ledger::{Ledger, ModelWord, Weak};
use super::models::{EPOCHS, content, explore, handovers, publish, take, two_messages, two_requests};
use super::{ENDLESS, NONE, who};
use crate::exchange::{Awaited, Board, Epoch, ExchangeError, Late, Mailbox, Patience, State, Who};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;

/// Lets the flag announce words that are not written yet.
fn flag_before_words<W: ModelWord>(
    mailbox: &Mailbox<W>,
    epoch: Epoch,
    patience: &Patience,
    words: [u32; 2],
) -> Result<(), ExchangeError> {
    mailbox.taken.wait(mailbox.flag.own(), patience, who(0, 1), Awaited::Taken)?;
    mailbox.flag.raise(State::At(epoch));
    mailbox.written.set(2);
    mailbox.words.iter().zip(words).for_each(|(word, value)| word.set(value));
    Ok(())
}

/// Writes without waiting until the last message is taken.
fn unacknowledged<W: ModelWord>(
    mailbox: &Mailbox<W>,
    epoch: Epoch,
    _: &Patience,
    words: [u32; 2],
) -> Result<(), ExchangeError> {
    mailbox.words.iter().zip(words).for_each(|(word, value)| word.set(value));
    mailbox.written.set(2);
    mailbox.flag.raise(State::At(epoch));
    Ok(())
}

/// Acknowledges before it has read.
fn taken_before_read<W: ModelWord>(
    mailbox: &Mailbox<W>,
    epoch: Epoch,
    patience: &Patience,
) -> Result<[u32; 2], Late> {
    drop(mailbox.wait(epoch, patience, who(1, 0))?);
    Ok([mailbox.words[0].get(), mailbox.words[1].get()])
}

/// Acknowledges in no order with its reads.
fn taken_without_order<W: ModelWord>(
    mailbox: &Mailbox<W>,
    epoch: Epoch,
    patience: &Patience,
) -> Result<[u32; 2], Late> {
    let mut reader = mailbox.wait(epoch, patience, who(1, 0))?;
    let mut words = [0; 2];
    reader.u32s(&mut words).unwrap();
    std::mem::forget(reader);
    mailbox.taken.0.set(epoch.get());
    Ok(words)
}

#[test]
#[should_panic(expected = "words of another epoch")]
fn a_flag_before_its_words_is_found() {
    two_messages::<AtomicU32>(NONE, flag_before_words, take);
}

#[test]
#[should_panic(expected = "words of another epoch")]
fn a_flag_that_is_written_without_order_is_found() {
    two_messages::<Weak<true, false>>(NONE, publish, take);
}

#[test]
#[should_panic(expected = "words of another epoch")]
fn a_flag_that_is_read_without_order_is_found() {
    two_messages::<Weak<false, true>>(NONE, publish, take);
}

#[test]
#[should_panic(expected = "of another epoch")]
fn flags_without_order_are_found_among_three_cards() {
    two_requests::<Weak<true, false>>(3, Some(2), NONE);
}

#[test]
#[should_panic(expected = "words of another epoch")]
fn flags_without_order_are_found_in_handovers() {
    handovers::<Weak<true, false>>(2);
}

#[test]
#[should_panic(expected = "words of another epoch")]
fn a_missing_acknowledge_is_found() {
    two_messages::<AtomicU32>(NONE, unacknowledged, take);
}

#[test]
#[should_panic(expected = "words of another epoch")]
fn an_acknowledge_before_the_last_read_is_found() {
    two_messages::<AtomicU32>(NONE, publish, taken_before_read);
}

#[test]
#[should_panic(expected = "a write races with another access")]
fn an_acknowledge_without_order_is_found() {
    two_messages::<Ledger>(NONE, publish, taken_without_order);
}

/// A card that posts twice; it has either read a request before each, or just goes on.
fn two_posts(asked: bool) {
    explore(None, move || {
        let board = Arc::new(Board::<AtomicU32>::new(2, 1, 1).unwrap());
        let request = Arc::new(Mailbox::<AtomicU32>::new(0).unwrap());
        let card = {
            let (board, request) = (Arc::clone(&board), Arc::clone(&request));
            thread::spawn(move || {
                for epoch in EPOCHS {
                    if asked && request.wait(epoch, &NONE, who(1, 0)).is_err() {
                        return;
                    }
                    let row = [f32::from_bits(content(1, epoch))];
                    board.post(1, epoch, |rows| rows.put(0, &row)).unwrap();
                }
            })
        };
        for epoch in EPOCHS {
            if asked && request.publish(epoch, &NONE, who(0, 1), |_| Ok(())).is_err() {
                break;
            }
            if board.wait(epoch, &NONE, Who { waiting: 0, for_card: 1, layer: None }).is_err() {
                break;
            }
            let mut row = [0.0];
            board.read(0, &mut row).unwrap();
            assert_eq!(row[0].to_bits(), content(1, epoch), "rows of another epoch");
        }
        card.join().unwrap();
    });
}

#[test]
fn rows_that_were_asked_for_are_whole() {
    two_posts(true);
}

#[test]
#[should_panic(expected = "rows of another epoch")]
fn rows_posted_before_they_were_asked_for_are_found() {
    two_posts(false);
}

/// Nobody says that the card has failed.
#[test]
#[should_panic(expected = "exceeded maximum number of branches")]
fn a_card_that_fails_in_silence_is_waited_for() {
    explore(None, || {
        let board = Arc::new(Board::<AtomicU32>::new(2, 1, 1).unwrap());
        let card = {
            let board = Arc::clone(&board);
            thread::spawn(move || board.post(1, Epoch::FIRST, |_| Ok(())).unwrap())
        };
        let _ = board.wait(Epoch::FIRST.next(), &ENDLESS, Who { waiting: 0, for_card: 1, layer: None });
        card.join().unwrap();
    });
}
