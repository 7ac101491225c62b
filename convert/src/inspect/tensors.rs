//! `--tensors`: the list, filtered and sorted.

use super::Sort;
use super::items::Item;
use crate::table::{Align, Table};
use crate::{glob, units};
use serde_json::{Value, json};
use std::cmp::Ordering;

/// The items that match, in order.
pub(super) fn select<'a>(mut items: Vec<Item<'a>>, filter: Option<&str>, sort: Sort) -> Vec<Item<'a>> {
    if let Some(pattern) = filter {
        items.retain(|i| glob::matches(pattern, &i.name));
    }
    let name = |a: &Item<'_>, b: &Item<'_>| natural(&a.name, &b.name);
    items.sort_by(|a, b| match sort {
        Sort::Name => name(a, b),
        Sort::Bytes => b.bytes.cmp(&a.bytes).then_with(|| name(a, b)),
        Sort::Layer => a.layer.cmp(&b.layer).then_with(|| name(a, b)),
        Sort::Offset => (a.card, a.offset).cmp(&(b.card, b.offset)),
        Sort::Type => a.layout.cmp(&b.layout).then_with(|| name(a, b)),
    });
    items
}

/// Compares names with runs of digits by their value: `blk.2` before `blk.10`.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        let digits = |s: &[u8]| s.iter().take_while(|c| c.is_ascii_digit()).count();
        let (x, y) = (digits(a), digits(b));
        if x > 0 && y > 0 {
            let trim = |s: &[u8]| s.iter().take_while(|c| **c == b'0').count();
            let (m, n) = (&a[trim(&a[..x])..x], &b[trim(&b[..y])..y]);
            let order = m.len().cmp(&n.len()).then_with(|| m.cmp(n)).then(x.cmp(&y));
            if order != Ordering::Equal {
                return order;
            }
            (a, b) = (&a[x..], &b[y..]);
            continue;
        }
        match (a.split_first(), b.split_first()) {
            (Some((x, rest_a)), Some((y, rest_b))) if x == y => (a, b) = (rest_a, rest_b),
            (x, y) => return x.map(|x| x.0).cmp(&y.map(|y| y.0)),
        }
    }
}

/// A shape for people: `576 × 49152`, experts in front.
pub(super) fn shape(item: &Item<'_>) -> String {
    let mut dims: Vec<String> = item.shape.iter().map(u64::to_string).collect();
    if dims.is_empty() {
        dims.push("1".into());
    }
    let one = dims.join("×");
    item.experts.map_or(one.clone(), |n| format!("{n} of {one}"))
}

/// For people.
pub(super) fn text(items: &[Item<'_>]) -> String {
    let mut table = Table::new(&[
        ("tensor", Align::Left),
        ("layout", Align::Left),
        ("shape", Align::Left),
        ("card", Align::Right),
        ("offset", Align::Right),
        ("bytes", Align::Right),
    ]);
    for i in items {
        let (name, layout) = (i.name.to_string(), i.layout.to_string());
        table.row([name, layout, shape(i), i.card.to_string(), i.offset.to_string(), i.bytes.to_string()]);
    }
    let bytes = items.iter().map(|i| i.bytes).sum();
    format!("{}{}, {}\n", table.render(), units::plural(items.len() as u64, "tensor"), units::bytes(bytes))
}

/// For programs.
pub(super) fn to_json(items: &[Item<'_>]) -> Value {
    json!({ "tensors": items })
}

#[cfg(test)]
mod tests {
    use super::natural;
    use std::cmp::Ordering;

    #[test]
    fn numbers_in_names_count() {
        assert_eq!(natural("blk.2.a", "blk.10.a"), Ordering::Less);
        assert_eq!(natural("blk.2.a", "blk.2.b"), Ordering::Less);
        assert_eq!(natural("blk.02", "blk.2"), Ordering::Greater);
        assert_eq!(natural("a", "a"), Ordering::Equal);
        assert_eq!(natural("a", "ab"), Ordering::Less);
    }
}
