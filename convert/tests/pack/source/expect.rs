//! What stored bytes must be, in scalar code: one value at a time, straight from the definitions.

use gantry_formats::block::{GgmlType, dequantize, e8, q8_0};
use gantry_formats::layout::{Layout, Scales};
use gantry_formats::rotation;

/// Rows of a source tensor.
pub(super) struct Rows {
    pub(super) ty: GgmlType,
    pub(super) cols: usize,
    pub(super) bytes: Vec<u8>,
}

impl Rows {
    fn values(&self) -> Vec<f32> {
        let blocks = self.bytes.len() / self.ty.block_bytes() as usize;
        let mut x = vec![0.0; blocks * self.ty.block_len() as usize];
        dequantize(self.ty, &self.bytes, &mut x).expect("whole blocks");
        x
    }

    /// Quants and fp16 scales per 32: those of the source where its type is one of `kept`, else of Q8_0.
    fn blocks(&self, kept: &[GgmlType]) -> Vec<([i8; 32], [u8; 2])> {
        if kept.contains(&self.ty) {
            let size = self.ty.block_bytes() as usize;
            let blocks = self.bytes.chunks(size);
            // With a scale of one the values are the quants.
            return blocks
                .map(|block| {
                    let mut one = block.to_vec();
                    one[..2].copy_from_slice(&0x3c00_u16.to_le_bytes());
                    let mut x = [0.0; 32];
                    dequantize(self.ty, &one, &mut x).expect("a block");
                    (x.map(|x| x as i8), [block[0], block[1]])
                })
                .collect();
        }
        let values = self.values();
        let blocks = values.as_chunks::<32>().0.iter();
        blocks
            .map(|x| {
                let bytes = q8_0::quantize_block(x).expect("finite").to_bytes();
                (std::array::from_fn(|i| bytes[2 + i] as i8), [bytes[0], bytes[1]])
            })
            .collect()
    }
}

/// Checks one stored matrix.
pub(super) fn check(layout: Layout, parts: &[Rows], found: &[u8], name: &str) {
    let cols = parts[0].cols;
    let all = |f: fn(&Rows) -> Vec<f32>| -> Vec<f32> { parts.iter().flat_map(f).collect() };
    match layout {
        Layout::Raw(_) | Layout::Block(_) => {
            assert!(found == parts.iter().flat_map(|p| p.bytes.clone()).collect::<Vec<_>>(), "{name}");
        }
        Layout::Q8_0Split { plane_align } => {
            let blocks: Vec<_> = parts.iter().flat_map(|p| p.blocks(&[GgmlType::Q8_0])).collect();
            let mut want: Vec<u8> = blocks.iter().flat_map(|b| b.0.map(|q| q as u8)).collect();
            want.resize(want.len().next_multiple_of(plane_align as usize), 0);
            want.extend(blocks.iter().flat_map(|b| b.1));
            assert!(found == want, "{name}");
        }
        Layout::I8 { .. } => assert!(found == int8(layout, parts, cols), "{name}: {layout}"),
        Layout::E8Block98 { rotated } | Layout::E8Planar { rotated, .. } => {
            let mut values = e8_values(layout, found, cols);
            for row in values.chunks_mut(cols).filter(|_| rotated) {
                rotation::unrotate(row).expect("a width of blocks");
            }
            let want = all(Rows::values);
            assert_eq!(values.len(), want.len(), "{name}");
            if layout.keeps(parts[0].ty) {
                assert!(values == want, "{name}");
                return;
            }
            let square = |x: f64| x * x;
            let error: f64 = values.iter().zip(&want).map(|(a, b)| square(f64::from(a - b))).sum();
            let power: f64 = want.iter().map(|x| square(f64::from(*x))).sum();
            // Random values from a uniform distribution are easier than Gaussian ones.
            assert!(error < 0.05 * power, "{name}: {layout}: relative error {}", error / power);
        }
    }
}

/// Types that are int8 times fp16 per 32.
const INT8: [GgmlType; 4] = [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q5_0, GgmlType::IQ4_NL];

fn int8(layout: Layout, parts: &[Rows], cols: usize) -> Vec<u8> {
    let Layout::I8 { order, scales, .. } = layout else { unreachable!("asked for int8 only") };
    let mut rows: Vec<(Vec<i8>, Vec<u8>)> = Vec::new();
    for part in parts {
        match scales {
            Scales::Block32 => {
                let blocks = part.blocks(&INT8);
                for row in blocks.chunks(cols / 32) {
                    rows.push((
                        row.iter().flat_map(|b| b.0).collect(),
                        row.iter().flat_map(|b| b.1).collect(),
                    ));
                }
            }
            Scales::Channel => {
                for row in part.values().chunks(cols) {
                    let d = row.iter().fold(0.0f32, |m, x| m.max(x.abs())) / 127.0;
                    let id = if d == 0.0 || !(1.0 / d).is_finite() { 0.0 } else { 1.0 / d };
                    rows.push((row.iter().map(|x| (x * id).round() as i8).collect(), d.to_le_bytes().into()));
                }
            }
        }
    }
    let n = rows.len() as u64;
    let (padded_rows, padded_cols) = layout.padded(n, cols as u64).expect("small");
    let planes = layout.planes(n, cols as u64).expect("it tiles");
    let mut out = vec![0; layout.bytes(n, cols as u64).expect("small") as usize];
    for (row, (quants, scale)) in rows.iter().enumerate() {
        for (k, q) in quants.iter().enumerate() {
            out[order.offset(row as u64, k as u64, padded_rows, padded_cols) as usize] = *q as u8;
        }
        let step = planes[1].bytes / padded_rows;
        let at = (planes[1].offset + row as u64 * step) as usize;
        out[at..at + scale.len()].copy_from_slice(scale);
    }
    out
}

fn e8_values(layout: Layout, found: &[u8], cols: usize) -> Vec<f32> {
    let mut out = Vec::new();
    let Layout::E8Planar { plane_align, .. } = layout else {
        found.as_chunks::<98>().0.iter().for_each(|block| out.extend(e8::decode(block)));
        return out;
    };
    // The planes' lengths from the whole, to know how many rows there are.
    let align = u64::from(plane_align);
    let rows = (1..).find(|rows| layout.bytes(*rows, cols as u64) == Some(found.len() as u64));
    let blocks = rows.expect("a whole number of rows") as usize * cols / 256;
    let words = (blocks * 64).next_multiple_of(align as usize);
    let scales = (words + blocks * 32).next_multiple_of(align as usize);
    for i in 0..blocks {
        let mut block = [0; 98];
        block[..64].copy_from_slice(&found[i * 64..][..64]);
        block[64..96].copy_from_slice(&found[words + i * 32..][..32]);
        block[96..].copy_from_slice(&found[scales + i * 2..][..2]);
        out.extend(e8::decode(&block));
    }
    out
}
