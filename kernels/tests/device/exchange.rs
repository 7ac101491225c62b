//! What cards give each other. One device plays both sides, one after the other: whoever waits finds what it waits for, or
//! waits in vain. That the kernels meet on two cards is for who has them.

use crate::launch::{Arg, launch, read, write};
use crate::random::Rng;

/// Words of the end of a slot, and where its own words are.
const END: usize = 16;
const COUNT: usize = 8;
const NOTE: usize = 9;
const SLOT: usize = 16_384;

const FAILED: u32 = u32::MAX;
/// A millisecond: a thousand looks of a device without a clock.
const PATIENCE: u64 = 1_000_000;
const TAG: u64 = 0xabc_def0_1234_5678;
const POISON: u32 = 0x7fc0_dead;

/// A card's words that say what is wrong.
#[derive(Clone, Debug, Default, PartialEq)]
struct Wrong {
    trouble: [u32; 1],
    report: [u64; 1],
}

/// A way for messages.
struct Way {
    words: Vec<u32>,
    /// At the card that writes, and at the one that reads.
    ends: [Vec<u32>; 2],
    wrong: [Wrong; 2],
}

impl Way {
    fn new(slots: usize, words: usize, epoch: u32) -> Self {
        let mut ends = [vec![0; slots * END], vec![0; slots * END]];
        for slot in 0..slots {
            // What was sent last, and was taken.
            ends[0][slot * END] = epoch;
            ends.iter_mut().for_each(|end| end[slot * END + COUNT] = epoch);
        }
        Self { words: vec![POISON; words], ends, wrong: Default::default() }
    }

    /// Sends `parts`; false where there is no device.
    fn send(&mut self, parts: &[&[u32]], patience: u64) -> bool {
        let [own, far] = &mut self.ends;
        let mut args: Vec<Arg<'_>> = parts.iter().map(|p| read(p)).collect();
        args.extend((parts.len()..6).map(|_| Arg::Null));
        args.extend([write(&mut self.words), write(own), write(far)]);
        args.extend([write(&mut self.wrong[0].trouble), write(&mut self.wrong[0].report)]);
        args.extend((0..6).map(|i| Arg::U64(parts.get(i).map_or(0, |p| 4 * p.len() as u64))));
        args.extend([Arg::U64(patience), Arg::U64(TAG)]);
        let bytes: usize = parts.iter().map(|p| 4 * p.len()).sum();
        launch("gantry_exchange_send", [bytes.div_ceil(SLOT), 1, 1], &mut args)
    }

    fn receive(&mut self, parts: &mut [Vec<u32>], patience: u64) -> bool {
        let [far, own] = &mut self.ends;
        let lengths: Vec<usize> = parts.iter().map(|p| 4 * p.len()).collect();
        let mut args: Vec<Arg<'_>> = parts.iter_mut().map(|p| write(p)).collect();
        args.extend((lengths.len()..6).map(|_| Arg::Null));
        args.extend([write(&mut self.words), write(own), write(far)]);
        args.extend([write(&mut self.wrong[1].trouble), write(&mut self.wrong[1].report)]);
        args.extend((0..6).map(|i| Arg::U64(lengths.get(i).map_or(0, |n| *n as u64))));
        args.extend([Arg::U64(patience), Arg::U64(TAG)]);
        launch("gantry_exchange_receive", [lengths.iter().sum::<usize>().div_ceil(SLOT), 1, 1], &mut args)
    }
}

fn random(rng: &mut Rng, n: usize) -> Vec<u32> {
    (0..n).map(|_| rng.below(1 << 31) as u32).collect()
}

#[test]
fn messages_arrive_whole_and_epochs_pass_what_is_no_epoch() {
    let mut rng = Rng(11);
    // The two before the wrap, the wrap, and on.
    let mut epoch = u32::MAX - 3;
    let mut way = Way::new(5, 5 * SLOT / 4, epoch);
    let sizes: [&[usize]; 6] = [&[4], &[4, 4096, 8, 16, 4, 12], &[4096], &[4092, 8], &[16_000, 400], &[4]];
    for sizes in sizes {
        let sent: Vec<Vec<u32>> = sizes.iter().map(|n| random(&mut rng, *n)).collect();
        let mut got: Vec<Vec<u32>> = sizes.iter().map(|n| vec![POISON; *n]).collect();
        let parts: Vec<&[u32]> = sent.iter().map(Vec::as_slice).collect();
        if !way.send(&parts, PATIENCE) {
            return;
        }
        epoch = if epoch >= u32::MAX - 1 { 1 } else { epoch + 1 };
        assert_eq!((way.ends[1][0], way.ends[0][COUNT]), (epoch, epoch), "sent and not yet taken");
        way.receive(&mut got, PATIENCE);
        assert_eq!((way.ends[0][0], way.ends[1][COUNT]), (epoch, epoch), "taken");
        assert_eq!(got, sent);
        assert_eq!(way.wrong, <[Wrong; 2]>::default());
    }
    // A slot counts what came through it alone.
    assert_eq!(way.ends[1][4 * END], u32::MAX - 2, "only the longest has a fifth slot");
}

