//! Residual streams and n-grams. Bounds: norms 2e-6 of the value, what Sinkhorn's iteration mixes
//! by 2e-6, the n-gram gate 1e-6 of the value; all others the CPU's bits.

use gantry_kernels::cpu::{
    Isa, Ngram, Pool, Sinkhorn, StreamWrite, Streams, ngram_gate, sinkhorn_head, sinkhorn_read,
    sinkhorn_write, stream_mix, stream_norm, stream_write,
};

use crate::launch::{Arg, groups, launch, maybe, read, u32s, write};
use crate::quantize::Quants;
use crate::random::{Rng, assert_same, poison};
use crate::{assert_near, mixed};

const ISA: Isa = Isa::PORTABLE;

#[test]
fn streams_are_written_normed_and_mixed() {
    let mut rng = Rng(1);
    let pool = Pool::new(1);
    for (n, count, len) in [(1, 1, 1), (3, 4, 300), (2, 8, 77), (1, 1, 4500), (2, 2, 4096), (3, 4, 96)] {
        let s = Streams { count, len };
        let x = rng.units(n * count * len, 3.0);
        let add = mixed(&mut rng, (n * len).max(20), 2.0)[..n * len].to_vec();
        let row = count + 3;
        let inject = rng.units(n * row, 9.0);
        for logits in [None, Some(&inject[..])] {
            let (mut truth, mut y) = (x.clone(), x.clone());
            stream_write(ISA, &pool, s, &mut truth, &add, logits.map(|l| (l, row)));
            let mut args = vec![write(&mut y), read(&add), maybe(logits), Arg::U64(row as u64)];
            args.extend(u32s([count, len]));
            if launch("gantry_stream_write", [groups(len, 256), n * count, 1], &mut args) {
                drop(args);
                assert_same(&y, &truth, &format!("a write to {s:?}"));
            }
        }
        let gamma = rng.units(count * len, 2.0);
        let add = rng.units(n * len, 2.0);
        for writes in [false, true] {
            let (mut truth_x, mut own_x) = (x.clone(), x.clone());
            let (mut truth, mut y) = (poison(x.len()), poison(x.len()));
            let waits = writes.then_some(StreamWrite { add: &add, inject: Some((&inject, row)) });
            stream_norm(ISA, &pool, s, waits, &mut truth_x, &gamma, 1e-6, &mut truth);
            let mut args = vec![write(&mut own_x), maybe(writes.then_some(&add[..]))];
            args.extend([maybe(writes.then_some(&inject[..])), read(&gamma), write(&mut y)]);
            let whole = len % 32 == 0;
            let mut quants = Quants::new(x.len());
            args.extend(if whole { quants.args() } else { [Arg::Null, Arg::Null] });
            args.push(Arg::U64(row as u64));
            args.extend(u32s([count, len]));
            args.push(Arg::F32(1e-6));
            if launch("gantry_stream_norm", [count, n, 1], &mut args) {
                drop(args);
                assert_same(&own_x, &truth_x, "the streams");
                assert_near(&y, &truth, 2e-6, 0.0, &format!("norms of {s:?}"));
                if whole {
                    quants.assert_of(&y);
                }
            }
        }
        let gates = mixed(&mut rng, x.len().max(20), 20.0)[..x.len()].to_vec();
        let (mut truth, mut y) = (poison(n * len), poison(n * len));
        stream_mix(ISA, &pool, s, &x, &gates, &mut truth);
        let mut args = vec![read(&x), read(&gates), write(&mut y)];
        args.extend(u32s([count, len]));
        if launch("gantry_stream_mix", [groups(len, 256), n, 1], &mut args) {
            drop(args);
            assert_same(&y, &truth, &format!("a mix of {s:?}"));
        }
    }
}

