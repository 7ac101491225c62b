//! `--metadata`: the GGUF's keys and values.

use crate::output::json_float;
use crate::table::{Align, Table, shorten};
use crate::{glob, units};
use gantry_formats::gguf::{ArrayView, Header, Value, display_name};
use serde_json::json;

/// Elements of an array that are shown.
const SHOWN: usize = 8;
/// Characters of a string in an array that are shown.
const ELEMENT: usize = 24;

/// One key.
pub(super) struct Row<'a> {
    key: String,
    value: Value<'a>,
    shard: usize,
}

/// The keys that match: all of the first shard, and of the others what they have of their own.
pub(super) fn rows<'a>(headers: &[&'a Header], filter: Option<&str>) -> Vec<Row<'a>> {
    let mut out = Vec::new();
    for (shard, header) in headers.iter().enumerate() {
        for entry in header.entries() {
            let key = display_name(entry.key);
            let wanted = filter.is_none_or(|pattern| glob::matches(pattern, &key));
            if let Some(value) = entry.value().filter(|_| wanted) {
                out.push(Row { key, value, shard });
            }
        }
    }
    out
}

/// A value in one line of at most `width` characters.
pub(crate) fn short(value: &Value<'_>, width: usize) -> String {
    match value {
        Value::Array(array) => {
            let head = format!("{} of {}: ", units::count(array.len() as u64), array.elem());
            let mut text = head.clone();
            for (i, element) in array.iter().enumerate() {
                let next = format!("{}{}", if i > 0 { ", " } else { "" }, shorten(&one(&element), ELEMENT));
                let last = i + 1 == array.len();
                if text.chars().count() + next.chars().count() + if last { 0 } else { 3 } > width {
                    text += if i > 0 { ", …" } else { "…" };
                    break;
                }
                text += &next;
            }
            shorten(&text, width)
        }
        other => shorten(&one(other), width),
    }
}

fn one(value: &Value<'_>) -> String {
    match value {
        Value::Str(bytes) => format!("\"{}\"", display_name(bytes)),
        Value::F32(x) => x.to_string(),
        Value::F64(x) => x.to_string(),
        other => other.to_string(),
    }
}

/// For people.
pub(super) fn text(rows: &[Row<'_>], full: bool) -> String {
    if full {
        let line = |r: &Row<'_>| match &r.value {
            Value::Array(array) => {
                let elements: Vec<String> = array.iter().map(|v| one(&v)).collect();
                format!("{} {}[{}] [{}]\n", r.key, array.elem(), array.len(), elements.join(", "))
            }
            other => format!("{} {} {}\n", r.key, other.ty(), one(other)),
        };
        return rows.iter().map(line).collect();
    }
    let mut table = Table::new(&[("key", Align::Left), ("type", Align::Left), ("value", Align::Left)]);
    let keys = rows.iter().map(|r| r.key.chars().count()).max().unwrap_or(0).min(40);
    let width = crate::table::WIDTH.saturating_sub(keys + 2 + 4 + 2);
    let mut shard = 0;
    for r in rows {
        if r.shard != shard {
            shard = r.shard;
            table.row([format!("(shard {})", shard + 1), String::new(), String::new()]);
        }
        table.row([r.key.clone(), r.value.ty().to_string(), short(&r.value, width)]);
    }
    table.render()
}

/// For programs. What JSON cannot hold is text: numbers that are not finite, and bytes that are not UTF-8 as `\xNN`.
pub(super) fn to_json(rows: &[Row<'_>], full: bool) -> serde_json::Value {
    let rows: Vec<serde_json::Value> = rows
        .iter()
        .map(|r| {
            let mut row = json!({ "key": r.key, "type": r.value.ty().name(), "shard": r.shard });
            if let Value::Array(array) = &r.value {
                row["element_type"] = array.elem().name().into();
                row["length"] = array.len().into();
                row["shortened"] = (!full && array.len() > SHOWN).into();
            }
            row["value"] = value_json(&r.value, full);
            row
        })
        .collect();
    json!({ "metadata": rows })
}

fn value_json(value: &Value<'_>, full: bool) -> serde_json::Value {
    let array = |a: &ArrayView<'_>| {
        let most = if full { a.len() } else { SHOWN };
        a.iter().take(most).map(|v| value_json(&v, full)).collect()
    };
    match value {
        Value::Str(bytes) => display_name(bytes).into(),
        Value::Bool(b) => (*b).into(),
        Value::F32(x) => json_float((*x).into()),
        Value::F64(x) => json_float(*x),
        Value::Array(a) => array(a),
        Value::I8(_) | Value::I16(_) | Value::I32(_) | Value::I64(_) => value.as_i64().into(),
        Value::U8(_) | Value::U16(_) | Value::U32(_) | Value::U64(_) => value.as_u64().into(),
    }
}
