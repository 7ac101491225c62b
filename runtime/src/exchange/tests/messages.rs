//! Messages and rows of one thread: what goes in comes out, and what cannot be is refused.

use super::{NONE, who};
use crate::exchange::{
    BadRow, Board, Epoch, ExchangeError, Full, Late, Mailbox, Patience, Short, State, Unread, Who,
};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

const FIRST: Epoch = Epoch::FIRST;
/// More than it takes where there is nothing to wait for.
const LONG: Patience = Patience { bound: Duration::from_secs(60) };

fn mailbox(capacity: usize) -> Mailbox {
    Mailbox::new(capacity).unwrap()
}

fn send(mailbox: &Mailbox, epoch: Epoch, words: &[u32]) -> Result<(), ExchangeError> {
    mailbox.publish(epoch, &NONE, who(0, 1), |w| w.u32s(words))
}

#[test]
fn every_kind_of_value_comes_out_as_it_went_in() {
    let mailbox = mailbox(64);
    let floats = [1.5, -0.0, f32::INFINITY, f32::from_bits(0x7fc0_1234), f32::MIN_POSITIVE / 2.0];
    for bytes in 0..=9usize {
        let bytes: Vec<i8> = (0..bytes).map(|i| [-128, 127, -1, 0, 1, 77, -77, 5, -6][i]).collect();
        let epoch = Epoch::new(bytes.len() as u32 + 1).unwrap();
        mailbox
            .publish(epoch, &NONE, who(0, 1), |w| {
                w.word(7)?;
                w.f32s(&floats)?;
                w.i8s(&bytes)?;
                w.words((0..3).map(|i| i * 1_000_000_007))?;
                w.u32s(&[u32::MAX, 0])?;
                assert_eq!(w.written(), 11 + bytes.len().div_ceil(4));
                Ok(())
            })
            .unwrap();
        let mut reader = mailbox.wait(epoch, &NONE, who(1, 0)).unwrap();
        assert_eq!(reader.word(), Ok(7));
        let mut floats_out = [0.0; 5];
        reader.f32s(&mut floats_out).unwrap();
        assert_eq!(floats_out.map(f32::to_bits), floats.map(f32::to_bits));
        let mut bytes_out = vec![99; bytes.len()];
        reader.i8s(&mut bytes_out).unwrap();
        assert_eq!(bytes_out, bytes);
        let mut words = [0; 5];
        reader.u32s(&mut words).unwrap();
        assert_eq!(words, [0, 1_000_000_007, 2_000_000_014, u32::MAX, 0]);
        reader.finish().unwrap();
    }
}

#[test]
fn bytes_lie_in_words_from_the_lowest_bits() {
    let mailbox = mailbox(2);
    mailbox.publish(FIRST, &NONE, who(0, 1), |w| w.i8s(&[1, 2, 3, 4, -1])).unwrap();
    let mut words = [0; 2];
    mailbox.wait(FIRST, &NONE, who(1, 0)).unwrap().u32s(&mut words).unwrap();
    assert_eq!(words, [0x0403_0201, 0x0000_00ff]);
}

#[test]
fn a_message_that_does_not_fit_is_not_sent() {
    let mailbox = mailbox(3);
    let too_many =
        mailbox.publish(FIRST, &NONE, who(0, 1), |w| w.u32s(&[1, 2]).and_then(|()| w.f32s(&[0.0; 2])));
    assert_eq!(too_many, Err(Full { capacity: 3, used: 2, wanted: 2 }.into()));
    let endless = mailbox.publish(FIRST, &NONE, who(0, 1), |w| w.words(0..));
    assert_eq!(endless, Err(Full { capacity: 3, used: 3, wanted: 1 }.into()));
    assert_eq!(mailbox.wait(FIRST, &NONE, who(1, 0)).err().map(|late| late.found), Some(State::Nothing));
    send(&mailbox, FIRST, &[4, 5, 6]).unwrap();
    assert_eq!(mailbox.wait(FIRST, &NONE, who(1, 0)).unwrap().word(), Ok(4));
}

