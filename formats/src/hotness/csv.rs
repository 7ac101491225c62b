//! SGLang's CSV, `expert_distribution_rank*_timestamp*.csv`: a row for each expert that a layer's tokens were given to.
//!
//! It says neither how many layers and experts the model has nor how many tokens were seen.

use super::{Hotness, HotnessFault, LayerCounts, MAX_COUNTS, MAX_EXPERTS, MAX_LAYERS};
use std::collections::BTreeMap;

/// The first line.
const HEADER: &str = "layer_id,expert_id,count";

/// Whether a file that starts so is meant to be such a CSV.
pub(super) fn is_csv(head: &[u8]) -> bool {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let stem = b"layer_id";
    head.get(..stem.len()).is_some_and(|start| start == stem)
}

/// Reads one file. Experts without a row have 0 tokens; layers and experts are as many as the rows need.
///
/// # Errors
/// At the first line that is no row, that names an expert again, or that names one beyond the limits.
pub(super) fn parse(bytes: &[u8]) -> Result<Hotness, HotnessFault> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut rows: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    for (line, row) in (1u64..).zip(text.split(|b| *b == b'\n')) {
        let fault = |what: String| HotnessFault::Line { line, what };
        let row = row.strip_suffix(b"\r").unwrap_or(row);
        let text = std::str::from_utf8(row).map_err(|_| fault("no UTF-8 text".into()))?;
        if line == 1 {
            if text.split(',').map(str::trim).ne(HEADER.split(',')) {
                return Err(fault(format!("{}, expected {HEADER}", shown(text))));
            }
            continue;
        }
        let mut fields = text.split(',').map(|field| number(field.trim()));
        let row = (fields.next().flatten(), fields.next().flatten(), fields.next().flatten(), fields.next());
        let (Some(layer), Some(expert), Some(count), None) = row else {
            let expected = "layer, expert and count as whole numbers below 2^64";
            return Err(fault(format!("{}, expected {expected}", shown(text))));
        };
        let within = |n: u64, most: u32| u32::try_from(n).ok().filter(|n| *n < most);
        let (Some(layer), Some(expert)) = (within(layer, MAX_LAYERS), within(expert, MAX_EXPERTS)) else {
            let most = format!("below {MAX_LAYERS} and {MAX_EXPERTS}");
            return Err(fault(format!("layer {layer} expert {expert}, expected numbers {most}")));
        };
        if rows.insert((layer, expert), count).is_some() {
            return Err(fault(format!(
                "layer {layer} expert {expert} occurs twice; one file holds one rank"
            )));
        }
    }
    if rows.is_empty() {
        return Err(HotnessFault::Malformed { what: "no row after the first line".into() });
    }
    dense(&rows)
}

fn dense(rows: &BTreeMap<(u32, u32), u64>) -> Result<Hotness, HotnessFault> {
    let experts = rows.keys().map(|(_, expert)| expert + 1).max().unwrap_or(0);
    let layers = rows.keys().map(|(layer, _)| layer + 1).max().unwrap_or(0);
    let mut counts: Vec<LayerCounts> = Vec::new();
    for (&(layer, expert), &count) in rows {
        if counts.last().is_none_or(|l| l.layer != layer) {
            // Before memory is taken: a few rows may name far experts of many layers.
            if (counts.len() as u64 + 1) * u64::from(experts) > MAX_COUNTS {
                return Err(HotnessFault::Malformed { what: format!("more than {MAX_COUNTS} counts") });
            }
            counts.push(LayerCounts { layer, counts: vec![0; experts as usize] });
        }
        if let Some(own) = counts.last_mut().and_then(|l| l.counts.get_mut(expert as usize)) {
            *own = count;
        }
    }
    let hotness = Hotness { fingerprint: None, layers, experts, tokens: 0, counts };
    hotness.check()?;
    Ok(hotness)
}

/// Digits alone: `+1`, `1e3` and `0x1` are not what the writer writes.
fn number(field: &str) -> Option<u64> {
    field.bytes().all(|b| b.is_ascii_digit()).then(|| field.parse().ok()).flatten()
}

fn shown(line: &str) -> String {
    let start: String = line.chars().take(40).collect();
    format!("{start:?}{}", if start.len() < line.len() { "…" } else { "" })
}
