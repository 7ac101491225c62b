//! Strips of int8 between row-major and a matrix instruction's order: 16 rows (8 for `vnni8`), tile after tile of k.
//!
//! Every order moves runs of contiguous k: 4 bytes (`nv_*`, `vnni*`), 8 (`slot*`, `rdna4`) or 16 (`ck16`, `rdna3`).
//! Which run goes where is written down once as a loop here, and once as shuffles in `strips_avx2`.

#[cfg(target_arch = "x86_64")]
use super::strips_avx2 as avx2;
use super::{Kind, Level};
use gantry_formats::layout::Order;

/// Rows of a strip: those whose bytes are interleaved. Orders without tiles have none.
pub(crate) fn rows_of(order: Order) -> usize {
    if order == Order::Vnni8 { 8 } else { 16 }
}

/// Bytes that a strip of `order` takes for each tile of k.
fn tile_bytes(order: Order) -> usize {
    rows_of(order) * order.col_tile() as usize
}

impl Level {
    /// Packs whole tiles of one strip: row r starts at byte `r · stride` of `rows`; `strip` is as long as the tiles
    /// are. With `stream` the bytes go past the cache, for outputs that it cannot hold.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    pub(crate) fn pack_strip(self, order: Order, rows: &[u8], stride: usize, strip: &mut [u8], stream: bool) {
        let tiles = expect_strip(order, strip.len(), rows.len(), stride);
        match self.0 {
            Kind::Portable => portable::<false>(order, tiles, |to, (r, k), n| {
                strip[to..to + n].copy_from_slice(&rows[r * stride + k..][..n]);
            }),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: AVX2 was detected (AVX-512 includes it); `expect_strip` checked both lengths.
            Kind::Avx2 | Kind::Avx512 => unsafe {
                if stream && strip.as_ptr().addr().is_multiple_of(16) {
                    avx2::pack::<true>(order, rows.as_ptr(), stride, tiles, strip.as_mut_ptr());
                } else {
                    avx2::pack::<false>(order, rows.as_ptr(), stride, tiles, strip.as_mut_ptr());
                }
            },
        }
    }

    /// The inverse of [`Self::pack_strip`].
    pub(crate) fn unpack_strip(self, order: Order, strip: &[u8], rows: &mut [u8], stride: usize) {
        let tiles = expect_strip(order, strip.len(), rows.len(), stride);
        match self.0 {
            Kind::Portable => portable::<true>(order, tiles, |from, (r, k), n| {
                rows[r * stride + k..][..n].copy_from_slice(&strip[from..from + n]);
            }),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: AVX2 was detected (AVX-512 includes it); `expect_strip` checked both lengths.
            Kind::Avx2 | Kind::Avx512 => unsafe {
                avx2::unpack(order, strip.as_ptr(), tiles, rows.as_mut_ptr(), stride);
            },
        }
    }

    /// Transposes bytes: `to[c · to_stride + r] = from[r · from_stride + c]` for all r < `rows`, c < `cols`, both
    /// multiples of 16. `stream` as for [`Self::pack_strip`].
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    pub(crate) fn transpose(
        self,
        (rows, cols): (usize, usize),
        (from, from_stride): (&[u8], usize),
        (to, to_stride): (&mut [u8], usize),
        stream: bool,
    ) {
        if rows == 0 || cols == 0 {
            return;
        }
        assert!(rows.is_multiple_of(16) && cols.is_multiple_of(16));
        assert!(from_stride >= cols && (rows - 1) * from_stride + cols <= from.len());
        assert!(to_stride >= rows && (cols - 1) * to_stride + rows <= to.len());
        match self.0 {
            Kind::Portable => {
                for r0 in (0..rows).step_by(16) {
                    for c in 0..cols {
                        let line = &mut to[c * to_stride + r0..][..16];
                        for (r, to) in line.iter_mut().enumerate() {
                            *to = from[(r0 + r) * from_stride + c];
                        }
                    }
                }
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: AVX2 was detected (AVX-512 includes it); both extents were checked just above.
            Kind::Avx2 | Kind::Avx512 => unsafe {
                let (from, to) = ((from.as_ptr(), from_stride), (to.as_mut_ptr(), to_stride));
                super::transpose_avx2::transpose((rows, cols), from, to, stream);
            },
        }
    }
}

/// Tiles in a strip of `strip` bytes, whose rows all lie in `rows` bytes. These are what the kernels rely on.
fn expect_strip(order: Order, strip: usize, rows: usize, stride: usize) -> usize {
    let (size, cols) = (tile_bytes(order), order.col_tile() as usize);
    let tiles = strip / size;
    assert!(strip.is_multiple_of(size), "a strip of {order} has {strip} bytes");
    assert!(
        tiles == 0 || (stride >= tiles * cols && (rows_of(order) - 1) * stride + tiles * cols <= rows),
        "{rows} bytes of rows for {tiles} tiles of {order}"
    );
    tiles
}

/// Calls `copy(byte of the strip, (row, k), length)` for every run of contiguous k; the strip's bytes in order
/// unless `BY_ROW`, and then k in order, so that the side that is written is written in order.
#[inline(always)]
fn portable<const BY_ROW: bool>(order: Order, tiles: usize, copy: impl FnMut(usize, (usize, usize), usize)) {
    match order {
        // Two rows, 8 apart, alternate.
        Order::NvA32 => {
            runs::<4, 16, 32, BY_ROW>(tiles, copy, |r, run| (r & 7) * 64 + run * 8 + (r >> 3) * 4)
        }
        Order::NvA64 => runs::<4, 16, 64, BY_ROW>(tiles, copy, |r, run| {
            ((run >> 1) & 1) * 512 + (r & 7) * 64 + (run >> 2) * 16 + (run & 1) * 8 + (r >> 3) * 4
        }),
        Order::Slot8 | Order::Rdna4 => runs::<8, 16, 32, BY_ROW>(tiles, copy, |r, run| run * 128 + r * 8),
        Order::Slot16 => {
            runs::<8, 16, 64, BY_ROW>(tiles, copy, |r, run| (run & 3) * 256 + r * 16 + (run >> 2) * 8)
        }
        Order::Ck16 => runs::<16, 16, 64, BY_ROW>(tiles, copy, |r, run| run * 256 + r * 16),
        Order::Rdna3 => runs::<16, 16, 32, BY_ROW>(tiles, copy, |r, run| run * 256 + r * 16),
        Order::Vnni16 => runs::<4, 16, 32, BY_ROW>(tiles, copy, |r, run| run * 64 + r * 4),
        Order::Vnni8 => runs::<4, 8, 32, BY_ROW>(tiles, copy, |r, run| run * 32 + r * 4),
        Order::NMajor | Order::KMajor => unreachable!("{order} has no strips"),
    }
}

/// All runs of `LEN` bytes in tiles of `ROWS` × `COLS`; `at` is the byte, inside a tile, of a row's run.
#[inline(always)]
fn runs<const LEN: usize, const ROWS: usize, const COLS: usize, const BY_ROW: bool>(
    tiles: usize,
    mut copy: impl FnMut(usize, (usize, usize), usize),
    at: impl Fn(usize, usize) -> usize,
) {
    let (outer, inner) = if BY_ROW { (ROWS, COLS / LEN) } else { (COLS / LEN, ROWS) };
    for tile in 0..tiles {
        for o in 0..outer {
            for i in 0..inner {
                let (r, run) = if BY_ROW { (o, i) } else { (i, o) };
                copy(tile * ROWS * COLS + at(r, run), (r, tile * COLS + run * LEN), LEN);
            }
        }
    }
}
