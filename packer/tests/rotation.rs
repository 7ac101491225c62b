//! The fast rotation at every level against the scalar truth, bit for bit, and what a rotation must keep.

use gantry_formats::rotation as truth;
use gantry_packer::rotation;
use gantry_packer::simd::Level;

const WIDTHS: [usize; 10] = [256, 512, 1536, 2560, 2816, 4096, 6144, 7168, 8192, 16_384];

/// Values in −1..1 of a linear congruence.
fn values(n: usize, mut state: u64) -> Vec<f32> {
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(next).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn every_level_gives_the_truth_s_bits() {
    for cols in WIDTHS {
        let x = values(3 * cols, cols as u64);
        let (mut there, mut back) = (x.clone(), x.clone());
        for row in there.chunks_exact_mut(cols) {
            truth::rotate(row).expect("whole");
        }
        for row in back.chunks_exact_mut(cols) {
            truth::unrotate(row).expect("whole");
        }
        for level in Level::available() {
            let mut got = x.clone();
            rotation::rotate_at(level, &mut got, cols).expect("whole");
            assert!(bits(&got) == bits(&there), "{} {cols}", level.name());
            let mut got = x.clone();
            rotation::unrotate_at(level, &mut got, cols).expect("whole");
            assert!(bits(&got) == bits(&back), "{} {cols} back", level.name());
        }
    }
}

#[test]
fn products_stay_and_rows_come_back() {
    for cols in WIDTHS {
        let (w, x) = (values(8 * cols, 1), values(cols, 2));
        let (mut wq, mut qx) = (w.clone(), x.clone());
        rotation::rotate(&mut wq, cols).expect("whole");
        rotation::rotate(&mut qx, cols).expect("whole");
        let product =
            |w: &[f32], x: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
        let norm = |x: &[f32]| product(x, x).sqrt();
        for (row, rotated) in w.chunks_exact(cols).zip(wq.chunks_exact(cols)) {
            let off = (product(row, &x) - product(rotated, &qx)).abs();
            assert!(off < 1e-6 * norm(row) * norm(&x), "{cols}: {off}");
        }
        rotation::unrotate(&mut wq, cols).expect("whole");
        assert!(w.iter().zip(&wq).all(|(a, b)| (a - b).abs() < 2e-6), "{cols}");
    }
}

#[test]
fn widths_are_checked() {
    let message = |n, cols| rotation::rotate(&mut vec![0.0; n], cols).map_err(|e| e.to_string());
    assert_eq!(message(0, 256), Ok(()));
    assert_eq!(message(768, 256), Ok(()));
    assert_eq!(
        message(640, 640),
        Err("a row of 640 values is not rotated: a multiple of 256 is needed".into())
    );
    assert_eq!(message(700, 512), Err("values: 700 where 1024 are needed".into()));
    assert_eq!(message(0, 0), Ok(()));
}
