//! `gantry inspect --layout`: a layout drawn as text, which source element sits at which byte. For people who write
//! kernels.

use crate::failure::Refusal;
use gantry_formats::exit::Exit;
use gantry_formats::layout::{Layout, Order, Scales};
use serde_json::{Value, json};
use std::fmt::Write;

/// Bytes of a line.
const LINE: u64 = 16;

/// Reads a layout's name; one of int8 may go without its scales, which do not show in the order.
///
/// # Errors
/// Where there is no such layout.
pub(super) fn parse(name: &str) -> anyhow::Result<Layout> {
    let with_scales = |scales: &str| Layout::from_name(&format!("{name}:{scales}"));
    let known = Layout::from_name(name).or_else(|| with_scales("block32")).or_else(|| with_scales("channel"));
    known.ok_or_else(|| {
        let orders: Vec<&str> = Order::ALL.iter().map(|o| o.name()).collect();
        let text = format!(
            "--layout {name}: there is no such layout; known are q8_0.split, e8.planar, e8.block98, {}, raw.TYPE and \
             gguf.TYPE",
            orders.join(", ")
        );
        Refusal::new(Exit::Usage, text)
    })
}

/// The drawing.
pub(super) fn text(layout: Layout) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, layout);
    out
}

/// For programs: the tag, and of an order the element at each byte of the first tile.
pub(super) fn to_json(layout: Layout) -> Value {
    let Layout::I8 { order, .. } = layout else { return json!({ "layout": layout.tag() }) };
    let elements: Vec<[u64; 2]> = tile(order).into_iter().map(|(n, k)| [n, k]).collect();
    json!({ "layout": layout.tag(), "tile": [Order::ROW_TILE, order.col_tile()], "elements": elements })
}

/// The element at each byte of a matrix of one tile.
fn tile(order: Order) -> Vec<(u64, u64)> {
    let (rows, cols) = (Order::ROW_TILE, order.col_tile());
    let mut out = vec![(0, 0); (rows * cols) as usize];
    for (n, k) in (0..rows).flat_map(|n| (0..cols).map(move |k| (n, k))) {
        out[order.offset(n, k, rows, cols) as usize] = (n, k);
    }
    out
}

/// What an element of a matrix is called by: runs of bytes that go along a row, or along a column.
pub(super) fn runs(elements: &[(u64, u64)]) -> String {
    let mut out = Vec::new();
    let mut at = 0;
    while at < elements.len() {
        let (n, k) = elements[at];
        let along = |dn: u64, dk: u64| {
            let same = elements[at..].iter().enumerate();
            same.take_while(|(i, e)| **e == (n + dn * *i as u64, k + dk * *i as u64)).count() as u64
        };
        let (row, col) = (along(0, 1), along(1, 0));
        out.push(match (row, col) {
            (1, 1) => format!("({n}, {k})"),
            _ if row >= col => format!("({n}, {k}-{})", k + row - 1),
            _ => format!("({n}-{}, {k})", n + col - 1),
        });
        at += row.max(col) as usize;
    }
    out.join(" ")
}

fn write(out: &mut String, layout: Layout) -> std::fmt::Result {
    writeln!(out, "{layout}")?;
    match layout {
        Layout::Raw(ty) => writeln!(out, "{ty} values, row after row"),
        Layout::Block(ty) => {
            let (bytes, len) = (ty.block_bytes(), ty.block_len());
            writeln!(out, "GGUF blocks of {ty}, row after row: {bytes} bytes for {len} values")
        }
        Layout::Q8_0Split { plane_align } => {
            writeln!(out, "plane quants  int8, W[n][k] at n * cols + k")?;
            writeln!(out, "plane scales  fp16, of W[n][32 b ..] at 2 * (n * cols/32 + b)")?;
            writeln!(out, "value         scale * quant; planes start at multiples of {plane_align}")
        }
        Layout::E8Block98 { rotated } => {
            writeln!(out, "blocks of 98 bytes for 256 weights, row after row")?;
            e8(out, rotated, [0, 64, 96])
        }
        Layout::E8Planar { rotated, plane_align } => {
            writeln!(out, "three planes, each row after row, at multiples of {plane_align}")?;
            writeln!(out, "plane indices  64 bytes for 256 weights")?;
            writeln!(out, "plane words    32 bytes for 256 weights")?;
            writeln!(out, "plane scales    2 bytes for 256 weights")?;
            e8(out, rotated, [0, 0, 0])
        }
        Layout::I8 { order, scales, plane_align } => {
            let (rows, cols) = (Order::ROW_TILE, order.col_tile());
            writeln!(out, "int8, padded with zeros to tiles of {rows} rows and {cols} columns")?;
            match scales {
                Scales::Channel => writeln!(out, "plane scales  f32, of row n at 4 * n")?,
                Scales::Block32 => {
                    writeln!(out, "plane scales  fp16, of W[n][32 b ..] at 2 * (n * K/32 + b)")?
                }
            }
            writeln!(out, "planes start at multiples of {plane_align}; N and K are the padded extents")?;
            writeln!(out, "plane quants  of a matrix of one tile, W[n][k] as (n, k):\n")?;
            writeln!(out, "{:>6}  elements", "byte")?;
            let elements = tile(order);
            for (i, line) in elements.chunks(LINE as usize).enumerate() {
                writeln!(out, "{:>6}  {}", i as u64 * LINE, runs(line))?;
            }
            writeln!(out)?;
            next(out, order, "columns", 0, cols)?;
            next(out, order, "rows", rows, 0)
        }
    }
}

