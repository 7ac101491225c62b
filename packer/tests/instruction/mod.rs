//! Matrix instructions by their lane maps, from the vendors' manuals: which element a lane's byte or register is.
//!
//! Nothing here knows an order's formula: a lane loads its bytes in a row, as a kernel does.

use gantry_formats::layout::Order;

/// Lanes, bytes or registers a lane, and which element each is.
type Map = (usize, usize, fn(usize, usize) -> (usize, usize));

/// D = A · B, `m` × `k` times `k` × `n`, int8 to int32.
struct Instruction {
    m: usize,
    n: usize,
    k: usize,
    /// Of A: (row, k).
    a: Map,
    /// Of B: (column, k).
    b: Map,
    /// Of D: (row, column).
    d: Map,
}

const NVIDIA: Instruction = Instruction {
    m: 16,
    n: 8,
    k: 32,
    a: (32, 16, |l, i| ((l >> 2) + 8 * ((i >> 2) & 1), 4 * (l & 3) + (i & 3) + 16 * (i >> 3))),
    b: (32, 8, |l, i| (l >> 2, 4 * (l & 3) + (i & 3) + 16 * (i >> 2))),
    d: (32, 4, |l, i| ((l >> 2) + 8 * (i >> 1), 2 * (l & 3) + (i & 1))),
};

const GFX928: Instruction = Instruction {
    m: 16,
    n: 16,
    k: 32,
    a: (64, 8, |l, i| (l & 15, 8 * (l >> 4) + i)),
    b: (64, 8, |l, i| (l & 15, 8 * (l >> 4) + i)),
    d: (64, 4, |l, i| (l & 15, (l >> 4) + 4 * i)),
};

const CDNA3: Instruction = Instruction { d: (64, 4, |l, i| (4 * (l >> 4) + i, l & 15)), ..GFX928 };

const RDNA3: Instruction = Instruction {
    m: 16,
    n: 16,
    k: 16,
    a: (32, 16, |l, i| (l & 15, i)),
    b: (32, 16, |l, i| (l & 15, i)),
    d: (32, 8, |l, i| (2 * i + (l >> 4), l & 15)),
};

const RDNA4: Instruction = Instruction {
    m: 16,
    n: 16,
    k: 16,
    a: (32, 8, |l, i| (l & 15, 8 * (l >> 4) + i)),
    b: (32, 8, |l, i| (l & 15, 8 * (l >> 4) + i)),
    d: (32, 8, |l, i| (8 * (l >> 4) + i, l & 15)),
};

/// A is not spread over lanes: byte `m · 32 + k` of it. B's byte i of lane n is byte i & 3 of dword (i >> 2, n).
const DPAS: Instruction = Instruction {
    m: 8,
    n: 16,
    k: 32,
    a: (8, 32, |m, i| (m, i)),
    b: (16, 32, |n, i| (n, i)),
    d: (16, 8, |n, m| (m, n)),
};

const DPAS8: Instruction = Instruction { n: 8, b: (8, 32, |n, i| (n, i)), d: (8, 8, |n, m| (m, n)), ..DPAS };

impl Instruction {
    /// Adds A · B to `sums`, `[row][column]`, from the bytes that each lane holds.
    fn run(
        &self,
        a: impl Fn(usize, usize) -> i8,
        b: impl Fn(usize, usize) -> i8,
        at: impl Fn(usize, usize) -> (usize, usize),
        sums: &mut [Vec<i32>],
    ) {
        let operand = |extent: usize, (lanes, bytes, element): Map, of: &dyn Fn(usize, usize) -> i8| {
            let mut matrix = vec![vec![None; self.k]; extent];
            for (l, i) in (0..lanes).flat_map(|l| (0..bytes).map(move |i| (l, i))) {
                let (row, k) = element(l, i);
                let old = matrix[row][k].replace(of(l, i));
                assert!(old.is_none_or(|old| old == of(l, i)), "lanes disagree on ({row}, {k})");
            }
            matrix
        };
        let (a, b) = (operand(self.m, self.a, &a), operand(self.n, self.b, &b));
        let (lanes, registers, element) = self.d;
        let mut seen = 0;
        for (l, i) in (0..lanes).flat_map(|l| (0..registers).map(move |i| (l, i))) {
            let (row, col) = element(l, i);
            let products = a[row].iter().zip(&b[col]);
            let sum =
                products.map(|(a, b)| i32::from(a.expect("held")) * i32::from(b.expect("held"))).sum::<i32>();
            let (m, n) = at(row, col);
            sums[m][n] += sum;
            seen += 1;
        }
        assert_eq!(seen, self.m * self.n);
    }
}