#[test]
fn a_reader_gets_no_more_than_was_written() {
    let mailbox = mailbox(8);
    send(&mailbox, FIRST, &[1; 8]).unwrap();
    mailbox.wait(FIRST, &NONE, who(1, 0)).unwrap().u32s(&mut [0; 8]).unwrap();
    let epoch = FIRST.next();
    send(&mailbox, epoch, &[2, 3]).unwrap();
    let mut reader = mailbox.wait(epoch, &NONE, who(1, 0)).unwrap();
    assert_eq!((reader.written(), reader.word()), (2, Ok(2)));
    assert_eq!(reader.f32s(&mut [0.0; 2]), Err(Short { written: 2, read: 1, wanted: 2 }));
    assert_eq!(reader.i8s(&mut [0; 5]), Err(Short { written: 2, read: 1, wanted: 2 }));
    assert_eq!(reader.word(), Ok(3), "a refused read takes nothing");
    assert_eq!(reader.word(), Err(Short { written: 2, read: 2, wanted: 1 }));
}

#[test]
fn words_left_over_are_an_error_but_taken() {
    let mailbox = mailbox(8);
    send(&mailbox, FIRST, &[1, 2, 3]).unwrap();
    let mut reader = mailbox.wait(FIRST, &NONE, who(1, 0)).unwrap();
    reader.word().unwrap();
    assert_eq!(reader.finish(), Err(Unread { written: 3, left: 2 }));
    send(&mailbox, FIRST.next(), &[]).unwrap();
}

#[test]
fn a_message_is_overwritten_only_after_it_was_taken() {
    let mailbox = mailbox(1);
    send(&mailbox, FIRST, &[1]).unwrap();
    let late = send(&mailbox, FIRST.next(), &[2]).unwrap_err();
    assert!(
        late.to_string().starts_with(
            "card 0 waited 0.0 s for card 1 to take what it was sent in layer 17: it has taken nothing, expected epoch 1;"
        ),
        "{late}"
    );
    let mut reader = mailbox.wait(FIRST, &NONE, who(1, 0)).unwrap();
    assert!(send(&mailbox, FIRST.next(), &[2]).is_err(), "it is still being read");
    assert_eq!(reader.word(), Ok(1));
    drop(reader);
    // An epoch in which nothing is sent does no harm.
    send(&mailbox, FIRST.next().next(), &[3]).unwrap();
    assert_eq!(mailbox.wait(FIRST.next().next(), &NONE, who(1, 0)).unwrap().word(), Ok(3));
}

#[test]
fn only_the_expected_epoch_will_do() {
    let mailbox = mailbox(1);
    send(&mailbox, Epoch::LAST, &[1]).unwrap();
    for other in [FIRST, FIRST.next(), Epoch::new(u32::MAX - 2).unwrap()] {
        let late = mailbox.wait(other, &NONE, who(1, 0)).err().unwrap();
        assert_eq!((late.found, late.expected), (State::At(Epoch::LAST), State::At(other)));
    }
    assert_eq!(mailbox.wait(Epoch::LAST, &NONE, who(1, 0)).unwrap().word(), Ok(1));
    let again = mailbox.wait(Epoch::LAST, &NONE, who(1, 0)).err().unwrap();
    assert!(again.to_string().contains("has taken epoch 4294967294 of card 0 in layer 17 before"), "{again}");
    send(&mailbox, Epoch::LAST.next(), &[2]).unwrap();
    assert_eq!(mailbox.wait(FIRST, &NONE, who(1, 0)).unwrap().word(), Ok(2));
}

#[test]
fn a_late_card_is_named_with_layer_and_time() {
    let patience = Patience { bound: Duration::from_millis(60) };
    let late = mailbox(1).wait(FIRST, &patience, who(3, 2)).err().unwrap();
    assert!(late.after >= patience.bound);
    let late = Late { after: Duration::from_millis(10_049), ..late };
    assert_eq!(
        late.to_string(),
        "card 3 waited 10.0 s for card 2 in layer 17: its flag says nothing, expected epoch 1; it hangs or gets no \
         time to run: look for other load on the host, or use fewer threads or cards"
    );
    let board = Board::<AtomicU32>::new(3, 1, 1).unwrap();
    let late = board.wait(FIRST, &NONE, Who { waiting: 0, for_card: 2, layer: None }).unwrap_err();
    assert!(late.to_string().starts_with("card 0 waited 0.0 s for card 2: its flag says nothing"), "{late}");
}