#[test]
fn streams_are_mixed_by_sinkhorns_matrix() {
    let mut rng = Rng(2);
    let pool = Pool::new(1);
    for (n, count, len, iterations) in [(1, 1, 1, 1), (3, 4, 300, 20), (2, 8, 77, 3), (4, 3, 64, 1)] {
        let s = Sinkhorn { streams: Streams { count, len }, eps: 1e-6, iterations };
        let width = s.mixes();
        let x = rng.units(n * count * len, 3.0);
        let (mixes, base) = (rng.units(n * width, 4.0), rng.units(width, 2.0));
        let scale = [0.7, 1.3, 2.0];
        let (mut truth, mut y) = (poison(n * len), poison(n * len));
        let (mut truth_post, mut post) = (poison(n * count), poison(n * count));
        let (mut truth_comb, mut comb) = (poison(n * count * count), poison(n * count * count));
        let (out, posts, combs) = (&mut truth[..], &mut truth_post[..], &mut truth_comb[..]);
        sinkhorn_read(ISA, &pool, &s, &x, &mixes, &scale, &base, out, posts, combs);
        let mut args = vec![read(&mixes), read(&scale), read(&base), write(&mut post), write(&mut comb)];
        args.extend(u32s([count, iterations]));
        args.push(Arg::F32(1e-6));
        if !launch("gantry_sinkhorn_factors", [n, 1, 1], &mut args) {
            return;
        }
        drop(args);
        assert_same(&post, &truth_post, "writing weights");
        assert_near(&comb, &truth_comb, 2e-6, 1.0, &format!("{s:?}"));
        for head in [false, true] {
            let row = if head { count } else { width };
            let mut args = vec![read(&x), read(&mixes), read(&scale), read(&base), write(&mut y)];
            args.push(Arg::U64(row as u64));
            args.extend(u32s([count, len]));
            args.push(Arg::F32(1e-6));
            launch("gantry_sinkhorn_read", [groups(len, 256), n, 1], &mut args);
            drop(args);
            if head {
                let logits = &mixes[..n * count];
                sinkhorn_head(ISA, &pool, &s, &x, logits, &scale[..1], &base[..count], &mut truth);
            }
            assert_same(&y, &truth, &format!("a read of {s:?}, head: {head}"));
        }
        let add = rng.units(n * len, 2.0);
        let (mut truth, mut y) = (x.clone(), x);
        sinkhorn_write(ISA, &pool, s.streams, &mut truth, &add, &truth_post, &truth_comb);
        let mut args = vec![write(&mut y), read(&add), read(&truth_post), read(&truth_comb)];
        args.extend(u32s([count, len]));
        launch("gantry_sinkhorn_write", [groups(len, 256), n, 1], &mut args);
        drop(args);
        assert_same(&y, &truth, &format!("a write to {s:?}"));
    }
}

#[test]
fn n_grams_hash_to_the_rows_of_the_cpu() {
    let mut rng = Rng(3);
    for (size, group) in [(2, 1), (3, 4), (5, 2)] {
        let heads = (size - 1) * group;
        let hash = Ngram {
            size,
            eos: 7,
            multipliers: (0..size).map(|_| rng.next() | 1).collect(),
            offsets: (0..heads).map(|_| rng.next() >> 20).collect(),
            vocabs: (0..heads).map(|_| 1 + rng.below(1 << 33) as u64).collect(),
        };
        let n = 300;
        let windows: Vec<Option<u32>> = (0..n * size)
            .map(|i| match (i % size, rng.below(8)) {
                (1.., 0) => None,
                (_, 1) => Some(7),
                _ => Some(rng.below(200_000) as u32),
            })
            .collect();
        let mut truth = vec![0u64; n * heads];
        for (window, rows) in windows.chunks(size).zip(truth.chunks_mut(heads)) {
            hash.rows(window, rows);
        }
        let plain: Vec<u32> = windows.iter().map(|token| token.unwrap_or(u32::MAX)).collect();
        let mut rows = vec![u64::MAX; n * heads];
        let mut args = vec![read(&plain), read(&hash.multipliers), read(&hash.offsets), read(&hash.vocabs)];
        args.push(write(&mut rows));
        args.extend(u32s([n, size, heads, 7]));
        if launch("gantry_ngram_rows", [groups(n, 256), 1, 1], &mut args) {
            drop(args);
            assert_eq!(rows, truth, "n-grams of up to {size}");
        }
    }
}

#[test]
fn n_gram_gates() {
    let mut rng = Rng(4);
    let pool = Pool::new(1);
    for (n, count, len) in [(1, 1, 1), (3, 4, 300)] {
        let s = Streams { count, len };
        let (key, mut query) = (rng.units(n * count * len, 2.0), rng.units(n * count * len, 2.0));
        query[..len].fill(0.0);
        let value = rng.units(n * len, 3.0);
        let (mut truth, mut y) = (poison(key.len()), poison(key.len()));
        ngram_gate(ISA, &pool, s, &key, &query, &value, &mut truth);
        let mut args = vec![read(&key), read(&query), read(&value), write(&mut y)];
        args.extend(u32s([count, len]));
        if launch("gantry_ngram_gate", [count, n, 1], &mut args) {
            drop(args);
            assert_near(&y, &truth, 1e-6, 0.0, &format!("gates of {s:?}"));
        }
    }
}
