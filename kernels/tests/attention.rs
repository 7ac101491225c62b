//! Attention: every implementation against f64, and against each other bit for bit, alone and in batches.

mod attention_case;
mod random;

use attention_case::Case;
use gantry_kernels::cpu::{Isa, KvCache, KvShape, KvType, Pool, kv_int8_row};
use half::f16;
use random::{Rng, assert_same};

const KINDS: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Int8];

fn square(heads: usize, dim: usize) -> KvShape {
    KvShape { heads, key_len: dim, value_len: dim, shared: false }
}

#[test]
fn attention_matches_f64_and_agrees_bit_for_bit() {
    let mut rng = Rng(31);
    for dim in [1, 8, 16, 20, 64, 80, 128, 144] {
        for (heads, kv_heads) in [(1, 1), (3, 1), (4, 2), (9, 3)] {
            for kind in KINDS {
                let size = [1.0, 4.0][rng.below(2)];
                let tokens = [1, 2, 15, 16, 17, 70][rng.below(6)];
                let window = [None, None, Some(1), Some(5), Some(40)][rng.below(5)];
                let case = Case::new(&mut rng, heads, square(kv_heads, dim), tokens, kind, size);
                let case = Case { window, ..case };
                let what = format!("{dim} {heads}/{kv_heads} {kind:?}");
                let truth = case.run(Isa::PORTABLE, &Pool::new(1), tokens);
                // A score of size s has an error of some s·ε, which exp makes relative.
                case.assert_close(&truth, 2e-6 * f64::from(size * size).max(1.0), &what);
                for isa in random::others() {
                    let y = case.run(isa, &Pool::new(2), tokens);
                    assert_same(&y, &truth, &format!("{} {what}", isa.name()));
                }
            }
        }
    }
}

