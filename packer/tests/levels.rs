//! Every implementation that this CPU has, against the scalar truth, byte for byte.

use gantry_formats::block::q8_0::{self as truth, Q8Error, ScaleKind};
use gantry_formats::block::{GgmlType, dequantize, fp16};
use gantry_packer::q8_0::{self, Stats};
use gantry_packer::simd::Level;
use gantry_packer::{PackError, finite};
use proptest::prelude::*;

const LEN: usize = q8_0::LEN;

type Planes = (Vec<u8>, Vec<u8>, Stats);

/// The planes and stats that the scalar truth gives, or the first error.
fn oracle(ty: GgmlType, src: &[u8]) -> Result<Planes, PackError> {
    let n = src.len() / ty.block_bytes() as usize * ty.block_len() as usize;
    let mut x = vec![0.0; n];
    dequantize(ty, src, &mut x).expect("whole blocks");
    let (mut quants, mut scales, mut stats) = (Vec::new(), Vec::new(), Stats::default());
    for (i, x) in x.as_chunks::<LEN>().0.iter().enumerate() {
        let at = (i * LEN) as u64;
        let block = truth::quantize_block(x).map_err(|e| match e {
            Q8Error::NonFinite { index, kind } => PackError::NonFinite { element: at + index as u64, kind },
            Q8Error::ScaleOverflow { index, amax } => {
                PackError::ScaleOverflow { element: at + index as u64, amax }
            }
        })?;
        let amax = truth::amax(x).expect("finite");
        let error = block.values().iter().zip(x).map(|(a, b)| (b - a).abs()).fold(0.0, f32::max);
        let kind = block.scale_kind(amax);
        stats.merge(&Stats {
            blocks: 1,
            lost: u64::from(kind == ScaleKind::Lost),
            subnormal: u64::from(kind == ScaleKind::Subnormal),
            max_abs_error: error,
            max_rel_error: if amax > 0.0 { error / amax } else { 0.0 },
        });
        let bytes = block.to_bytes();
        scales.extend_from_slice(&bytes[..2]);
        quants.extend_from_slice(&bytes[2..]);
    }
    Ok((quants, scales, stats))
}

fn quantized(level: Level, ty: GgmlType, src: &[u8]) -> Result<Planes, PackError> {
    let n = src.len() / ty.block_bytes() as usize * ty.block_len() as usize;
    let (mut quants, mut scales) = (vec![0xee; n], vec![0xee; n / 16]);
    let stats = q8_0::quantize_at(level, ty, src, &mut quants, &mut scales)?;
    Ok((quants, scales, stats))
}

#[track_caller]
fn check(ty: GgmlType, src: &[u8]) {
    let want = oracle(ty, src);
    for level in Level::available() {
        let got = quantized(level, ty, src);
        if got == want {
            continue;
        }
        match (&got, &want) {
            (Ok(got), Ok(want)) => {
                let at = got.0.iter().zip(&want.0).position(|(a, b)| a != b);
                let scale = got.1.iter().zip(&want.1).position(|(a, b)| a != b);
                panic!("{ty} {}: quant {at:?}, scale byte {scale:?}, {:?} {:?}", level.name(), got.2, want.2);
            }
            _ => panic!("{ty} {}: {:?}, want {:?}", level.name(), got.map(|_| ()), want.map(|_| ())),
        }
    }
}

fn bytes_of_f32(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn bytes_of_u16(x: &[u16]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// xorshift64*: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(2_685_821_657_736_338_717) >> 32) as u32
    }

    /// A value of random bits whose exponent field is in `exponents`.
    fn float(&mut self, exponents: std::ops::Range<u32>) -> f32 {
        let exponent = exponents.start + self.next() % (exponents.end - exponents.start);
        f32::from_bits(self.next() & 0x807f_ffff | exponent << 23)
    }
}

#[test]
fn the_published_bf16_vectors() {
    let rows: &[&[u16]] = &[
        &[],
        &[0x3f96, 0x3f16],
        &[0x3f90, 0x3f10],
        &[0x4afd],
        &[0x367f],
        &[0x367e],
        &[0x02fe, 0x82fe, 0],
        &[0x42fe, 0x3f00, 0xbf00, 0x3fc0, 0x4020, 0xc020, 0x42fd, 0xc2fd],
    ];
    let mut all = Vec::new();
    for row in rows {
        let mut block = row.to_vec();
        block.resize(LEN, 0);
        check(GgmlType::BF16, &bytes_of_u16(&block));
        all.extend(block);
    }
    for _ in 0..3 {
        check(GgmlType::BF16, &bytes_of_u16(&all));
        all.extend_from_within(..);
    }
    let (_, _, stats) =
        quantized(Level::PORTABLE, GgmlType::BF16, &bytes_of_u16(&all[..8 * LEN])).expect("finite");
    assert_eq!((stats.blocks, stats.lost, stats.subnormal), (8, 2, 1));
    assert_eq!(stats.max_rel_error, 1.0);
}

