//! Fragment orders against their definition, their published bytes, and the matrix instructions that load them.

use gantry_formats::layout::Order;
use gantry_packer::fragment::{permute_at, unpermute_at};
use gantry_packer::simd::Level;

mod instruction;

/// xorshift64*: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(2_685_821_657_736_338_717) >> 32) as u32
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

fn padded(order: Order, rows: usize, cols: usize) -> (usize, usize) {
    (rows.next_multiple_of(16), cols.next_multiple_of(order.col_tile() as usize))
}

fn packed(level: Level, order: Order, rows: usize, cols: usize, src: &[u8]) -> Vec<u8> {
    let (n, k) = padded(order, rows, cols);
    let mut out = vec![0xee; n * k];
    permute_at(level, order, rows, cols, src, &mut out).expect("lengths fit");
    out
}

const SHAPES: [(usize, usize); 14] = [
    (0, 0),
    (1, 1),
    (1, 32),
    (16, 64),
    (17, 96),
    (31, 32),
    (8, 1056),
    (7, 45),
    (48, 192),
    (33, 1120),
    (16, 2080),
    (128, 256),
    (145, 321),
    (272, 608),
];

#[test]
fn every_byte_is_where_the_order_says() {
    let mut random = Random(1);
    for (rows, cols) in SHAPES {
        let src = random.bytes(rows * cols);
        for order in Order::ALL {
            let (n, k) = padded(order, rows, cols);
            let mut want = vec![0; n * k];
            for (r, c) in (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))) {
                want[order.offset(r as u64, c as u64, n as u64, k as u64) as usize] = src[r * cols + c];
            }
            for level in Level::available() {
                let got = packed(level, order, rows, cols, &src);
                let at = got.iter().zip(&want).position(|(a, b)| a != b);
                assert_eq!(at, None, "{order} {rows}x{cols} {}", level.name());
                let mut back = vec![0xee; src.len()];
                unpermute_at(level, order, rows, cols, &got, &mut back).expect("lengths fit");
                assert!(back == src, "{order} {rows}x{cols} {} and back", level.name());
            }
        }
    }
}

#[test]
fn outputs_past_the_cache_hold_the_same() {
    // 32 MiB and more, with lines of `i8.kmajor` that are whole cache lines and with others, at addresses that are
    // multiples of 64, of 16 and of nothing.
    for (rows, cols) in [(4099, 8200), (4150, 8192)] {
        let src = Random(2).bytes(rows * cols);
        for order in Order::ALL {
            let (n, k) = padded(order, rows, cols);
            let want = packed(Level::PORTABLE, order, rows, cols, &src);
            let mut room = vec![0xee; n.max(rows) * k.max(cols) + 128];
            let aligned = room.as_ptr().addr().next_multiple_of(64) - room.as_ptr().addr();
            for level in Level::available() {
                for at in [aligned, aligned + 16, aligned + 1] {
                    let out = &mut room[at..][..n * k];
                    permute_at(level, order, rows, cols, &src, out).expect("lengths fit");
                    assert!(out == want, "{order} {}", level.name());
                    let back = &mut room[at..][..src.len()];
                    unpermute_at(level, order, rows, cols, &want, back).expect("lengths fit");
                    assert!(back == src, "{order} {} and back", level.name());
                }
            }
        }
    }
}

#[test]
fn groups_of_rows_are_stretches_of_the_whole() {
    let (rows, cols) = (77, 160);
    let src = Random(3).bytes(rows * cols);
    for order in Order::ALL {
        let (n, k) = padded(order, rows, cols);
        for level in Level::available() {
            let whole = packed(level, order, rows, cols, &src);
            for (i, group) in src.chunks(32 * cols).enumerate() {
                let part = packed(level, order, group.len() / cols, cols, group);
                if order == Order::KMajor {
                    let height = part.len() / k;
                    for (line, part) in whole.chunks(n).zip(part.chunks(height)) {
                        assert_eq!(&line[i * 32..][..height], part, "{order}");
                    }
                } else {
                    assert_eq!(&whole[i * 32 * k..][..part.len()], part, "{order}");
                }
            }
        }
    }
}

/// Element (n, k) and its byte.
type Golden = ((usize, usize), usize);

