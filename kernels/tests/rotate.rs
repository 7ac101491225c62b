//! The rotation: every implementation against the scalar truth, bit for bit, and as the orthogonal map that it is.

mod random;

use gantry_formats::rotation;
use gantry_kernels::cpu::{Isa, Pool, rotate};
use random::{Rng, assert_same};

const WIDTHS: [usize; 11] = [256, 512, 768, 1024, 1536, 2048, 2560, 4096, 6144, 7168, 8448];

fn scalar(x: &[f32], cols: usize) -> Vec<f32> {
    let mut x = x.to_vec();
    x.chunks_mut(cols).for_each(|row| rotation::rotate(row).unwrap());
    x
}

#[test]
fn every_implementation_gives_the_scalar_bits_on_any_number_of_threads() {
    let mut rng = Rng(1);
    for cols in WIDTHS {
        for tokens in [1, 2, 5] {
            let scale = [1.0, 1e-38, 1e36][rng.below(3)];
            let mut x = rng.units(tokens * cols, scale);
            // Zeros of both signs, subnormals, infinities, a NaN.
            for special in [0.0, -0.0, 1e-42, -1e-45, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                if special.is_finite() || tokens == 5 {
                    let at = rng.below(x.len());
                    x[at] = special;
                }
            }
            if tokens == 2 {
                x[..256].fill(-0.0);
            }
            let truth = scalar(&x, cols);
            for isa in Isa::available() {
                for threads in [1, 3] {
                    let mut y = x.clone();
                    rotate(isa, &Pool::new(threads), &mut y, cols);
                    assert_same(&y, &truth, &format!("{} {tokens} x {cols}", isa.name()));
                }
            }
        }
    }
}

#[test]
fn one_hot_rows_show_the_published_signs() {
    // Element e of a block of n goes to ±1/√n times (−1)^popcount(e & k) at every k of the block, nowhere else.
    for (cols, offset, n, first) in [
        (256, 0, 256, u64::from_le_bytes([0xde, 0x65, 0x8f, 0x16, 0x78, 0xee, 0xa0, 0x3b])),
        (512, 0, 512, u64::from_le_bytes([0x15, 0x33, 0x31, 0xea, 0x11, 0xc0, 0x78, 0xfc])),
        (2560, 512, 2048, u64::from_le_bytes([0xa0, 0x38, 0xf9, 0x27, 0xcb, 0x70, 0x35, 0x2e])),
        (4096, 0, 4096, u64::from_le_bytes([0x0b, 0x17, 0x8f, 0xd2, 0xcc, 0xf1, 0x30, 0x27])),
        (8192, 4096, 4096, u64::from_le_bytes([0x0b, 0x17, 0x8f, 0xd2, 0xcc, 0xf1, 0x30, 0x27])),
    ] {
        for isa in Isa::available() {
            for e in 0..64 {
                let mut row = vec![0f32; cols];
                row[offset + e] = 1.0;
                rotate(isa, &Pool::new(1), &mut row, cols);
                let negative = first >> e & 1 == 1;
                for (k, x) in row.into_iter().enumerate() {
                    let inside = (offset..offset + n).contains(&k);
                    let odd = (k.wrapping_sub(offset) & e).count_ones() % 2 == 1;
                    let want = if inside { (1.0 / (n as f64).sqrt()) as f32 } else { 0.0 };
                    let want = if inside && odd != negative { -want } else { want };
                    assert_eq!(x, want, "{} {cols}: e{e} at {k}", isa.name());
                }
            }
        }
    }
}

#[test]
fn it_keeps_lengths_and_products_and_has_its_inverse() {
    let mut rng = Rng(3);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    for cols in WIDTHS {
        let mut x = rng.units(2 * cols, 1.0);
        let before = x.clone();
        rotate(gantry_kernels::cpu::isa().unwrap(), &Pool::new(2), &mut x, cols);
        let (a, b) = x.split_at(cols);
        let (a0, b0) = before.split_at(cols);
        for (now, then) in [(dot(a, a), dot(a0, a0)), (dot(b, b), dot(b0, b0)), (dot(a, b), dot(a0, b0))] {
            assert!((now - then).abs() < 1e-6 * cols as f64, "{cols}: {now} was {then}");
        }
        x.chunks_mut(cols).for_each(|row| rotation::unrotate(row).unwrap());
        for (now, then) in x.iter().zip(&before) {
            assert!((now - then).abs() < 2e-6, "{cols}: {now} was {then}");
        }
    }
}

#[test]
#[should_panic(expected = "640 columns are not blocks of 256")]
fn other_widths_are_refused() {
    rotate(Isa::PORTABLE, &Pool::new(1), &mut [0.0; 640], 640);
}