#[test]
fn who_waits_in_vain_says_so_and_holds_nobody_up() {
    let sent = vec![7; 8];
    let mut way = Way::new(1, SLOT / 4, 5);
    // Nothing was sent.
    let mut got = vec![vec![POISON; 8]];
    if !way.receive(&mut got, PATIENCE) {
        return;
    }
    assert_eq!(got[0], vec![POISON; 8], "nothing came");
    assert_eq!(way.wrong[1], Wrong { trouble: [1], report: [1 << 60 | TAG] });
    assert_eq!(way.ends[1][NOTE..NOTE + 3], [1, 0, 6], "the flag said nothing, 6 was expected");
    assert_eq!(way.ends[0][0], FAILED, "the sender is told");
    // The sender finds that and does not wait, however patient it is.
    way.send(&[&sent], u64::MAX >> 1);
    assert_eq!(way.wrong[0], Wrong { trouble: [1], report: [2 << 60 | TAG] });
    assert_eq!(way.ends[0][NOTE..NOTE + 3], [2, FAILED, 5]);
    assert_eq!((way.ends[1][0], way.words[0]), (FAILED, POISON), "and sends nothing but that");
    // From now on neither waits, and the first report stays.
    way.send(&[&sent], u64::MAX >> 1);
    way.receive(&mut got, u64::MAX >> 1);
    assert_eq!(got[0], vec![POISON; 8]);
    assert_eq!([way.wrong[0].report, way.wrong[1].report], [[2 << 60 | TAG], [1 << 60 | TAG]]);

    // What was sent before was not taken.
    let mut way = Way::new(1, SLOT / 4, 5);
    way.ends[0][0] = 4;
    way.send(&[&sent], PATIENCE);
    assert_eq!((way.wrong[0].report, way.words[0]), ([2 << 60 | TAG], POISON), "words not taken yet stay");
    assert_eq!(way.ends[0][NOTE..NOTE + 3], [2, 4, 5]);
    // An epoch that is later than the one expected is not it.
    let mut way = Way::new(1, SLOT / 4, 5);
    way.ends[1][0] = 7;
    way.receive(&mut got, PATIENCE);
    assert_eq!((way.ends[1][NOTE..NOTE + 3].to_vec(), &got[0]), (vec![1, 7, 6], &vec![POISON; 8]));
}

/// Rows of pairs on their way to the card that routes, and what both cards know of the experts.
struct Board {
    used: usize,
    width: usize,
    ids: Vec<u32>,
    positions: Vec<u32>,
    /// Of the card that returns.
    turns: Vec<u32>,
    words: Vec<f32>,
    ends: [Vec<u32>; 2],
    wrong: [Wrong; 2],
}

impl Board {
    fn sizes(&self) -> [Arg<'static>; 3] {
        [self.width, self.used, self.turns.len() / 2].map(|n| Arg::U32(n as u32))
    }

    fn give(&mut self, y: &[f32]) -> bool {
        let sizes = self.sizes();
        let [own, far] = &mut self.ends;
        let mut args = vec![read(y), read(&self.ids), read(&self.positions), read(&self.turns)];
        args.extend([write(&mut self.words), write(own), write(far), write(&mut self.wrong[0].trouble)]);
        args.push(Arg::U64(self.width as u64));
        args.extend(sizes);
        launch("gantry_exchange_return", [self.ids.len(), 1, 1], &mut args)
    }

    fn take(&mut self, kernel: &str, y: &mut [f32]) -> bool {
        let sizes = self.sizes();
        let y = if kernel.ends_with("compare") { read(y) } else { write(y) };
        let mut args = vec![y, read(&self.ids), read(&self.positions), read(&self.turns)];
        args.extend([write(&mut self.words), write(&mut self.ends[1])]);
        args.extend([write(&mut self.wrong[1].trouble), write(&mut self.wrong[1].report)]);
        args.extend([Arg::U64(self.width as u64), Arg::U64(PATIENCE), Arg::U64(TAG)]);
        args.extend(sizes);
        launch(kernel, [self.ids.len(), 1, 1], &mut args)
    }

