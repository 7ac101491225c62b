//! What steps are called, what they must read and how much they compute.

use crate::backend::Settings;
use crate::backend::device::sequence::row_bytes;
use crate::model::program::{Access, CacheShape, Format, Kept, KeptId, Matrix, Program, Step};

/// A step's layout or name, and its shape; `None` where a card is given nothing to do.
pub(super) fn describe(step: &Step, program: &Program) -> Option<(String, String)> {
    let product = |m: &Matrix| format!("{} x {}", m.rows.len(), m.cols);
    Some(match step {
        Step::Begin(_)
        | Step::Ngram { .. }
        | Step::Send { .. }
        | Step::Receive { .. }
        | Step::Return { .. }
        | Step::Collect { .. } => return None,
        Step::Gemm { weight, .. } => (weight.layout.to_string(), product(weight)),
        Step::Embed { table, .. } => (format!("Embed {}", table.layout), product(table)),
        Step::Experts { ids, products, .. } => {
            let mut layouts: Vec<String> = products.iter().map(|p| p.weights.layout().to_string()).collect();
            layouts.dedup();
            let shapes = products.iter().map(|p| format!("{} x {}", p.weights.rows(), p.weights.cols()));
            let experts = products.iter().map(|p| p.weights.experts()).min().unwrap_or(0);
            let used = ids.map_or(experts, |ids| program.buffers[ids.0].width);
            let shapes = shapes.collect::<Vec<_>>().join(", ");
            (format!("Experts {}", layouts.join(", ")), format!("{shapes}; {used} of {experts}"))
        }
        Step::Attention { heads, window, entries, .. } => {
            let window = window.map_or(String::new(), |w| format!(", window {w}"));
            let entries = entries.map_or(String::new(), |e| format!(", entries of {}", e.ratio));
            let len = match heads.key_len == heads.value_len {
                true => heads.key_len.to_string(),
                false => format!("{}/{}", heads.key_len, heads.value_len),
            };
            ("Attention".into(), format!("{}/{} heads of {len}{window}{entries}", heads.query, heads.kv))
        }
        Step::DeltaNet { shape, .. } => {
            let (values, keys) = (shape.value_heads, shape.key_heads);
            ("DeltaNet".into(), format!("{values}/{keys} heads of {}", shape.dim))
        }
        Step::Conv { shape, .. } => {
            ("Conv".into(), format!("{} channels, {} taps", shape.channels, shape.taps))
        }
        Step::Route { routing, .. } => ("Route".into(), format!("{} of {}", routing.used, routing.experts)),
        Step::Select { selection, .. } => {
            let (heads, len, top) = (selection.heads, selection.len, selection.top);
            ("Select".into(), format!("{heads} heads of {len}, the best {top}"))
        }
        Step::Quantize { x, y } => {
            let format = if program.buffers[y.0].format == Format::I8 { "I8" } else { "Q8" };
            (format!("Quantize {format}"), values_of(program, &[Access::Whole(*x)]))
        }
        _ => (step.name().into(), values_of(program, &first(step))),
    })
}

/// What a step writes, or where that is kept what it reads.
fn first(step: &Step) -> Vec<Access> {
    let written = step.writes();
    if written.is_empty() { step.reads() } else { written }.into_iter().take(1).collect()
}

/// Pieces and values of them, of a token.
fn values_of(program: &Program, accesses: &[Access]) -> String {
    let Some(access) = accesses.first() else { return "all".into() };
    match access {
        Access::Pieces(p) => format!("{} x {}", p.count, p.len),
        Access::Columns(c) => format!("{} x {}", program.buffers[c.buffer.0].rows, c.len),
        Access::Whole(id) => {
            let buffer = &program.buffers[id.0];
            format!("{} x {}", buffer.rows, buffer.width)
        }
    }
}

/// Whether a step's time depends on how long the sequence is.
pub(super) fn by_length(step: &Step) -> bool {
    matches!(step, Step::Attention { .. } | Step::Select { .. } | Step::Compress { .. })
}

/// Matrices that a step reads, each that is stored once.
pub(super) fn matrices(step: &Step) -> Vec<&Matrix> {
    let mut all: Vec<&Matrix> = match step {
        Step::Gemm { weight, .. } => vec![weight],
        Step::Embed { table, .. } => vec![table],
        Step::Experts { products, .. } => {
            let mut seen = std::collections::BTreeSet::new();
            let found =
                products.iter().flat_map(|p| (0..p.weights.experts()).filter_map(|e| p.weights.copy(e, 0)));
            found.filter(|m| seen.insert(m.offset)).collect()
        }
        _ => Vec::new(),
    };
    all.sort_by_key(|m| m.offset);
    all
}

/// Bytes that have to be read for `n` tokens of one sequence that has `length` positions then; `experts`: how many
/// different ones the tokens use.
pub(super) fn bytes(
    (step, program): (&Step, &Program),
    settings: &Settings,
    (n, length): (usize, usize),
    experts: usize,
) -> u64 {
    let rows = |m: &Matrix, rows: usize| m.layout.bytes(rows as u64, m.cols as u64).unwrap_or(0);
    let cache = |id: KeptId| match program.kept.get(id.0) {
        Some(Kept::Cache(shape)) => Some(*shape),
        _ => None,
    };
    let row = |shape: CacheShape| row_bytes(shape, settings);
    match step {
        Step::Gemm { weight, .. } => rows(weight, weight.rows.len()),
        Step::Embed { table, .. } => rows(table, 1).saturating_mul(n as u64),
        Step::Experts { products, .. } => {
            let one = products.iter().filter_map(|p| p.weights.copy(0, 0)).map(|m| rows(m, m.rows.len()));
            one.sum::<u64>().saturating_mul(experts as u64)
        }
        Step::Attention { cache: kept, window, chosen, entries, .. } => {
            let seen = window.map_or(length, |w| length.min(w.saturating_add(n - 1)));
            let chosen = chosen.filter(|c| !c.by.whole(length - 1));
            let seen = chosen.map_or(seen, |c| seen.min(c.by.per_token().saturating_mul(n)));
            let own = cache(*kept).map_or(0, |shape| row(shape) * seen as u64);
            let more = entries.and_then(|e| Some(row(cache(e.cache)?) * (length / e.ratio) as u64));
            own + more.unwrap_or(0)
        }
        Step::Select { selection, keys, .. } => {
            cache(*keys).map_or(0, |shape| row(shape) * (length / selection.ratio.max(1)) as u64)
        }
        Step::DeltaNet { shape, .. } => (shape.value_heads * shape.dim * shape.dim * 4) as u64,
        _ => {
            let each =
                |access: Access| access.ranges(&program.buffers).iter().map(|r| r.len()).sum::<usize>();
            (step.reads().into_iter().map(each).sum::<usize>() * n * 4) as u64
        }
    }
}

/// Multiplications and additions of a product with `n` tokens.
pub(super) fn operations(step: &Step, program: &Program, n: usize) -> u64 {
    let product = |rows: usize, cols: usize| 2 * rows as u64 * cols as u64 * n as u64;
    match step {
        Step::Gemm { weight, .. } => product(weight.rows.len(), weight.cols),
        Step::Experts { ids, products, .. } => {
            let experts = products.iter().map(|p| p.weights.experts()).min().unwrap_or(0);
            let used = ids.map_or(experts, |ids| program.buffers[ids.0].width) as u64;
            products.iter().map(|p| product(p.weights.rows(), p.weights.cols()) * used).sum()
        }
        _ => 0,
    }
}