#[test]
fn published_offsets() {
    // 16 rows, one tile of k; a single byte that is not zero.
    let table: [(Order, usize, &[Golden]); 11] = [
        (Order::NvA32, 32, &[((0, 0), 0), ((0, 4), 8), ((0, 8), 16), ((8, 0), 4), ((1, 0), 64)]),
        (
            Order::NvA64,
            64,
            &[((0, 0), 0), ((0, 4), 8), ((0, 8), 512), ((0, 16), 16), ((8, 0), 4), ((1, 0), 64)],
        ),
        (Order::Slot16, 64, &[((1, 0), 16), ((0, 8), 256), ((0, 32), 8)]),
        (Order::Slot8, 32, &[((1, 0), 8), ((0, 8), 128)]),
        (Order::Ck16, 64, &[((1, 0), 16), ((0, 16), 256), ((0, 32), 512)]),
        (Order::Vnni16, 32, &[((1, 0), 4), ((0, 4), 64), ((0, 1), 1)]),
        (Order::Vnni8, 32, &[((1, 0), 4), ((0, 4), 32), ((8, 0), 256)]),
        (Order::Rdna3, 32, &[((1, 0), 16), ((0, 16), 256), ((0, 15), 15)]),
        (Order::Rdna4, 32, &[((1, 0), 8), ((0, 8), 128), ((0, 16), 256)]),
        (Order::NMajor, 32, &[((1, 0), 32), ((0, 1), 1)]),
        (Order::KMajor, 32, &[((1, 0), 1), ((0, 1), 16)]),
    ];
    for (order, cols, golden) in table {
        for &((n, k), at) in golden {
            let mut src = vec![0; 16 * cols];
            src[n * cols + k] = 1;
            for level in Level::available() {
                let out = packed(level, order, 16, cols, &src);
                assert_eq!(out.iter().position(|b| *b == 1), Some(at), "{order} ({n}, {k})");
            }
        }
    }
}

/// What the instructions make of a pack, `[m][n]`, against the product in integers.
#[track_caller]
fn check_product(order: Order, rows: usize, cols: usize, weights: &[u8], activations: &[Vec<i8>]) {
    let pack = packed(*Level::available().last().expect("one at least"), order, rows, cols, weights);
    for (tile, pack) in pack.chunks(16 * cols).enumerate() {
        let got = instruction::product(order, pack, activations, cols);
        for (m, x) in activations.iter().enumerate() {
            for n in 0..16 {
                let w = &weights[(tile * 16 + n) * cols..][..cols];
                let want: i64 = x.iter().zip(w).map(|(&x, &w)| i64::from(x) * i64::from(w as i8)).sum();
                assert_eq!(i64::from(got[m][n]), want, "{order} m {m} n {}", tile * 16 + n);
            }
        }
    }
}

fn fragments() -> impl Iterator<Item = Order> {
    Order::ALL.into_iter().filter(|order| !matches!(order, Order::NMajor | Order::KMajor))
}

#[test]
fn instructions_multiply_what_was_packed() {
    let mut random = Random(4);
    for order in fragments() {
        let (rows, cols) = (32, 192);
        let m = instruction::activation_rows(order);
        let weights = random.bytes(rows * cols);
        let activations: Vec<Vec<i8>> =
            (0..m).map(|_| random.bytes(cols).iter().map(|b| *b as i8).collect()).collect();
        check_product(order, rows, cols, &weights, &activations);
        check_product(order, rows, cols, &vec![0x80; rows * cols], &vec![vec![-128; cols]; m]);
    }
}

#[test]
fn one_weight_meets_one_activation() {
    for order in fragments() {
        let cols = order.col_tile() as usize;
        let rows = instruction::activation_rows(order);
        for (n0, k0) in (0..16).flat_map(|n| (0..cols).map(move |k| (n, k))) {
            let m0 = (n0 * 5 + k0) % rows;
            let mut weights = vec![0; 16 * cols];
            weights[n0 * cols + k0] = 1;
            let mut activations = vec![vec![0; cols]; rows];
            activations[m0][k0] = 1;
            let pack = packed(Level::PORTABLE, order, 16, cols, &weights);
            let got = instruction::product(order, &pack, &activations, cols);
            for (m, n) in (0..rows).flat_map(|m| (0..16).map(move |n| (m, n))) {
                assert_eq!(got[m][n], i32::from((m, n) == (m0, n0)), "{order} n {n0} k {k0} at {m} {n}");
            }
        }
    }
}

#[test]
fn lengths_are_checked() {
    let permute = |rows, cols, src: usize, dst: usize| {
        permute_at(Level::PORTABLE, Order::NvA32, rows, cols, &vec![0; src], &mut vec![0; dst])
            .map_err(|e| e.to_string())
    };
    assert_eq!(permute(1, 33, 33, 1024), Ok(()));
    assert_eq!(permute(1, 33, 32, 1024), Err("source: 32 where 33 are needed".into()));
    assert_eq!(permute(1, 33, 33, 1023), Err("quants: 1023 where 1024 are needed".into()));
    let huge =
        format!("a matrix of {} rows and 2 columns is larger than this machine can address", 1_u64 << 60);
    assert_eq!(permute(1 << 60, 2, 0, 0), Err(huge));
    let back = unpermute_at(Level::PORTABLE, Order::NvA32, 1, 33, &[0; 1024], &mut [0; 34]);
    assert_eq!(back.expect_err("too long").to_string(), "rows: 34 where 33 are needed");
}