    /// Whether the card that returns computes a pair.
    fn theirs(&self, pair: usize) -> bool {
        let turn = &self.turns[2 * self.ids[pair] as usize..][..2];
        self.positions[pair / self.used] % turn[0] == turn[1]
    }
}

fn board(rng: &mut Rng, n: usize, used: usize, width: usize, epoch: u32) -> Board {
    let experts = 12;
    // Some alone, some with copies, some elsewhere.
    let turns = (0..experts).flat_map(|e| [[1, 0], [1, 1], [3, e as u32 % 3]][e % 3]).collect();
    let pairs = n * used;
    let mut ends = [vec![0; pairs * END], vec![0; pairs * END]];
    for pair in 0..pairs {
        ends.iter_mut().for_each(|end| end[pair * END + COUNT] = epoch);
    }
    Board {
        used,
        width,
        ids: (0..pairs).map(|_| rng.below(experts) as u32).collect(),
        positions: (0..n).map(|_| rng.below(1000) as u32).collect(),
        turns,
        words: vec![f32::from_bits(POISON); pairs * width],
        ends,
        wrong: Default::default(),
    }
}

#[test]
fn rows_come_from_the_card_that_computes_them_and_no_other() {
    let mut rng = Rng(12);
    for (n, used, width) in [(1, 8, 64), (7, 3, 1030), (5, 1, 3), (1, 2, 4096)] {
        let mut board = board(&mut rng, n, used, width, u32::MAX - 2);
        for _ in 0..3 {
            let theirs = rng.units(n * used * width, 1.0);
            let mine = rng.units(n * used * width, 1.0);
            board.ids.iter_mut().for_each(|id| *id = rng.below(12) as u32);
            let mut y = mine.clone();
            if !board.give(&theirs) {
                return;
            }
            board.take("gantry_exchange_collect", &mut y);
            for pair in 0..n * used {
                let row = pair * width..(pair + 1) * width;
                let from = if board.theirs(pair) { &theirs } else { &mine };
                assert_eq!(y[row.clone()], from[row], "{n} {used} {width}: pair {pair}");
                let count = |end: usize| board.ends[end][pair * END + COUNT];
                assert_eq!(count(0), count(1), "both count");
            }
            assert_eq!(board.wrong, <[Wrong; 2]>::default());
        }
    }
}

#[test]
fn a_row_that_differs_is_named_and_one_that_does_not_come_is_waited_for_with_a_bound() {
    let mut rng = Rng(13);
    let mut board = board(&mut rng, 6, 4, 300, 9);
    let theirs = rng.units(6 * 4 * 300, 1.0);
    if !board.give(&theirs) {
        return;
    }
    let pairs: Vec<usize> = (0..24).filter(|pair| board.theirs(*pair)).collect();
    let mut y = theirs.clone();
    board.take("gantry_exchange_compare", &mut y);
    assert_eq!(board.wrong, <[Wrong; 2]>::default(), "what is the same is fine");
    board.give(&theirs);
    let (pair, other) = (pairs[1], (0..24).find(|pair| !board.theirs(*pair)).expect("one of its own"));
    // Two values of a row, of which the first is named; and one of its own, which nobody compares.
    for at in [pair * 300 + 299, pair * 300 + 257, other * 300] {
        y[at] = -y[at];
    }
    board.take("gantry_exchange_compare", &mut y);
    assert_eq!(board.wrong[1], Wrong { trouble: [1], report: [3 << 60 | TAG] });
    let at = pair * 300 + 257;
    let [found, expected] = [theirs[at], y[at]].map(f32::to_bits);
    let note = &board.ends[1][pair * END + NOTE..][..6];
    assert_eq!(note, [3, found, expected, 257, board.ids[pair], (pair / 4) as u32]);

    let mut late = Board { wrong: Default::default(), ..board };
    late.take("gantry_exchange_collect", &mut y);
    assert_eq!(late.wrong[1].report, [1 << 60 | TAG]);
    let note = &late.ends[1][pairs[0] * END + NOTE..][..3];
    assert_eq!(note[0], 1, "it waited for a third exchange, which there was not: {note:?}");
    // A card in trouble returns no rows, and says so.
    late.wrong[0].trouble = [1];
    late.give(&theirs);
    assert_eq!(late.ends[1][pairs[0] * END], FAILED);
}
