//! From bytes to a [`Header`]: every rule that a single file has to keep.

use super::cursor::Cursor;
use super::error::GgufFault;
use super::header::{Header, KeyRow, Place};
use super::limits::{
    Budget, DEFAULT_ALIGNMENT, MAX_DIMS, MAX_INFO_BYTES, MAX_KEY_BYTES, MAX_KEYS, MAX_NAME_BYTES,
    MAX_VALUE_BYTES, MIN_ENTRY_BYTES, MIN_INFO_BYTES,
};
use super::magic::{self, HEAD_BYTES};
use super::name::shown;
use super::tensor::TensorInfo;
use super::value::{Value, ValueType};
use crate::block::GgmlType;
use crate::size;

/// Reads the header at the cursor, of a file of `file_len` bytes.
pub(super) fn header(mut c: Cursor<'_>, file_len: u64, budget: Budget) -> Result<Header, GgufFault> {
    let version = magic::check(c.peek(HEAD_BYTES)?)?;
    c.bytes(8, "magic and version")?;
    let tensor_count = count(&mut c, "tensor count", MIN_INFO_BYTES, budget.tensors)?;
    let key_count = count(&mut c, "metadata count", MIN_ENTRY_BYTES, MAX_KEYS)?;

    let mut keys = Vec::with_capacity(key_count as usize);
    for index in 0..key_count {
        keys.push(entry(&mut c, index)?);
    }
    let by_key = sorted(c.seen(), &keys, |raw, row| row.key.of(raw));
    if let Some((first, second)) = twins(&by_key, |i| keys.get(i).map(|row| row.key.of(c.seen()))) {
        let key = keys.get(second as usize).map(|row| shown(row.key.of(c.seen())));
        return Err(GgufFault::DuplicateKey { key: key.unwrap_or_default(), first, second });
    }
    let mut header =
        Header { version, alignment: DEFAULT_ALIGNMENT, keys, by_key, ..Header::empty(file_len) };
    header.alignment = alignment(header.lookup(c.seen(), b"general.alignment"))?;

    c.reserve(tensor_count.saturating_mul(MAX_INFO_BYTES));
    let mut tensors = Vec::with_capacity(tensor_count as usize);
    for index in 0..tensor_count {
        tensors.push(tensor(&mut c, index)?);
    }
    header.by_name = sorted(&[], &tensors, |_, t: &TensorInfo| t.name());
    if let Some((first, second)) = twins(&header.by_name, |i| tensors.get(i).map(TensorInfo::name)) {
        let name = tensors.get(second as usize).map(TensorInfo::display_name);
        return Err(GgufFault::DuplicateTensor { name: name.unwrap_or_default(), first, second });
    }
    header.tensors = tensors;
    header.raw = c.finish();
    header.data_offset = places(&header, file_len)?;
    Ok(header)
}

/// A count of things that take at least `each` bytes.
fn count(c: &mut Cursor<'_>, what: &'static str, each: u64, most: u64) -> Result<u64, GgufFault> {
    let at = c.at();
    let found = c.u64(what)?;
    if found > most {
        return Err(GgufFault::Count { what, found, at, most, why: "the limit of this program" });
    }
    if found > c.left() / each {
        return Err(GgufFault::Count {
            what,
            found,
            at,
            most: c.left() / each,
            why: "what the rest of the file has room for",
        });
    }
    Ok(found)
}

fn entry(c: &mut Cursor<'_>, index: u64) -> Result<KeyRow, GgufFault> {
    let at = c.at();
    let found = c.u64("key length")?;
    if found == 0 {
        return Err(GgufFault::EmptyKey { index, at });
    }
    let most = c.left().min(MAX_KEY_BYTES);
    if found > most {
        return Err(GgufFault::KeyLength { index, at, found, most });
    }
    let start = c.at();
    c.bytes(found, "key")?;
    let key = Place::new(start, c.at());
    let at = c.at();
    let id = c.u32("value type")?;
    let Some(ty) = ValueType::from_id(id) else {
        return Err(GgufFault::ValueType { key: shown(key.of(c.seen())), at, found: id });
    };
    let start = c.at();
    match ty {
        ValueType::Str => string(c, key)?,
        ValueType::Array => array(c, key)?,
        scalar => fixed(c, key, scalar, 1)?,
    }
    Ok(KeyRow { key, ty, value: Place::new(start, c.at()) })
}

/// `len` numbers or bools.
fn fixed(c: &mut Cursor<'_>, key: Place, ty: ValueType, len: u64) -> Result<(), GgufFault> {
    let at = c.at();
    let width = ty.width().unwrap_or(1) as u64;
    let bytes = c.bytes(len.saturating_mul(width), "value")?;
    if ty == ValueType::Bool
        && let Some((i, &found)) = bytes.iter().enumerate().find(|(_, b)| **b > 1)
    {
        return Err(GgufFault::Bool { key: shown(key.of(c.seen())), at: at.saturating_add(i as u64), found });
    }
    Ok(())
}

