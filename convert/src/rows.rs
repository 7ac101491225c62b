//! Groups of whole rows as bytes of a matrix's planes, and back: for the layouts that
//! [take whole rows](Layout::takes_whole_rows).
//!
//! A group begins at a multiple of [`Layout::row_tile`] and ends at one, or with the matrix. Its planes are packed as
//! if it were a matrix by itself; [`runs`] says where their bytes lie in the matrix's.

use gantry_formats::block::{GgmlType, dequantize};
use gantry_formats::layout::{Layout, Order, Scales};
use gantry_packer::q8_0::Stats;
use gantry_packer::{PackError, check_finite, e8, int8, rotation};

/// A group of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) layout: Layout,
    /// Type of the source.
    pub(crate) ty: GgmlType,
    pub(crate) rows: u64,
    pub(crate) cols: u64,
}

/// Buffers that packing and unpacking use again and again: one per thread.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// The planes of a group, of which the layout says how many there are.
    pub(crate) planes: [Vec<u8>; 3],
    values: Vec<f32>,
    importance: Vec<f32>,
    /// The planes of E8 whose matrix has them block by block.
    split: [Vec<u8>; 3],
}

/// Bytes of a plane of a group, and where they lie in the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Plane.
    pub(crate) plane: usize,
    /// First byte in the group's plane.
    pub(crate) from: usize,
    pub(crate) len: usize,
    /// First byte in the matrix's plane.
    pub(crate) to: u64,
}

/// Where the bytes of a group of `rows` rows that begins at `first_row` of a `[rows, cols]` matrix lie in it.
pub(crate) fn runs(layout: Layout, matrix: (u64, u64), first_row: u64, rows: u64) -> Vec<Run> {
    let (all, cols) = layout.padded(matrix.0, matrix.1).unwrap_or(matrix);
    let rows = rows.next_multiple_of(layout.row_tile());
    let whole = |plane, row_bytes: u64| Run {
        plane,
        from: 0,
        len: (rows * row_bytes) as usize,
        to: first_row * row_bytes,
    };
    match layout {
        Layout::E8Block98 { .. } => vec![whole(0, cols / 256 * 98)],
        Layout::E8Planar { .. } => vec![whole(0, cols / 4), whole(1, cols / 8), whole(2, cols / 128)],
        Layout::I8 { order, scales, .. } => {
            let scales = whole(
                1,
                match scales {
                    Scales::Channel => 4,
                    Scales::Block32 => cols / 16,
                },
            );
            if order != Order::KMajor {
                return vec![whole(0, cols), scales];
            }
            let line = |k: u64| Run {
                plane: 0,
                from: (k * rows) as usize,
                len: rows as usize,
                to: k * all + first_row,
            };
            (0..cols).map(line).chain([scales]).collect()
        }
        Layout::Raw(_) | Layout::Block(_) | Layout::Q8_0Split { .. } => Vec::new(),
    }
}

/// The element `(row, column)` that byte `at` of plane `plane` is for, or the first of those; `None` in padding.
pub(crate) fn element(group: Group, plane: usize, at: u64) -> Option<(u64, u64)> {
    let Group { layout, rows, cols, .. } = group;
    let row_major = |i: u64| (i / cols.max(1), i % cols.max(1));
    let (n, k) = match (layout, plane) {
        (Layout::I8 { order, scales, .. }, _) => {
            let (all, width) = layout.padded(rows, cols)?;
            match (plane, scales) {
                (0, _) => order.element(at, all, width),
                (_, Scales::Channel) => (at / 4, 0),
                (_, Scales::Block32) => (at / 2 / (width / 32), at / 2 % (width / 32) * 32),
            }
        }
        (Layout::Raw(ty) | Layout::Block(ty), _) => row_major(at / ty.block_bytes() * ty.block_len()),
        (Layout::Q8_0Split { .. }, 0) => row_major(at),
        (Layout::Q8_0Split { .. }, _) => row_major(at * 16),
        (Layout::E8Block98 { .. }, _) => row_major(at / 98 * 256),
        (Layout::E8Planar { .. }, 0) => row_major(at * 4),
        (Layout::E8Planar { .. }, 1) => row_major(at * 8),
        (Layout::E8Planar { .. }, _) => row_major(at * 128),
    };
    (n < rows && k < cols).then_some((n, k))
}

impl Buffers {
    /// Gives the planes of a group their lengths.
    pub(crate) fn resize(&mut self, group: Group) {
        let planes = group.layout.planes(group.rows, group.cols).unwrap_or_default();
        for (buffer, plane) in self.planes.iter_mut().zip(&planes) {
            buffer.resize(plane.bytes as usize, 0);
        }
    }