#[test]
fn faults_are_named_wherever_they_are() {
    for (ty, poison) in [
        (GgmlType::BF16, [0x7f80, 0xff80, 0x7fc0, 0xff81, 0x4afe]),
        (GgmlType::F16, [0x7c00, 0xfc00, 0x7e00, 0xfd01, 0xffff]),
    ] {
        for blocks in [1, 2, 8, 15, 16, 17, 33, 40] {
            for at in (0..blocks * LEN).step_by(7).chain([blocks * LEN - 1]) {
                let mut x = vec![0x3c01; blocks * LEN];
                x[at] = poison[at % poison.len()];
                check(ty, &bytes_of_u16(&x));
                if let Some(second) = x.get_mut(at + 5) {
                    *second = 0x7fff;
                    check(ty, &bytes_of_u16(&x));
                }
            }
        }
    }
    let message = |x: &[u16]| {
        let mut x = x.to_vec();
        x.resize(2 * LEN, 0x3f80);
        quantized(Level::PORTABLE, GgmlType::BF16, &bytes_of_u16(&x)).expect_err("refused").to_string()
    };
    assert_eq!(message(&[0x4afe]), "element 0: 8323072/127 does not fit fp16");
    assert_eq!(message(&[0, 0x7f80]), "element 1 inf");
    assert_eq!(message(&[0x7fc0]), "element 0 nan");
}

#[test]
fn every_half_in_every_place() {
    // Each finite pattern first in a block of its own, then all of them densely, 32 to a block.
    for (ty, exponent) in [(GgmlType::BF16, 0x7f80), (GgmlType::F16, 0x7c00)] {
        let finite: Vec<u16> = (0..=u16::MAX).filter(|h| h & exponent != exponent).collect();
        let fits = |h: &&u16| ty == GgmlType::F16 || **h & 0x7fff <= 0x4afd;
        let mut alone = Vec::new();
        for &h in finite.iter().filter(fits) {
            let mut block = [h; LEN];
            for (i, x) in block.iter_mut().enumerate().skip(1) {
                *x = h.wrapping_sub((i as u16) << 3) & 0x7fff;
                *x = (*x).min(h & 0x7fff) | (i as u16 & 1) << 15;
            }
            alone.extend(block);
        }
        check(ty, &bytes_of_u16(&alone));
        let mut dense: Vec<u16> = finite.iter().filter(fits).copied().collect();
        dense.truncate(dense.len() / LEN * LEN);
        check(ty, &bytes_of_u16(&dense));
        // Each pattern that is refused, at the end of a batch.
        for h in (0..=u16::MAX).filter(|h| !finite.contains(h) || !fits(&h)).step_by(61) {
            let mut x = vec![0; 16 * LEN];
            x[16 * LEN - 1] = h;
            check(ty, &bytes_of_u16(&x));
        }
    }
}

#[test]
fn ties_and_their_neighbours() {
    // amax 127 makes id 1, so the values themselves are rounded; other powers of two scale all of it exactly.
    for exponent in [-20, -3, 0, 5, 12] {
        let unit = 2.0_f32.powi(exponent);
        let mut x = Vec::new();
        for half_steps in -253..=253 {
            let tie = half_steps as f32 * 0.5;
            let (below, above) = (tie.next_down(), tie.next_up());
            x.push([127.0, tie, below, above, below.next_down(), above.next_up(), -tie, 0.499_999_97]);
        }
        let x: Vec<f32> = x.iter().flat_map(|x| x.iter().cycle().take(LEN)).map(|x| x * unit).collect();
        check(GgmlType::F32, &bytes_of_f32(&x));
    }
}

