//! Orders of int8 weights: in the very order in which a matrix instruction loads them.
//!
//! An order is a bijection between the elements `(n, k)` of a `[rows, cols]` matrix, padded with zeros to whole
//! tiles, and its bytes. Fragment orders go tile by tile: 16 rows (`vnni8`: 8), each tile all of K, then the next.

use std::fmt;

/// How int8 weights are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scales {
    /// One f32 per row: value = q · scale. Int32 sums over a row are exact for up to 131,071 columns.
    Channel,
    /// One fp16 per 32 columns of a row, those of Q8_0, so that Q8_0 fits without loss.
    Block32,
}

impl Scales {
    /// `channel` or `block32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::Block32 => "block32",
        }
    }

    /// The kind called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Channel, Self::Block32].into_iter().find(|s| s.name() == name)
    }
}

impl fmt::Display for Scales {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An order. `r = n & 15` is the row inside a tile; K is the number of columns with padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// NVIDIA `mma.m16n8k32`, the weight as the A operand of 16 rows, k permuted inside 32: a lane loads 16 bytes
    /// per instruction, and 8 consecutive activations.
    NvA32,
    /// The same with k permuted inside 64: 16 consecutive activations serve two instructions.
    NvA64,
    /// gfx928 m16n16k32 and CDNA3 `mfma_i32_16x16x32_i8`: 8 bytes for each of 64 lanes.
    Slot8,
    /// The same in loads of 16 bytes: each half one step of k = 32.
    Slot16,
    /// gfx942 and gfx950 as composable-kernel preshuffles them: 16 consecutive k for each lane.
    Ck16,
    /// RDNA3 WMMA 16x16x16: 16 consecutive k for each row.
    Rdna3,
    /// RDNA4 WMMA 16x16x16: 8 consecutive k for each of 32 lanes.
    Rdna4,
    /// Intel DPAS 8x16x32, AMX and AVX-512 VNNI: 4 consecutive k of 16 rows side by side.
    Vnni16,
    /// Intel DPAS of 8 lanes: 4 consecutive k of 8 rows side by side.
    Vnni8,
    /// Row after row: element (n, k) at n·K + k.
    NMajor,
    /// Column after column: element (n, k) at k·N + n, N being the rows with padding.
    KMajor,
}

impl Order {
    /// Every order.
    pub const ALL: [Self; 11] = [
        Self::NvA32,
        Self::NvA64,
        Self::Slot8,
        Self::Slot16,
        Self::Ck16,
        Self::Rdna3,
        Self::Rdna4,
        Self::Vnni16,
        Self::Vnni8,
        Self::NMajor,
        Self::KMajor,
    ];

    /// Rows that every order is padded to a multiple of.
    pub const ROW_TILE: u64 = 16;

