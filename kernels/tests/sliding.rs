//! Caches that forget, against caches that do not, over long sequences that go back now and then.

mod attention_case;
mod random;

use attention_case::Case;
use gantry_kernels::cpu::{Isa, Keys, KvCache, KvShape, KvType, Pool, Window, attention};
use random::{Rng, assert_same, poison};

const BATCH: usize = 9;

#[test]
fn a_sliding_cache_gives_the_bits_of_a_full_one_through_rewinds() {
    let mut rng = Rng(51);
    let isa = *Isa::available().last().unwrap();
    let pool = Pool::new(2);
    for (kind, shared, heads, window, spare) in [
        (KvType::F32, false, 2, 13, 6),
        (KvType::F16, false, 1, 5, 0),
        (KvType::F32, true, 1, 1, 3),
        (KvType::F16, true, 2, 30, 11),
        (KvType::Int8, false, 2, 13, 6),
        (KvType::Int8, true, 1, 5, 2),
    ] {
        let (key_len, value_len) = (24, 20);
        let shape = KvShape { heads, key_len, value_len, shared };
        let full = Case::new(&mut rng, 4, shape, 700, kind, 1.0).with_sinks(&mut rng);
        let full = Case { window: Some(window), ..full };
        let keep = window - 1 + spare;
        let sliding = Case { store: Some(Window { keep, batch: BATCH }), ..full.clone() };
        let (mut everything, mut last) = (full.cache(), sliding.cache());
        assert_eq!(last.bytes() * full.tokens.strict_add(3), everything.bytes() * (2 * keep + BATCH));
        let (mut at, mut longest, mut back, mut refused) = (0, 0, 0, 0);
        while longest < full.tokens {
            let n = (1 + rng.below(BATCH)).min(full.tokens - at);
            let expected = full.step(isa, &pool, &mut everything, at, n);
            let y = sliding.step(isa, &pool, &mut last, at, n);
            assert_same(&y, &expected, &format!("{shape:?} {at}+{n}"));
            assert!(last.first() <= at.saturating_sub(keep) || at < longest, "{} at {at}", last.first());
            at += n;
            longest = longest.max(at);
            if heads == 1 && kind == KvType::F32 {
                assert_eq!(last.rows_f32(last.first()..at), everything.rows_f32(last.first()..at));
            }
            if rng.below(3) == 0 {
                let to = at - rng.below(keep + BATCH).min(at);
                if last.first() <= to.saturating_sub(window - 1) {
                    (at, back) = (to, back + 1);
                } else {
                    refused += 1;
                }
            }
        }
        assert!(back > 10 && refused > 0, "{back} times back, {refused} times too far");
        // A new sequence in the same cache.
        assert!(last.first() > 0);
        let expected = full.step(isa, &pool, &mut everything, 0, 5);
        assert_same(&sliding.step(isa, &pool, &mut last, 0, 5), &expected, "again from 0");
        assert_eq!(last.first(), 0);
    }
}

#[test]
fn keep_positions_stay_whatever_the_batches() {
    let mut rng = Rng(52);
    let shape = KvShape { heads: 1, key_len: 3, value_len: 3, shared: true };
    for keep in [0, 1, 2, 8, 40] {
        let mut cache = KvCache::new(KvType::F32, shape, 500, Some(Window { keep, batch: BATCH }));
        let mut at = 0;
        while at < 480 {
            let n = 1 + rng.below(BATCH);
            let rows: Vec<f32> = (at * 3..(at + n) * 3).map(|i| i as f32).collect();
            cache.write(at, n, &rows, None, 3);
            let first = at.saturating_sub(keep);
            assert!(cache.first() <= first);
            let there = cache.rows_f32(first..at + n);
            assert!(there.iter().zip(first * 3..).all(|(x, i)| *x == i as f32), "{at}+{n}");
            at += n;
        }
    }
}

/// 40 positions, one at a time, in a cache that keeps 4 of them and has room for 10.
fn forgetful() -> KvCache {
    let shape = KvShape { heads: 1, key_len: 2, value_len: 2, shared: true };
    let mut cache = KvCache::new(KvType::F32, shape, 100, Some(Window { keep: 4, batch: 2 }));
    (0..40).for_each(|p| cache.write(p, 1, &[p as f32, 0.0], None, 2));
    cache
}

#[test]
#[should_panic(expected = "the first that is there is")]
fn a_write_where_nothing_is_left_is_refused() {
    let mut cache = forgetful();
    let first = cache.first();
    cache.write(first - 1, 1, &[0.0; 2], None, 2);
}

#[test]
#[should_panic(expected = "a gap")]
fn a_gap_is_refused() {
    forgetful().write(41, 1, &[0.0; 2], None, 2);
}

#[test]
#[should_panic(expected = "2 at a time")]
fn too_many_at_once_are_refused() {
    forgetful().write(40, 3, &[0.0; 6], None, 2);
}

#[test]
#[should_panic(expected = "are read where")]
fn a_window_beyond_what_is_there_is_refused() {
    let cache = forgetful();
    let keys = Keys { cache: &cache, window: Some(20), chosen: None, more: None, sinks: None };
    attention(Isa::PORTABLE, &Pool::new(1), 1, 1.0, &keys, 39, &[0.0; 2], 2, &mut poison(2));
}

#[test]
#[should_panic(expected = "are read where")]
fn rows_after_the_last_written_are_refused() {
    forgetful().rows_f32(38..41);
}