/// Seconds when optimized: `cargo test --release -p gantry-packer -- --ignored`.
#[test]
#[ignore = "every f32 from -127 to 127"]
fn every_value_rounds_half_away_from_zero() {
    const BATCH: usize = 16 * 1024;
    let mut next = 0_u32;
    while next <= 127.0_f32.to_bits() {
        let mut x = vec![127.0_f32; BATCH * LEN];
        for (i, block) in x.as_chunks_mut::<LEN>().0.iter_mut().enumerate() {
            for v in &mut block[1..] {
                *v = f32::from_bits(next.min(127.0_f32.to_bits()) | (i as u32 & 1) << 31);
                next += 1;
            }
        }
        let src = bytes_of_f32(&x);
        let want: Vec<u8> = x.iter().map(|x| x.round() as i8 as u8).collect();
        for level in Level::available() {
            let (quants, _, _) = quantized(level, GgmlType::F32, &src).expect("finite");
            assert!(quants == want, "{} before {next:08x}", level.name());
        }
    }
}

#[test]
fn random_floats_of_every_size_and_count() {
    let mut random = Random(1);
    for blocks in [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100] {
        for exponents in [0..1, 0..3, 0..40, 90..110, 100..128, 110..150, 126..130, 1..150] {
            let x: Vec<f32> = (0..blocks * LEN).map(|_| random.float(exponents.clone())).collect();
            check(GgmlType::F32, &bytes_of_f32(&x));
            let x: Vec<u16> = x.iter().map(|&x| fp16::f32_to_bf16(x)).collect();
            check(GgmlType::BF16, &bytes_of_u16(&x));
        }
        let x: Vec<u16> = (0..blocks * LEN).map(|_| random.next() as u16 & 0xbfff).collect();
        check(GgmlType::F16, &bytes_of_u16(&x));
    }
}

#[test]
fn scales_at_every_f16_boundary() {
    let mut x = Vec::new();
    for h in 0..0x7c00_u16 {
        let middle = (f64::from(fp16::f16_to_f32(h)) + f64::from(fp16::f16_to_f32(h + 1).min(65536.0))) / 2.0;
        let amax = (middle * 127.0) as f32;
        for amax in [amax.next_down(), amax, amax.next_up()] {
            if amax < 8_321_040.0 {
                let mut block = [amax * 0.3; LEN];
                block[usize::from(h) % LEN] = -amax;
                x.extend(block);
            }
        }
    }
    check(GgmlType::F32, &bytes_of_f32(&x));
    for amax in [8_321_039.5_f32, 8_321_040.0, 8_321_040.5, 1e9, f32::MAX] {
        check(GgmlType::F32, &bytes_of_f32(&[amax; LEN]));
    }
}

#[test]
fn where_the_reciprocal_overflows() {
    // 1/d overflows where d is at most 2⁻¹²⁸; walk amax over that edge and over the smallest numbers of all.
    let edge = (127.0 * 2.0_f32.powi(-128)).to_bits();
    let amaxes = (edge - 300..edge + 300).chain(0..600);
    let x: Vec<f32> = amaxes
        .flat_map(|bits| {
            (0..LEN as u32).map(move |i| {
                f32::from_bits(bits - bits / 64 * i.min(40)) * if i & 1 == 1 { -1.0 } else { 1.0 }
            })
        })
        .collect();
    check(GgmlType::F32, &bytes_of_f32(&x));
}

#[test]
fn other_types_go_through_f32() {
    let mut random = Random(7);
    for &ty in GgmlType::ALL.iter().filter(|ty| **ty != GgmlType::Q8_0) {
        let size = ty.block_bytes() as usize;
        for blocks in [LEN, 96, 4128] {
            let mut src: Vec<u8> = (0..blocks * size).map(|_| random.next() as u8).collect();
            // Scales of random bytes are often none, or too large: clear the upper half of every pair that could be.
            if ty.is_quantized() || ty == GgmlType::F64 {
                src.iter_mut().for_each(|b| *b &= 0x2f);
            }
            if ty == GgmlType::I64 {
                src.as_chunks_mut::<8>().0.iter_mut().for_each(|b| b[3..].fill(0));
            }
            if ty == GgmlType::I32 {
                src.as_chunks_mut::<4>().0.iter_mut().for_each(|b| b[3] = 0);
            }
            let src = if size * blocks > 1 << 20 { &src[..size * 4096] } else { &src[..] };
            check(ty, src);
        }
    }
}