    /// Name of the layout tag.
    pub fn name(self) -> &'static str {
        match self {
            Self::NvA32 => "i8.frag.nv_a32",
            Self::NvA64 => "i8.frag.nv_a64",
            Self::Slot8 => "i8.frag.slot8",
            Self::Slot16 => "i8.frag.slot16",
            Self::Ck16 => "i8.frag.ck16",
            Self::Rdna3 => "i8.frag.rdna3",
            Self::Rdna4 => "i8.frag.rdna4",
            Self::Vnni16 => "i8.frag.vnni16",
            Self::Vnni8 => "i8.frag.vnni8",
            Self::NMajor => "i8.nmajor",
            Self::KMajor => "i8.kmajor",
        }
    }

    /// The order whose tag is called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|o| o.name() == name)
    }

    /// Columns that it is padded to a multiple of.
    pub fn col_tile(self) -> u64 {
        match self {
            Self::NvA64 | Self::Slot16 | Self::Ck16 => 64,
            _ => 32,
        }
    }

    /// Whether weights scaled so may lie in this order. In `nv_a64` and `ck16` one instruction sums over values of
    /// two blocks of 32, which have two scales.
    pub fn takes(self, scales: Scales) -> bool {
        match scales {
            Scales::Channel => true,
            Scales::Block32 => !matches!(self, Self::NvA64 | Self::Ck16),
        }
    }

    /// Byte of element `(n, k)`; `rows` and `cols` are the extents with padding, of which both are multiples of
    /// the tile.
    pub fn offset(self, n: u64, k: u64, rows: u64, cols: u64) -> u64 {
        let r = n & 15;
        match self {
            Self::NvA32 => {
                let (lane, byte) =
                    (4 * (r & 7) + ((k & 31) >> 3), (k & 3) + 4 * (r >> 3) + 8 * ((k >> 2) & 1));
                ((n >> 4) * (cols / 32) + (k >> 5)) * 512 + lane * 16 + byte
            }
            Self::NvA64 => {
                let word = (k & 15) >> 2;
                let (step, half, lane) = (word >> 1, word & 1, 4 * (r & 7) + ((k & 63) >> 4));
                let byte = (k & 3) + 4 * (r >> 3) + 8 * half;
                ((n >> 4) * (cols / 64) + (k >> 6)) * 1024 + step * 512 + lane * 16 + byte
            }
            Self::Slot8 => {
                (((n >> 4) * (cols / 32) + (k >> 5)) * 64 + 16 * ((k & 31) >> 3) + r) * 8 + (k & 7)
            }
            Self::Slot16 => {
                let (lane, byte) = (16 * ((k & 31) >> 3) + r, 8 * ((k >> 5) & 1) + (k & 7));
                ((n >> 4) * (cols / 64) + (k >> 6)) * 1024 + lane * 16 + byte
            }
            Self::Ck16 => {
                ((n >> 4) * (cols / 64) + (k >> 6)) * 1024 + ((k >> 4) & 3) * 256 + r * 16 + (k & 15)
            }
            Self::Rdna3 => ((n >> 4) * (cols / 16) + (k >> 4)) * 256 + r * 16 + (k & 15),
            Self::Rdna4 => {
                ((n >> 4) * (cols / 16) + (k >> 4)) * 256 + (16 * ((k & 15) >> 3) + r) * 8 + (k & 7)
            }
            Self::Vnni16 => {
                ((n >> 4) * (cols / 32) + (k >> 5)) * 512 + ((k & 31) >> 2) * 64 + r * 4 + (k & 3)
            }
            Self::Vnni8 => {
                ((n >> 3) * (cols / 32) + (k >> 5)) * 256 + ((k & 31) >> 2) * 32 + (n & 7) * 4 + (k & 3)
            }
            Self::NMajor => n * cols + k,
            Self::KMajor => k * rows + n,
        }
    }
}

impl Order {
    /// The element `(n, k)` at a byte, which may lie in the padding: the inverse of [`offset`](Self::offset). `byte` is
    /// less than rows · cols.
    pub fn element(self, byte: u64, rows: u64, cols: u64) -> (u64, u64) {
        match self {
            Self::NMajor => (byte / cols, byte % cols),
            Self::KMajor => (byte % rows, byte / rows),
            _ => {
                // Tiles follow one another along K, then along N; inside one the order is looked up.
                let (height, width) = (if self == Self::Vnni8 { 8 } else { 16 }, self.col_tile());
                let tile = byte / (height * width);
                let (n, k) = (tile / (cols / width) * height, tile % (cols / width) * width);
                let mut inside = (n..n + height).flat_map(|n| (k..k + width).map(move |k| (n, k)));
                let is = |&(n, k): &(u64, u64)| self.offset(n, k, rows, cols) == byte;
                inside.find(is).unwrap_or((n, k))
            }
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_holds_one_element() {
        for order in Order::ALL {
            for (rows, cols) in [(16, 64), (48, 192)] {
                let mut seen = vec![false; (rows * cols) as usize];
                for (n, k) in (0..rows).flat_map(|n| (0..cols).map(move |k| (n, k))) {
                    let at = order.offset(n, k, rows, cols) as usize;
                    assert_eq!(order.element(at as u64, rows, cols), (n, k), "{order} byte {at}");
                    assert!(!std::mem::replace(&mut seen[at], true), "{order}: byte {at} twice");
                }
                assert!(seen.iter().all(|s| *s), "{order}");
            }
        }
    }

    /// Element (n, k) and its byte.
    type Golden = ((u64, u64), u64);

    #[test]
    fn published_offsets() {
        let table: [(Order, u64, &[Golden]); 11] = [
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
                assert_eq!(order.offset(n, k, 16, cols), at, "{order} ({n}, {k})");
            }
        }
    }

    #[test]
    fn names_and_scales() {
        for order in Order::ALL {
            assert_eq!(Order::from_name(order.name()), Some(order));
            assert!(order.takes(Scales::Channel));
        }
        let both: Vec<Order> = Order::ALL.into_iter().filter(|o| !o.takes(Scales::Block32)).collect();
        assert_eq!(both, [Order::NvA64, Order::Ck16]);
        assert_eq!(Order::from_name("i8.frag"), None);
        assert_eq!(Scales::from_name("block32"), Some(Scales::Block32));
    }
}
