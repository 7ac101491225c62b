//! Metadata keys of two models, and how two containers are packed.

use crate::inspect::short_value;
use crate::weights::Opened;
use gantry_formats::gguf::{Entry, Header, display_name};
use gantry_formats::hash;
use serde::Serialize;
use std::collections::BTreeMap;

/// A key, or a fact of packing, and what both sides say; `None`: it is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Change {
    pub(super) key: String,
    pub(super) a: Option<String>,
    pub(super) b: Option<String>,
}

/// The keys that say how a set is split, not what the model is.
const SPLIT: [&[u8]; 3] = [b"split.no", b"split.count", b"split.tensors.count"];

/// Characters of a value that are shown.
const WIDTH: usize = 60;

/// Keys that only one side has or whose type or bytes differ, in order of key.
pub(super) fn compare(a: &[&Header], b: &[&Header]) -> Vec<Change> {
    let (a, b) = (keys(a), keys(b));
    let mut out = Vec::new();
    for (key, x) in &a {
        let y = b.get(key);
        if y.is_none_or(|y| (x.ty, x.raw) != (y.ty, y.raw)) {
            out.push(Change { key: display_name(key), a: shown(x), b: y.and_then(shown) });
        }
    }
    let only_b = b.iter().filter(|(key, _)| !a.contains_key(*key));
    out.extend(only_b.map(|(key, y)| Change { key: display_name(key), a: None, b: shown(y) }));
    out.sort_by(|x, y| x.key.cmp(&y.key));
    // Values that differ behind what is shown say so.
    for change in out.iter_mut().filter(|c| c.a.is_some() && c.a == c.b) {
        change.b = change.b.take().map(|b| format!("{b} (differs where it is not shown)"));
    }
    out
}

fn keys<'a>(headers: &[&'a Header]) -> BTreeMap<&'a [u8], Entry<'a>> {
    let entries = headers.first().into_iter().flat_map(|h| h.entries());
    entries.filter(|e| !SPLIT.contains(&e.key)).map(|e| (e.key, e)).collect()
}

fn shown(entry: &Entry<'_>) -> Option<String> {
    Some(short_value(&entry.value()?, WIDTH))
}

/// Facts in which two containers differ although the model may be the same.
pub(super) fn packing(a: &Opened, b: &Opened) -> Vec<Change> {
    let (Opened::Container(x), Opened::Container(y)) = (a, b) else { return Vec::new() };
    let facts = |c: &gantry_formats::container::Container| {
        let m = c.manifest();
        let mut facts = BTreeMap::from([
            ("root".to_string(), hash::hex(&c.header().root)[..16].to_string()),
            ("target".into(), m.target.clone()),
            ("recipe".into(), m.recipe.clone()),
            ("cards".into(), c.header().cards.len().to_string()),
            ("split cards".into(), c.split_cards().to_string()),
            ("tool".into(), format!("{} {}", m.tool.name, m.tool.version)),
            ("alignment".into(), format!("{:?}", c.header().alignment)),
        ]);
        if let Some(placement) = &m.placement {
            facts.insert("placement".into(), placement.blake3.get(..16).unwrap_or_default().to_string());
        }
        facts.extend(m.options.iter().map(|(k, v)| (format!("option {k}"), v.clone())));
        facts
    };
    let (x, y) = (facts(x), facts(y));
    let keys: std::collections::BTreeSet<&String> = x.keys().chain(y.keys()).collect();
    let change = |key: &String| Change { key: key.clone(), a: x.get(key).cloned(), b: y.get(key).cloned() };
    keys.into_iter().map(change).filter(|c| c.a != c.b).collect()
}