#[test]
fn a_source_scale_that_is_no_number_is_named() {
    let fault = |ty: GgmlType, block: usize, at: usize, bytes: &[u8]| {
        let size = ty.block_bytes() as usize;
        let mut src = vec![0; 300 * size];
        src[block * size + at..][..bytes.len()].copy_from_slice(bytes);
        Level::available()
            .into_iter()
            .map(|level| {
                let error = quantized(level, ty, &src).expect_err("refused");
                assert_eq!(finite::check_finite_at(level, ty, &src), Err(error.clone()));
                error.to_string()
            })
            .collect::<std::collections::BTreeSet<_>>()
    };
    let one = |s: &str| std::collections::BTreeSet::from([s.to_string()]);
    assert_eq!(fault(GgmlType::Q8_0, 0, 0, &[0, 0x7e]), one("block 0 scale nan"));
    assert_eq!(fault(GgmlType::Q8_0, 299, 0, &[0, 0x7c]), one("block 299 scale inf"));
    assert_eq!(fault(GgmlType::Q4_1, 70, 2, &[1, 0xfc]), one("block 70 minimum nan"));
    assert_eq!(fault(GgmlType::Q6_K, 33, 208, &[0, 0xfc]), one("block 33 scale -inf"));
    assert_eq!(fault(GgmlType::MXFP4, 1, 0, &[0xff]), one("block 1 scale nan"));
}

#[test]
fn carried_floats_are_checked() {
    for (ty, poison) in [
        (GgmlType::F32, &[0, 0, 0x80, 0x7f][..]),
        (GgmlType::F16, &[0, 0x7c]),
        (GgmlType::BF16, &[0x80, 0x7f]),
        (GgmlType::F64, &[0, 0, 0, 0, 0, 0, 0xf0, 0x7f]),
    ] {
        let size = poison.len();
        for n in [1, 2, 31, 1000, 20_000] {
            for at in [0, 1, n / 2, n - 1] {
                let mut src = vec![0x11; n * size];
                for level in Level::available() {
                    assert_eq!(finite::check_finite_at(level, ty, &src), Ok(()));
                }
                let at = at.min(n - 1);
                src[at * size..][..size].copy_from_slice(poison);
                for level in Level::available() {
                    let error = finite::check_finite_at(level, ty, &src).expect_err("refused");
                    assert_eq!(error.to_string(), format!("element {at} inf"), "{ty}");
                }
            }
        }
    }
}

#[test]
fn split_and_join_are_inverses_for_any_bytes() {
    let mut random = Random(3);
    for blocks in [0, 1, 2, 3, 15, 16, 17, 100, 1001] {
        let mut src: Vec<u8> = (0..blocks * q8_0::BYTES).map(|_| random.next() as u8).collect();
        for block in src.as_chunks_mut::<{ q8_0::BYTES }>().0 {
            block[1] &= 0xbb;
        }
        for level in Level::available() {
            let (mut quants, mut scales) = (vec![0; blocks * LEN], vec![0; blocks * 2]);
            let stats = q8_0::split_q8_0_at(level, &src, &mut quants, &mut scales).expect("finite");
            assert_eq!(stats.blocks, blocks as u64);
            let mut back = vec![0; src.len()];
            q8_0::join_q8_0(&quants, &scales, &mut back).expect("lengths");
            assert_eq!(back, src);
        }
    }
}

#[test]
fn lengths_are_checked() {
    let mut out = [0; 64];
    let (quants, scales) = out.split_at_mut(32);
    let level = Level::PORTABLE;
    let mut q = |ty, n: usize, s: usize| {
        q8_0::quantize_at(level, ty, &vec![0; n], quants, &mut scales[..s])
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    assert_eq!(q(GgmlType::BF16, 64, 2), Ok(()));
    assert_eq!(q(GgmlType::BF16, 64, 3), Err("scales: 3 where 2 are needed".into()));
    assert_eq!(q(GgmlType::BF16, 62, 2), Err("31 values of BF16 are no whole number of blocks of 32".into()));
    assert_eq!(q(GgmlType::BF16, 128, 2), Err("quants: 32 where 64 are needed".into()));
    assert_eq!(
        q(GgmlType::BF16, 63, 2),
        Err("63 bytes are no whole number of BF16 blocks of 2 bytes".into())
    );
    assert!(q8_0::join_q8_0(&[0; 32], &[0; 3], &mut [0; 34]).is_err());
    assert!(q8_0::join_q8_0(&[0; 32], &[0; 2], &mut [0; 33]).is_err());
}

proptest! {
    #[test]
    fn any_bits_at_all(bits in proptest::collection::vec(any::<u32>(), 0..40 * LEN), mask in any::<u32>()) {
        let n = bits.len() / LEN * LEN;
        let src: Vec<u8> = bits[..n].iter().flat_map(|b| (b & (mask | 0x807f_ffff)).to_le_bytes()).collect();
        check(GgmlType::F32, &src);
        check(GgmlType::BF16, &src);
        check(GgmlType::F16, &src);
    }
}