#[test]
fn a_failed_writer_stops_the_reader_at_once() {
    let mut mailbox = mailbox(1);
    mailbox.abort();
    let late = mailbox.wait(FIRST, &LONG, who(1, 0)).err().unwrap();
    assert_eq!(
        late.to_string(),
        "card 0 failed, card 1 waited for it in layer 17 (epoch 1): see the error of card 0"
    );
    assert_eq!(send(&mailbox, FIRST, &[1]), Err(ExchangeError::Closed { card: 0 }));
    mailbox.reset();
    send(&mailbox, FIRST, &[1]).unwrap();
    assert_eq!(mailbox.wait(FIRST, &LONG, who(1, 0)).unwrap().word(), Ok(1));
}

#[test]
fn a_failed_reader_stops_the_writer_at_once() {
    let mailbox = mailbox(1);
    send(&mailbox, FIRST, &[1]).unwrap();
    let reader = mailbox.wait(FIRST, &NONE, who(1, 0)).unwrap();
    mailbox.refuse();
    drop(reader);
    let late = mailbox.publish(FIRST.next(), &LONG, who(0, 1), |_| Ok(())).unwrap_err();
    assert!(matches!(late, ExchangeError::Late(Late { found: State::Failed, .. })), "{late}");
    assert!(late.to_string().starts_with("card 1 failed, card 0 waited for it"), "{late}");
}

#[test]
fn rows_come_from_the_cards_that_posted_them() {
    let mut board = Board::<AtomicU32>::new(3, 4, 2).unwrap();
    board.post(1, FIRST, |rows| rows.put(3, &[1.0, 2.0]).and_then(|()| rows.put(0, &[3.0, -0.0]))).unwrap();
    board.wait(FIRST, &NONE, Who { waiting: 0, for_card: 1, layer: Some(0) }).unwrap();
    let mut row = [0.0; 2];
    board.read(0, &mut row).unwrap();
    assert_eq!(row.map(f32::to_bits), [3f32, -0.0].map(f32::to_bits));
    board.read(3, &mut row).unwrap();
    assert_eq!(row, [1.0, 2.0]);
    assert_eq!(
        board.wait(FIRST, &NONE, Who { waiting: 0, for_card: 2, layer: Some(0) }).unwrap_err().found,
        State::Nothing
    );
    board.post(2, FIRST, |rows| rows.put(1, &[5.0, 6.0])).unwrap();
    board.wait(FIRST, &NONE, Who { waiting: 0, for_card: 2, layer: Some(0) }).unwrap();

    board.fail(2);
    let failed =
        board.wait(FIRST.next(), &LONG, Who { waiting: 0, for_card: 2, layer: Some(9) }).unwrap_err();
    assert_eq!(
        failed.to_string(),
        "card 2 failed, card 0 waited for it in layer 9 (epoch 2): see the error of card 2"
    );
    assert_eq!(board.post(2, FIRST.next(), |_| Ok(())), Err(ExchangeError::Closed { card: 2 }));
    board.reset();
    board.post(2, FIRST, |_| Ok(())).unwrap();
    board.wait(FIRST, &NONE, Who { waiting: 0, for_card: 2, layer: None }).unwrap();
}

#[test]
fn rows_and_cards_that_do_not_exist_are_refused() {
    let board = Board::<AtomicU32>::new(2, 4, 2).unwrap();
    let bad = |row, found| BadRow { row, found, rows: 4, width: 2 };
    assert_eq!(board.post(1, FIRST, |rows| rows.put(4, &[0.0; 2])), Err(bad(4, 2).into()));
    assert_eq!(board.post(1, FIRST, |rows| rows.put(0, &[0.0; 3])), Err(bad(0, 3).into()));
    assert_eq!(
        board.wait(FIRST, &NONE, Who { waiting: 0, for_card: 1, layer: None }).unwrap_err().found,
        State::Nothing,
        "nothing was posted"
    );
    assert_eq!(board.read(usize::MAX, &mut [0.0; 2]), Err(bad(usize::MAX, 2)));
    assert_eq!(board.post(2, FIRST, |_| Ok(())), Err(ExchangeError::NoCard { card: 2, cards: 2 }));
    let absent = board.wait(FIRST, &LONG, Who { waiting: 0, for_card: 5, layer: Some(1) }).unwrap_err();
    assert_eq!(absent.to_string(), "card 0 waits for card 5 in layer 1, which has no place in this exchange");
}

#[test]
fn sizes_that_no_memory_has_are_refused() {
    assert!(Mailbox::<AtomicU32>::new(usize::MAX).is_err());
    assert!(Board::<AtomicU32>::new(2, usize::MAX, 2).is_err());
    assert!(Board::<AtomicU32>::new(2, usize::MAX / 8, 2).is_err());
}
