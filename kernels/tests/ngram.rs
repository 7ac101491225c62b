//! Rows of n-grams: against 128-bit arithmetic straight from the definition.

mod random;

use gantry_kernels::cpu::Ngram;
use random::Rng;

const EOS: u32 = 7;

/// Odd multipliers of 52 bits, more rows than 31 bits count, and sizes that are primes.
fn ngram(rng: &mut Rng, size: usize, group: usize) -> Ngram {
    let heads = (size - 1) * group;
    let mut multiplier = || (rng.next() >> 12) | 1 << 51 | 1;
    let multipliers = (0..size).map(|_| multiplier()).collect();
    let vocabs: Vec<u64> = (0..heads).map(|i| [20_000_003, 20_000_023, 101, 1][i % 4]).collect();
    let offsets = (0..heads).map(|i| 3_000_000_000 + vocabs[..i].iter().sum::<u64>()).collect();
    Ngram { size, eos: EOS, multipliers, offsets, vocabs }
}

fn oracle(ngram: &Ngram, window: &[Option<u32>]) -> Vec<u64> {
    let mut c = vec![window[0].expect("a token")];
    for s in 1..ngram.size {
        let cut = (1..=s).any(|s| window.get(s).copied().flatten().is_none_or(|token| token == EOS));
        c.push(if cut { EOS } else { window[s].expect("not cut") });
    }
    let mut rows = Vec::new();
    for n in 2..=ngram.size {
        let product = |s: usize| (u128::from(c[s]) * u128::from(ngram.multipliers[s])) as u64;
        let mix = (0..n).map(product).fold(0, |mix, product| mix ^ product);
        for _ in 0..ngram.offsets.len() / (ngram.size - 1) {
            rows.push(mix % ngram.vocabs[rows.len()] + ngram.offsets[rows.len()]);
        }
    }
    rows
}

#[track_caller]
fn rows(ngram: &Ngram, window: &[Option<u32>]) -> Vec<u64> {
    let mut rows = vec![u64::MAX; ngram.offsets.len()];
    ngram.rows(window, &mut rows);
    assert_eq!(rows, oracle(ngram, window), "{window:?}");
    rows
}

#[test]
fn rows_are_those_of_the_definition() {
    let mut rng = Rng(1);
    for (size, group) in [(2, 1), (2, 3), (3, 8), (4, 2), (5, 1)] {
        let ngram = ngram(&mut rng, size, group);
        for _ in 0..2000 {
            let mut token = || match rng.below(6) {
                0 => None,
                1 => Some(EOS),
                2 => Some(u32::MAX - rng.below(4) as u32),
                _ => Some(rng.below(250_000) as u32),
            };
            let mut window: Vec<_> = (0..size).map(|_| token()).collect();
            window[0] = window[0].or(Some(1));
            rows(&ngram, &window);
        }
    }
}

#[test]
fn a_known_row() {
    let ngram = Ngram {
        size: 3,
        eos: EOS,
        multipliers: vec![(1 << 51) + 1, 3, 5],
        offsets: vec![0, 1000],
        vocabs: vec![1000, 997],
    };
    // 11·(2^51 + 1) = 24769797950537739; ^ 3·13 = 24769797950537772; ^ 5·17 = 24769797950537849.
    assert_eq!(
        rows(&ngram, &[Some(11), Some(13), Some(17)]),
        [24_769_797_950_537_772 % 1000, 1000 + 24_769_797_950_537_849 % 997]
    );
}

#[test]
fn the_end_of_a_text_cuts_the_window_like_its_start() {
    let ngram = ngram(&mut Rng(2), 3, 2);
    let (a, b) = (Some(100), Some(200));
    let eos = Some(EOS);
    // Nothing before a cut shows through it, and a cut is the same however it came.
    let cut = rows(&ngram, &[a, None, None]);
    for window in [&[a, eos, b][..], &[a, eos, None], &[a, None, b], &[a], &[a, eos]] {
        assert_eq!(rows(&ngram, window), cut, "{window:?}");
    }
    assert_ne!(rows(&ngram, &[a, b, None])[..2], cut[..2]);
    assert_eq!(rows(&ngram, &[a, b, None]), rows(&ngram, &[a, b, eos]));
    // The token itself may be the end: its window reaches back.
    assert_ne!(rows(&ngram, &[eos, a, b]), rows(&ngram, &[eos, None, None]));
    // What lies beyond the longest n-gram has no say.
    assert_eq!(rows(&ngram, &[a, b, a, b]), rows(&ngram, &[a, b, a]));
}

#[test]
#[should_panic(expected = "a window starts with its token")]
fn a_window_has_a_token() {
    ngram(&mut Rng(3), 2, 1).rows(&[None, Some(1)], &mut [0]);
}
