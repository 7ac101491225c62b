//! `gantry inspect --tensor NAME --hex`: stored bytes as they lie, with the elements that they are for.

use crate::failure::Refusal;
use crate::rows::{self, Group};
use crate::unpack::{changed, matrix_dims};
use crate::weights::Opened;
use gantry_formats::block::GgmlType;
use gantry_formats::container::Container;
use gantry_formats::exit::Exit;
use gantry_formats::layout::Layout;
use gantry_formats::message::did_you_mean;
use gantry_formats::source::ReadAt;
use serde_json::{Value, json};
use std::fmt::Write;

/// Most bytes that are shown.
const MAX_BYTES: u64 = 1 << 20;
/// Bytes of a line.
const LINE: usize = 16;

/// Which bytes of a stored matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    /// First byte.
    pub(super) at: u64,
    /// How many.
    pub(super) bytes: u64,
    /// Of an expert.
    pub(super) expert: u32,
}

/// A stored matrix and some of its bytes.
pub(super) struct Dump {
    name: String,
    /// The source tensor that was asked for, and its rows, where the matrix holds others too.
    part: Option<(String, [u64; 2])>,
    layout: Layout,
    rows: u64,
    cols: u64,
    at: u64,
    bytes: Vec<u8>,
}

/// Reads bytes of the stored matrix called `name`, or of the one that holds the source tensor of that name.
///
/// # Errors
/// Where there is none, the range leaves it, or it cannot be read.
pub(super) fn dump(opened: &Opened, name: &str, range: Range) -> anyhow::Result<Dump> {
    let Opened::Container(container) = opened else {
        let text = "--hex shows how a container stores a tensor; this is a GGUF";
        return Err(Refusal::new(Exit::Usage, text));
    };
    let stored = find(container, name, range.expert)?;
    let len = stored.layout.bytes(stored.rows, stored.cols).unwrap_or(0);
    if range.at > len || range.bytes > MAX_BYTES {
        let text =
            format!("--at {}: the matrix has {len} bytes, and {MAX_BYTES} are shown at most", range.at);
        return Err(Refusal::new(Exit::Usage, text));
    }
    let mut bytes = vec![0; range.bytes.min(len - range.at) as usize];
    let card = container.card(stored.card)?;
    card.file.read_exact_at(card.offset + stored.offset + range.at, &mut bytes).map_err(changed)?;
    let Stored { name, part, layout, rows, cols, .. } = stored;
    Ok(Dump { name, part, layout, rows, cols, at: range.at, bytes })
}

struct Stored {
    name: String,
    part: Option<(String, [u64; 2])>,
    layout: Layout,
    rows: u64,
    cols: u64,
    card: usize,
    offset: u64,
}

fn find(container: &Container, name: &str, expert: u32) -> anyhow::Result<Stored> {
    let manifest = container.manifest();
    let alias = manifest.aliases.iter().find(|a| a.name == name);
    let name = alias.map_or(name, |a| &a.of);
    let holds = |own: &str, parts: &[gantry_formats::container::Part]| {
        own == name || parts.iter().any(|p| manifest.source_tensors[p.source as usize].name == name)
    };
    // A matrix of this very name, else one that holds it.
    let tensors = || manifest.tensors.iter();
    let exact = tensors().find(|t| t.name == name);
    if let Some(t) = exact.or_else(|| tensors().find(|t| holds(&t.name, &t.parts))) {
        let (rows, cols) = matrix_dims(&t.shape);
        let (mut first, mut part) = (0, None);
        for p in &t.parts {
            let end = first + (p.rows[1] - p.rows[0]);
            if t.parts.len() > 1 && manifest.source_tensors[p.source as usize].name == name {
                part = Some((name.to_string(), [first, end]));
            }
            first = end;
        }
        let layout = container.layouts()[t.layout as usize];
        let (name, card, offset) = (t.name.clone(), t.card as usize, t.offset);
        return Ok(Stored { name, part, layout, rows, cols, card, offset });
    }
    let mut known = false;
    for bank in &manifest.banks {
        let Some(m) = bank.matrices.iter().find(|m| holds(&m.name, &m.parts)) else { continue };
        known = true;
        let Some(slot) = bank.experts.iter().position(|e| *e == expert) else { continue };
        let (rows, cols) = matrix_dims(&m.shape);
        let layout = container.layouts()[m.layout as usize];
        let offset = bank.offset + slot as u64 * bank.stride + m.offset;
        let name = format!("{} expert {expert}", m.name);
        return Ok(Stored { name, part: None, layout, rows, cols, card: bank.card as usize, offset });
    }
    let names = manifest.source_tensors.iter().map(|t| t.name.as_str());
    let hint = did_you_mean(name, names.chain(tensors().map(|t| t.name.as_str())));
    let text = match known {
        true => format!("{name} has no expert {expert}"),
        false => format!("there is no tensor {name}; `gantry inspect FILE --tensors` lists them{hint}"),
    };
    Err(Refusal::new(Exit::Usage, text))
}

impl Dump {
    /// Name of the plane that holds byte `at`, `None` between planes, and the element that it is for, `None` in
    /// padding.
    fn place(&self, at: u64) -> (Option<&'static str>, Option<(u64, u64)>) {
        let planes = self.layout.planes(self.rows, self.cols).unwrap_or_default();
        let found = planes.iter().enumerate().find(|(_, p)| (p.offset..p.offset + p.bytes).contains(&at));
        let Some((i, plane)) = found else { return (None, None) };
        let group = Group { layout: self.layout, ty: GgmlType::F32, rows: self.rows, cols: self.cols };
        (Some(plane.name), rows::element(group, i, at - plane.offset))
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut out = format!("{}\n{} of [{}, {}]\n", self.name, self.layout, self.rows, self.cols);
        if let Some((name, [from, to])) = &self.part {
            let _ = writeln!(out, "{name} is its rows {from} to {}; the bytes are the matrix's", to - 1);
        }
        out.push('\n');
        let _ = writeln!(out, "{:>8}  {:48}{:8} first element", "byte", "", "plane");
        for (i, line) in self.bytes.chunks(LINE).enumerate() {
            let at = self.at + (i * LINE) as u64;
            let hex: String = line.iter().map(|b| format!("{b:02x} ")).collect();
            let (plane, element) = self.place(at);
            let element = element.map_or("padding".into(), |(n, k)| format!("({n}, {k})"));
            let plane = plane.unwrap_or("");
            let _ = writeln!(out, "{at:>8}  {hex:48}{plane:8} {element}");
        }
        out
    }

    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        let hex: String = self.bytes.iter().map(|b| format!("{b:02x}")).collect();
        let planes = self.layout.planes(self.rows, self.cols).unwrap_or_default();
        let planes = planes.iter().map(|p| json!({ "name": p.name, "offset": p.offset, "bytes": p.bytes }));
        json!({
            "name": self.name, "part": self.part.as_ref().map(|(n, rows)| json!({ "name": n, "rows": rows })), "layout": self.layout.tag(), "shape": [self.rows, self.cols],
            "planes": planes.collect::<Vec<_>>(), "at": self.at, "hex": hex,
        })
    }
}