/// Rows of activations that an order's instruction takes.
pub(crate) fn activation_rows(order: Order) -> usize {
    if matches!(order, Order::NvA32 | Order::NvA64 | Order::Vnni16 | Order::Vnni8) { 8 } else { 16 }
}

/// `[m][n]` of activations `[m][k]` and the pack of one tile of 16 rows.
pub(crate) fn product(order: Order, pack: &[u8], x: &[Vec<i8>], cols: usize) -> Vec<Vec<i32>> {
    let mut sums = vec![vec![0; 16]; x.len()];
    let w = |at: usize| pack[at] as i8;
    // The weight is A but for DPAS: rows of D are its, and columns the activations'.
    let weight_first = |row: usize, col: usize| (col, row);
    match order {
        Order::NvA32 => {
            for c in 0..cols / 32 {
                let a = |l: usize, i: usize| w(c * 512 + l * 16 + i);
                // 8 activations in a row for each lane.
                let b = |l: usize, i: usize| x[l >> 2][c * 32 + 8 * (l & 3) + i];
                NVIDIA.run(a, b, weight_first, &mut sums);
            }
        }
        Order::NvA64 => {
            for (c, step) in (0..cols / 64).flat_map(|c| [(c, 0), (c, 1)]) {
                let a = |l: usize, i: usize| w(c * 1024 + step * 512 + l * 16 + i);
                // 16 activations in a row for each lane: 8 for each step.
                let b = |l: usize, i: usize| x[l >> 2][c * 64 + 16 * (l & 3) + 8 * step + i];
                NVIDIA.run(a, b, weight_first, &mut sums);
            }
        }
        Order::Slot8 => {
            let mut other = sums.clone();
            for c in 0..cols / 32 {
                let a = |l: usize, i: usize| w(c * 512 + l * 8 + i);
                let b = |l: usize, i: usize| x[l & 15][c * 32 + 8 * (l >> 4) + i];
                GFX928.run(a, b, weight_first, &mut sums);
                CDNA3.run(a, b, weight_first, &mut other);
            }
            assert_eq!(sums, other);
        }
        Order::Slot16 => {
            let mut other = sums.clone();
            for (c, step) in (0..cols / 64).flat_map(|c| [(c, 0), (c, 1)]) {
                let a = |l: usize, i: usize| w(c * 1024 + l * 16 + 8 * step + i);
                let b = |l: usize, i: usize| x[l & 15][c * 64 + step * 32 + 8 * (l >> 4) + i];
                GFX928.run(a, b, weight_first, &mut sums);
                CDNA3.run(a, b, weight_first, &mut other);
            }
            assert_eq!(sums, other);
        }
        Order::Ck16 => {
            for (c, step) in (0..cols / 64).flat_map(|c| [(c, 0), (c, 1)]) {
                let a = |l: usize, i: usize| w(c * 1024 + l * 16 + 8 * step + i);
                // 16 activations in a row for each lane, too: both operands have the same k in the same place.
                let b = |l: usize, i: usize| x[l & 15][c * 64 + 16 * (l >> 4) + 8 * step + i];
                CDNA3.run(a, b, weight_first, &mut sums);
            }
        }
        Order::Rdna3 => {
            for c in 0..cols / 16 {
                let a = |l: usize, i: usize| w(c * 256 + (l & 15) * 16 + i);
                let b = |l: usize, i: usize| x[l & 15][c * 16 + i];
                RDNA3.run(a, b, weight_first, &mut sums);
            }
        }
        Order::Rdna4 => {
            for c in 0..cols / 16 {
                let a = |l: usize, i: usize| w(c * 256 + l * 8 + i);
                let b = |l: usize, i: usize| x[l & 15][c * 16 + 8 * (l >> 4) + i];
                RDNA4.run(a, b, weight_first, &mut sums);
            }
        }
        Order::Vnni16 => {
            for c in 0..cols / 32 {
                let a = |m: usize, i: usize| x[m][c * 32 + i];
                let b = |n: usize, i: usize| w(c * 512 + ((i >> 2) * 16 + n) * 4 + (i & 3));
                DPAS.run(a, b, |row, col| (row, col), &mut sums);
            }
        }
        Order::Vnni8 => {
            for (half, c) in [0, 1].into_iter().flat_map(|half| (0..cols / 32).map(move |c| (half, c))) {
                let a = |m: usize, i: usize| x[m][c * 32 + i];
                let b = |n: usize, i: usize| w(half * 8 * cols + c * 256 + ((i >> 2) * 8 + n) * 4 + (i & 3));
                DPAS8.run(a, b, |row, col| (row, half * 8 + col), &mut sums);
            }
        }
        Order::NMajor | Order::KMajor => unreachable!("no instruction's order"),
    }
    sums
}