/// How far the next tile is, in a matrix of two by two.
fn next(out: &mut String, order: Order, what: &str, n: u64, k: u64) -> std::fmt::Result {
    let (rows, cols) = (2 * Order::ROW_TILE, 2 * order.col_tile());
    let step = order.offset(n, k, rows, cols);
    let words = match (order, what) {
        (Order::KMajor, "columns") => format!("{} * N bytes", order.col_tile()),
        (Order::KMajor, _) | (_, "columns") => format!("{step} bytes"),
        _ => format!("{} * K bytes", Order::ROW_TILE),
    };
    writeln!(out, "the next {} {what} are {words} further", n.max(k))
}

fn e8(out: &mut String, rotated: bool, at: [u64; 3]) -> std::fmt::Result {
    let [indices, words, scale] = at;
    writeln!(out, "\n{:>6}  content", "byte")?;
    for i in (0..64).step_by(8) {
        let last = 4 * (i + 8) - 1;
        writeln!(out, "{:>6}  codebook indices of weights {}-{last}, 4 to a byte", indices + i, 4 * i)?;
    }
    for i in 0..8 {
        let (first, last) = (32 * i, 32 * i + 31);
        writeln!(out, "{:>6}  u32: signs and sub-scale c of weights {first}-{last}", words + 4 * i)?;
    }
    writeln!(out, "{scale:>6}  fp16 super-scale d\n")?;
    writeln!(out, "u32     bits 7l to 7l+6: signs of weights 8l to 8l+6, set for negative; l: 0-3")?;
    writeln!(out, "        bits 28 to 31: c; weight 8l+7 makes the number of negatives even")?;
    writeln!(out, "value   sign * d * (0.5 + c) * 0.5 * codebook[index][j] * 0.5")?;
    match rotated {
        true => writeln!(out, "rows were rotated: rotate the activations likewise"),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_drawn_run_by_run() {
        let nv = text(parse("i8.frag.nv_a32").expect("known"));
        assert!(nv.contains("     0  (0, 0-3) (8, 0-3) (0, 4-7) (8, 4-7)\n"), "{nv}");
        assert!(nv.contains("    64  (1, 0-3) (9, 0-3) (1, 4-7) (9, 4-7)\n"), "{nv}");
        assert!(nv.contains("the next 32 columns are 512 bytes further"), "{nv}");
        assert!(nv.contains("the next 16 rows are 16 * K bytes further"), "{nv}");
        let slot = text(parse("i8.frag.slot16:channel").expect("known"));
        assert!(slot.contains("    16  (1, 0-7) (1, 32-39)\n"), "{slot}");
        let kmajor = text(parse("i8.kmajor").expect("known"));
        assert!(kmajor.contains("    16  (0-15, 1)\n"), "{kmajor}");
        assert!(kmajor.contains("the next 32 columns are 32 * N bytes further"), "{kmajor}");
    }

    #[test]
    fn every_layout_is_drawn_in_eighty_columns() {
        for layout in Layout::all() {
            let drawn = text(layout);
            assert!(drawn.lines().all(|l| l.chars().count() <= 80), "{drawn}");
            assert!(drawn.starts_with(&layout.to_string()));
            assert_eq!(to_json(layout)["layout"]["name"].as_str().map(|n| drawn.starts_with(n)), Some(true));
        }
        assert!(parse("i9").is_err());
    }
}