    /// Packs `src`, the group's rows in the source; the result is in [`planes`](Self::planes). `importance` weights
    /// the error of unrotated E8, by column.
    ///
    /// # Errors
    /// What the packer refuses, counted from the group's first value.
    pub(crate) fn pack(
        &mut self,
        group: Group,
        options: e8::Options,
        importance: Option<&[f32]>,
        src: &[u8],
    ) -> Result<Stats, PackError> {
        self.resize(group);
        let Group { layout, ty, rows, cols } = group;
        let (rows, cols) = (rows as usize, cols as usize);
        match layout {
            Layout::I8 { order, scales, .. } => {
                let [quants, scale_plane, _] = &mut self.planes;
                int8::quantize(int8::Form { order, scales, rows, cols }, ty, src, quants, scale_plane)
            }
            Layout::E8Planar { .. } => {
                let mut planes = std::mem::take(&mut self.planes);
                let result = self.encode(group, options, importance, src, as_mut(&mut planes));
                self.planes = planes;
                result
            }
            Layout::E8Block98 { .. } => {
                let mut planes = std::mem::take(&mut self.split);
                resize_split(&mut planes, rows * cols);
                let result = self.encode(group, options, importance, src, as_mut(&mut planes));
                self.split = planes;
                e8::join(as_ref(&self.split), &mut self.planes[0])?;
                result
            }
            Layout::Raw(_) | Layout::Block(_) | Layout::Q8_0Split { .. } => Ok(Stats::default()),
        }
    }

    fn encode(
        &mut self,
        group: Group,
        options: e8::Options,
        importance: Option<&[f32]>,
        src: &[u8],
        planes: e8::Planes<&mut [u8]>,
    ) -> Result<Stats, PackError> {
        if group.layout.keeps(group.ty) {
            return e8::import_iq3_xxs(src, planes).map(|()| Stats::default());
        }
        check_finite(group.ty, src)?;
        let (n, cols) = ((group.rows * group.cols) as usize, group.cols as usize);
        self.values.resize(n, 0.0);
        dequantize(group.ty, src, &mut self.values)?;
        if group.layout.is_rotated() {
            rotation::rotate(&mut self.values, cols)?;
        }
        self.importance.clear();
        if let Some(columns) = importance {
            self.importance.extend(columns.iter().copied().cycle().take(n));
        }
        e8::encode(options, &self.values, importance.map(|_| self.importance.as_slice()), planes)
    }

    /// The way back, from [`planes`](Self::planes): the group's rows as bytes of `layout.unpacked_type(ty)`.
    ///
    /// # Errors
    /// Where a stored block has no form in that type.
    pub(crate) fn unpack(&mut self, group: Group, out: &mut [u8]) -> Result<(), PackError> {
        let Group { layout, ty, rows, cols } = group;
        let (rows, cols) = (rows as usize, cols as usize);
        match layout {
            Layout::I8 { order, scales: scales @ Scales::Block32, .. } => {
                let form = int8::Form { order, scales, rows, cols };
                int8::to_blocks(form, layout.unpacked_type(ty), &self.planes[0], &self.planes[1], out)
            }
            _ if layout.is_e8() && layout.keeps(ty) => e8::export_iq3_xxs(self.e8(group)?, out),
            _ => {
                let mut values = std::mem::take(&mut self.values);
                values.resize(rows * cols, 0.0);
                self.values(group, &mut values)?;
                for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(&values) {
                    *out = value.to_le_bytes();
                }
                self.values = values;
                Ok(())
            }
        }
    }

    /// The group's values as the kernels compute with them, from [`planes`](Self::planes).
    ///
    /// # Errors
    /// Where a plane has another length than the group asks for.
    pub(crate) fn values(&mut self, group: Group, out: &mut [f32]) -> Result<(), PackError> {
        let Group { layout, rows, cols, .. } = group;
        let (rows, cols) = (rows as usize, cols as usize);
        match layout {
            Layout::I8 { order, scales, .. } => {
                let form = int8::Form { order, scales, rows, cols };
                int8::dequantize(form, &self.planes[0], &self.planes[1], out)
            }
            Layout::E8Planar { .. } | Layout::E8Block98 { .. } => {
                e8::decode(self.e8(group)?, out)?;
                if layout.is_rotated() { rotation::unrotate(out, cols) } else { Ok(()) }
            }
            Layout::Raw(_) | Layout::Block(_) | Layout::Q8_0Split { .. } => Ok(()),
        }
    }

    /// The planes of a group of E8, wherever they lie.
    fn e8(&mut self, group: Group) -> Result<e8::Planes<&[u8]>, PackError> {
        if let Layout::E8Block98 { .. } = group.layout {
            resize_split(&mut self.split, (group.rows * group.cols) as usize);
            e8::split(&self.planes[0], as_mut(&mut self.split))?;
            return Ok(as_ref(&self.split));
        }
        Ok(as_ref(&self.planes))
    }
}

fn resize_split([indices, words, scales]: &mut [Vec<u8>; 3], values: usize) {
    indices.resize(values / 4, 0);
    words.resize(values / 8, 0);
    scales.resize(values / 128, 0);
}

fn as_mut([indices, words, scales]: &mut [Vec<u8>; 3]) -> e8::Planes<&mut [u8]> {
    e8::Planes { indices, words, scales }
}

fn as_ref([indices, words, scales]: &[Vec<u8>; 3]) -> e8::Planes<&[u8]> {
    e8::Planes { indices, words, scales }
}