/// Every combination of what attention may be told, of lengths and of element types.
#[test]
fn every_combination_matches_f64_and_agrees_bit_for_bit() {
    let mut rng = Rng(33);
    let (one, several) = (Pool::new(1), Pool::new(3));
    let mut combination = 0;
    for (key_len, value_len, shared) in
        [(64, 64, false), (20, 12, false), (16, 80, false), (36, 32, true), (144, 144, true)]
    {
        for (n_heads, heads) in [(8, 1), (4, 2)] {
            for window in [None, Some(7)] {
                for chosen in [None, Some(0), Some(20)] {
                    for more in [None, Some(None), Some(Some(5))] {
                        for sinks in [false, true] {
                            combination += 1;
                            let tokens = [1, 3, 18, 37][rng.below(4)];
                            let kind = KINDS[combination % 3];
                            let shape = KvShape { heads, key_len, value_len, shared };
                            let mut case = Case::new(&mut rng, n_heads, shape, tokens, kind, 1.0);
                            case.window = window;
                            if let Some(per) = chosen {
                                case = case.with_chosen(&mut rng, per);
                            }
                            if let Some(per) = more {
                                let ratio = [1, 2, 5][rng.below(3)];
                                case = case.with_more(&mut rng, ratio, per, KINDS[combination / 3 % 3]);
                            }
                            if sinks {
                                case = case.with_sinks(&mut rng);
                            }
                            let what = format!(
                                "{n_heads} heads, {shape:?}, {kind:?}, {tokens} tokens, window {window:?}, \
                                 chosen {chosen:?}, more {more:?}, sinks {sinks}"
                            );
                            let truth = case.run(Isa::PORTABLE, &one, tokens);
                            case.assert_close(&truth, 3e-6, &what);
                            for isa in Isa::available() {
                                let y = case.run(isa, &several, 1 + rng.below(tokens));
                                assert_same(&y, &truth, &format!("{} {what}", isa.name()));
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_token_alone_equals_it_in_a_batch_on_any_number_of_threads() {
    let mut rng = Rng(32);
    let mut cases = Vec::new();
    for kind in KINDS {
        cases.push(Case::new(&mut rng, 6, square(2, 64), 133, kind, 2.0));
        // One key-value head for many, as in absorbed latent attention: the group is split over the threads.
        let shape = KvShape { heads: 1, key_len: 72, value_len: 64, shared: true };
        let case = Case { window: Some(21), ..Case::new(&mut rng, 13, shape, 133, kind, 2.0) };
        cases.push(case.with_more(&mut rng, 4, Some(9), kind).with_sinks(&mut rng));
        cases.push(Case::new(&mut rng, 13, shape, 133, kind, 2.0).with_chosen(&mut rng, 50));
    }
    for (i, case) in cases.iter().enumerate() {
        for isa in Isa::available() {
            let alone = case.run(isa, &Pool::new(1), 1);
            for threads in 1..=4 {
                let pool = Pool::new(threads);
                for batch in [1, 2, 3, 7, 8, 16, 33, 133] {
                    let y = case.run(isa, &pool, batch);
                    assert_same(&y, &alone, &format!("{i}: {} {batch} on {threads} threads", isa.name()));
                }
            }
        }
    }
}

/// Hashes of what the first kernel gave, which knew nothing but dense attention.
#[test]
fn dense_attention_keeps_its_bits() {
    let cases = [
        (91, (6, 2), 64, KvType::F32, 0xfc77_159f_8788_2481u64),
        (92, (9, 3), 80, KvType::F16, 0x2238_54d8_669f_a962),
        (93, (4, 1), 144, KvType::F32, 0x4d57_d7fd_e142_7864),
    ];
    for (seed, (heads, kv_heads), dim, kind, hash) in cases {
        let mut rng = Rng(seed);
        rng.next();
        let case = Case::new(&mut rng, heads, square(kv_heads, dim), 133, kind, 2.0);
        for isa in Isa::available() {
            let y = case.run(isa, &Pool::new(2), 50);
            let fnv = |h: u64, v: &f32| (h ^ u64::from(v.to_bits())).wrapping_mul(0x100_0000_01b3);
            assert_eq!(y.iter().fold(0xcbf2_9ce4_8422_2325, fnv), hash, "{seed} {}", isa.name());
        }
    }
}

#[test]
fn a_list_of_everything_and_a_sink_of_no_weight_change_nothing() {
    let mut rng = Rng(34);
    for kind in KINDS {
        let shape = KvShape { heads: 2, key_len: 48, value_len: 40, shared: false };
        let case = Case::new(&mut rng, 8, shape, 45, kind, 1.0).with_more(&mut rng, 3, None, kind);
        let mut told = case.clone();
        told.chosen = Some((0..45).map(|token| (0..=token).collect()).collect());
        told.more.as_mut().unwrap().chosen =
            Some((0..45).map(|token| (0..(token + 1) / 3).collect()).collect());
        told.sinks = Some(vec![f32::NEG_INFINITY; 8]);
        for isa in Isa::available() {
            let pool = Pool::new(2);
            assert_same(&told.run(isa, &pool, 7), &case.run(isa, &pool, 45), isa.name());
        }
    }
}

/// The bits of a chosen subset are those of a cache that holds nothing else.
#[test]
fn chosen_positions_are_as_if_alone() {
    let mut rng = Rng(35);
    let shape = KvShape { heads: 1, key_len: 40, value_len: 24, shared: true };
    let full = Case::new(&mut rng, 5, shape, 60, KvType::F16, 1.0);
    let list: Vec<u32> = (0..60).filter(|p| p % 3 == 2).collect();
    let mut told = full.clone();
    told.chosen = Some((0..60).map(|token| list.iter().copied().filter(|p| *p <= token).collect()).collect());
    let stride = full.stride();
    let rows = list.iter().flat_map(|p| full.rows[*p as usize * stride..][..stride].to_vec()).collect();
    let dense = Case { tokens: list.len(), rows, ..full };
    for isa in Isa::available() {
        let pool = Pool::new(2);
        let (told, dense) = (told.run(isa, &pool, 60), dense.run(isa, &pool, 60));
        for (i, p) in list.iter().enumerate() {
            let width = 5 * shape.value_len;
            assert_same(&told[*p as usize * width..][..width], &dense[i * width..][..width], isa.name());
        }
    }
}

#[test]
fn a_token_that_sees_nothing_gets_zero() {
    let mut rng = Rng(36);
    let mut case = Case::new(&mut rng, 4, square(2, 20), 6, KvType::F32, 1.0);
    case.chosen = Some(vec![Vec::new(); 6]);
    for case in [case.clone(), case.with_sinks(&mut rng)] {
        for isa in Isa::available() {
            let y = case.run(isa, &Pool::new(2), 6);
            assert!(y.iter().all(|y| y.to_bits() == 0), "{}", isa.name());
        }
    }
}

#[test]
#[should_panic(expected = "chosen of 3 positions")]
fn a_chosen_position_that_is_yet_to_come_is_refused() {
    let mut case = Case::new(&mut Rng(37), 1, square(1, 8), 6, KvType::F32, 1.0);
    case.chosen = Some((0..6).map(|token| vec![token + u32::from(token == 2)]).collect());
    case.run(Isa::PORTABLE, &Pool::new(1), 6);
}

#[test]
fn the_cache_says_how_large_it_is() {
    let cache = KvCache::new(KvType::F16, square(3, 64), 100, None);
    assert_eq!((cache.capacity(), cache.bytes()), (100, 2 * 3 * 100 * 64 * 2));
    let shared = KvShape { heads: 1, key_len: 576, value_len: 512, shared: true };
    assert_eq!(KvCache::new(KvType::F32, shared, 10, None).bytes(), 10 * 576 * 4);
    assert_eq!(KvCache::bytes_of(KvType::F32, shared, usize::MAX, None), None);
    // A scale for each row of a head.
    assert_eq!(KvCache::new(KvType::Int8, shared, 10, None).bytes(), 10 * (576 + 2));
    assert_eq!(KvCache::new(KvType::Int8, square(3, 64), 100, None).bytes(), 2 * 3 * 100 * (64 + 2));
    assert_eq!(KvCache::bytes_of(KvType::Int8, shared, usize::MAX, None), None);
}

#[test]
fn an_int8_row_is_half_a_step_from_its_values() {
    let mut rng = Rng(41);
    for len in [1, 2, 64, 130] {
        for size in [1e-3, 1.0, 3e4] {
            let row = rng.units(len, size);
            let mut q = vec![99; len];
            let scale = kv_int8_row(&row, &mut q).to_f32();
            let most = row.iter().fold(0f32, |m, x| m.max(x.abs()));
            assert!((scale * 127.0 / most - 1.0).abs() <= 1.0 / 2048.0 || most < 0.01, "{scale} of {most}");
            for (q, x) in q.iter().zip(&row) {
                // The scale was rounded too, so that the largest may lie a little beyond 127 of it.
                let off = (f32::from(*q) * scale - x).abs();
                assert!(off <= scale * 0.5001 + most / 2000.0, "{q} · {scale} for {x}");
            }
        }
    }
    let of = |row: &[f32]| {
        let mut q = vec![99; row.len()];
        (kv_int8_row(row, &mut q), q)
    };
    // Too small for a scale: all stand for 0.
    assert_eq!(of(&[0.0, -0.0]), (f16::ZERO, vec![0, 0]));
    assert_eq!(of(&[1e-7, -2e-8]).0, f16::ZERO);
    assert_eq!(of(&[127.0, -127.0, 0.5, 1.5, -2.5]), (f16::ONE, vec![127, -127, 0, 2, -2]));
    // Too large for a scale: the largest there is.
    assert_eq!(of(&[f32::MAX, -3e7, 65504.0]), (f16::MAX, vec![127, -127, 1]));
    for wrong in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let (scale, q) = of(&[1.0, wrong]);
        assert!(!scale.is_finite() && q == [0, 0], "{wrong}: {scale} {q:?}");
    }
}