fn string(c: &mut Cursor<'_>, key: Place) -> Result<(), GgufFault> {
    let at = c.at();
    let found = c.u64("string length")?;
    let most = c.left().min(MAX_VALUE_BYTES);
    if found > most {
        return Err(GgufFault::Length { key: shown(key.of(c.seen())), what: "string", at, found, most });
    }
    c.bytes(found, "string").map(|_| ())
}

fn array(c: &mut Cursor<'_>, key: Place) -> Result<(), GgufFault> {
    let at = c.at();
    let id = c.u32("array type")?;
    let elem = match ValueType::from_id(id) {
        Some(ValueType::Array) => return Err(GgufFault::NestedArray { key: shown(key.of(c.seen())), at }),
        Some(elem) => elem,
        None => return Err(GgufFault::ValueType { key: shown(key.of(c.seen())), at, found: id }),
    };
    let at = c.at();
    let found = c.u64("array length")?;
    let each = elem.width().unwrap_or(8) as u64;
    let most = c.left().min(MAX_VALUE_BYTES) / each;
    if found > most {
        return Err(GgufFault::Length { key: shown(key.of(c.seen())), what: "array", at, found, most });
    }
    if elem != ValueType::Str {
        return fixed(c, key, elem, found);
    }
    for _ in 0..found {
        string(c, key)?;
    }
    Ok(())
}

fn alignment(value: Option<Value<'_>>) -> Result<u32, GgufFault> {
    match value {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(found)) if found.is_power_of_two() => Ok(found),
        Some(Value::U32(found)) => Err(GgufFault::Alignment { found }),
        Some(other) => Err(GgufFault::AlignmentType { found: other.ty() }),
    }
}

fn tensor(c: &mut Cursor<'_>, index: u64) -> Result<TensorInfo, GgufFault> {
    let at = c.at();
    let found = c.u64("tensor name length")?;
    if found > MAX_NAME_BYTES {
        return Err(GgufFault::NameLength { index, at, found });
    }
    let start = c.at();
    c.bytes(found, "tensor name")?;
    let name = Place::new(start, c.at());
    let dim_count = c.u32("tensor dimension count")?;
    let mut dims = [1; MAX_DIMS];
    let Some(dims) = dims.get_mut(..dim_count as usize) else {
        return Err(GgufFault::Dims { name: shown(name.of(c.seen())), found: dim_count.into() });
    };
    for dim in dims.iter_mut() {
        *dim = c.u64("tensor dimension")?;
    }
    let id = c.u32("tensor type")?;
    let offset = c.u64("tensor data offset")?;
    let name = name.of(c.seen());
    let Some(ty) = GgmlType::from_id(id) else {
        let name = shown(name);
        return Err(match GgmlType::removed_name(id) {
            Some(old) => GgufFault::RemovedType { name, id, old },
            None => GgufFault::UnknownType { name, id },
        });
    };
    let mut info = TensorInfo::new(name, dims, ty)?;
    info.offset = offset;
    Ok(info)
}

/// Checks that the tensors lie one after the other and inside the file; gives the start of the data.
fn places(header: &Header, file_len: u64) -> Result<u64, GgufFault> {
    let alignment = u64::from(header.alignment);
    let start = size::align_up(header.raw.len() as u64, alignment).unwrap_or(u64::MAX);
    let mut expected = 0;
    for t in &header.tensors {
        if t.offset != expected {
            return Err(GgufFault::Offset { name: t.display_name(), found: t.offset, expected });
        }
        let end = start.checked_add(expected).and_then(|n| n.checked_add(t.bytes)).unwrap_or(u64::MAX);
        if end > file_len {
            return Err(GgufFault::Short { name: t.display_name(), end, len: file_len });
        }
        expected =
            t.bytes.checked_add(expected).and_then(|n| size::align_up(n, alignment)).unwrap_or(u64::MAX);
    }
    Ok(start)
}

/// The indices of `rows`, in the order of their names.
fn sorted<'a, T>(raw: &'a [u8], rows: &'a [T], name: impl Fn(&'a [u8], &'a T) -> &'a [u8]) -> Vec<u32> {
    let mut order: Vec<u32> = (0u32..).take(rows.len()).collect();
    let name = |i: u32| rows.get(i as usize).map(|row| name(raw, row));
    order.sort_unstable_by(|&a, &b| name(a).cmp(&name(b)).then(a.cmp(&b)));
    order
}

/// The first two rows of the same name.
fn twins<'a>(order: &[u32], name: impl Fn(usize) -> Option<&'a [u8]>) -> Option<(u32, u32)> {
    order.windows(2).find_map(|pair| match *pair {
        [a, b] if name(a as usize) == name(b as usize) => Some((a, b)),
        _ => None,
    })
}
