//! What a code object tells of its kernels: a note in MessagePack.
//!
//! <https://llvm.org/docs/AMDGPUUsage.html#code-object-v5-metadata>, <https://github.com/msgpack/msgpack/blob/master/spec.md>

use std::collections::BTreeMap;

/// A value; of numbers only those that are not negative.
#[derive(Debug)]
pub(crate) enum Value<'a> {
    Map(Vec<(Value<'a>, Value<'a>)>),
    List(Vec<Value<'a>>),
    Text(&'a str),
    Number(u64),
    Other,
}

impl<'a> Value<'a> {
    /// The value that begins `bytes`, and what follows it. `depth` bounds how deep it goes.
    fn read(bytes: &'a [u8], depth: usize) -> Option<(Self, &'a [u8])> {
        let (&kind, rest) = bytes.split_first()?;
        let below = depth.checked_sub(1)?;
        let number = |rest: &'a [u8], len: usize| -> Option<(u64, &'a [u8])> {
            let (bytes, rest) = rest.split_at_checked(len)?;
            Some((bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)), rest))
        };
        let text = |count: usize, rest: &'a [u8]| {
            let (bytes, rest) = rest.split_at_checked(count)?;
            Some((Self::Text(std::str::from_utf8(bytes).ok()?), rest))
        };
        match kind {
            0x00..=0x7f => Some((Self::Number(kind.into()), rest)),
            0x80..=0x8f => Self::map(usize::from(kind & 15), rest, below),
            0x90..=0x9f => Self::list(usize::from(kind & 15), rest, below),
            0xa0..=0xbf => text(usize::from(kind & 31), rest),
            0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => Some((Self::Other, rest)),
            0xcc..=0xcf => number(rest, 1 << (kind - 0xcc)).map(|(n, rest)| (Self::Number(n), rest)),
            0xd0..=0xd3 => number(rest, 1 << (kind - 0xd0)).map(|(_, rest)| (Self::Other, rest)),
            0xd9..=0xdb => number(rest, 1 << (kind - 0xd9)).and_then(|(n, rest)| text(n as usize, rest)),
            0xdc | 0xdd => {
                number(rest, 2 << (kind - 0xdc)).and_then(|(n, rest)| Self::list(n as usize, rest, below))
            }
            0xde | 0xdf => {
                number(rest, 2 << (kind - 0xde)).and_then(|(n, rest)| Self::map(n as usize, rest, below))
            }
            _ => None,
        }
    }

    fn list(count: usize, mut rest: &'a [u8], depth: usize) -> Option<(Self, &'a [u8])> {
        let mut all = Vec::new();
        for _ in 0..count {
            let (value, after) = Self::read(rest, depth)?;
            all.push(value);
            rest = after;
        }
        Some((Self::List(all), rest))
    }

    fn map(count: usize, mut rest: &'a [u8], depth: usize) -> Option<(Self, &'a [u8])> {
        let mut all = Vec::new();
        for _ in 0..count {
            let (key, after) = Self::read(rest, depth)?;
            let (value, after) = Self::read(after, depth)?;
            all.push((key, value));
            rest = after;
        }
        Some((Self::Map(all), rest))
    }

    fn get(&self, name: &str) -> Option<&Self> {
        let Self::Map(all) = self else { return None };
        all.iter().find(|(key, _)| matches!(key, Self::Text(text) if *text == name)).map(|(_, value)| value)
    }

    fn items(&self) -> Option<&[Self]> {
        if let Self::List(all) = self { Some(all) } else { None }
    }

    fn number(&self) -> Option<u64> {
        if let Self::Number(n) = self { Some(*n) } else { None }
    }

    fn text(&self) -> Option<&'a str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) bytes: usize,
    /// Whether it is an address of a card's memory.
    pub(crate) address: bool,
}

/// What is told of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    /// Most members of a group.
    pub(crate) group: u32,
    /// Bytes of shared memory.
    pub(crate) shared: u32,
    pub(crate) parameters: Vec<Parameter>,
}

/// Kernels by name.
pub(crate) fn kernels(note: &[u8]) -> Option<BTreeMap<String, Told>> {
    let (whole, _) = Value::read(note, 16)?;
    whole.get("amdhsa.kernels")?.items()?.iter().map(kernel).collect()
}

fn kernel(of: &Value<'_>) -> Option<(String, Told)> {
    let number = |name: &str| of.get(name)?.number();
    let parameters = of.get(".args").map_or(Some([].as_slice()), Value::items)?;
    // Those that the compiler adds for itself come last.
    let named = parameters.iter().filter(|p| !kind(p).starts_with("hidden"));
    let parameters = named.map(parameter).collect::<Option<Vec<_>>>()?;
    let group = number(".max_flat_workgroup_size")? as u32;
    let shared = number(".group_segment_fixed_size")? as u32;
    Some((of.get(".name")?.text()?.to_owned(), Told { group, shared, parameters }))
}

fn kind<'a>(parameter: &Value<'a>) -> &'a str {
    parameter.get(".value_kind").and_then(Value::text).unwrap_or("")
}

fn parameter(of: &Value<'_>) -> Option<Parameter> {
    Some(Parameter { bytes: of.get(".size")?.number()? as usize, address: kind(of) == "global_buffer" })
}
