//! Metadata values, as views of the header's bytes.

use super::name::{display_name, shown};
use std::fmt;

macro_rules! value_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $width:expr;)*) => {
        /// Type of a metadata value, by its id in a GGUF.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ValueType { $($(#[$doc])* $variant,)* }

        impl ValueType {
            /// Every type, in order of id.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The type with this id.
            pub fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)* _ => None }
            }

            /// The id in a GGUF.
            pub fn id(self) -> u32 {
                match self { $(Self::$variant => $id,)* }
            }

            /// A short name, e.g. `u32`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Bytes of one value, where they are always the same.
            pub fn width(self) -> Option<usize> {
                match self { $(Self::$variant => $width,)* }
            }
        }
    };
}

value_types! {
    /// Unsigned, 8 bits.
    U8 = 0, "u8", Some(1);
    /// Signed, 8 bits.
    I8 = 1, "i8", Some(1);
    /// Unsigned, 16 bits.
    U16 = 2, "u16", Some(2);
    /// Signed, 16 bits.
    I16 = 3, "i16", Some(2);
    /// Unsigned, 32 bits.
    U32 = 4, "u32", Some(4);
    /// Signed, 32 bits.
    I32 = 5, "i32", Some(4);
    /// IEEE single.
    F32 = 6, "f32", Some(4);
    /// One byte, 0 or 1.
    Bool = 7, "bool", Some(1);
    /// Length (u64) and bytes, usually UTF-8.
    Str = 8, "str", None;
    /// Element type (u32), length (u64) and elements.
    Array = 9, "arr", None;
    /// Unsigned, 64 bits.
    U64 = 10, "u64", Some(8);
    /// Signed, 64 bits.
    I64 = 11, "i64", Some(8);
    /// IEEE double.
    F64 = 12, "f64", Some(8);
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A metadata value, borrowed from the header that holds it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are those of ValueType")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Raw bytes: usually UTF-8, and kept as they are where not.
    Str(&'a [u8]),
    Array(ArrayView<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The type.
    pub fn ty(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) => ValueType::Str,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Any integer that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// Any integer that fits.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::I8(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::I64(v) => Some(v),
            _ => self.as_u64().and_then(|v| v.try_into().ok()),
        }
    }

    /// Any number; integers beyond 2⁵³ are rounded.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            Self::U64(v) => Some(v as f64),
            _ => self.as_i64().map(|v| v as f64),
        }
    }

    /// A bool.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(v) = *self { Some(v) } else { None }
    }

    /// A string that is valid UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        self.as_bytes().and_then(|b| std::str::from_utf8(b).ok())
    }

    /// A string's bytes, whatever they are.
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        if let Self::Str(v) = *self { Some(v) } else { None }
    }

    /// An array.
    pub fn as_array(&self) -> Option<ArrayView<'a>> {
        if let Self::Array(v) = *self { Some(v) } else { None }
    }

    /// Appends the bytes that follow the type id in a GGUF.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::U8(v) => out.push(v),
            Self::I8(v) => out.extend(v.to_le_bytes()),
            Self::U16(v) => out.extend(v.to_le_bytes()),
            Self::I16(v) => out.extend(v.to_le_bytes()),
            Self::U32(v) => out.extend(v.to_le_bytes()),
            Self::I32(v) => out.extend(v.to_le_bytes()),
            Self::F32(v) => out.extend(v.to_le_bytes()),
            Self::Bool(v) => out.push(v.into()),
            Self::Str(v) => encode_str(v, out),
            Self::Array(v) => {
                out.extend(v.elem.id().to_le_bytes());
                out.extend((v.len as u64).to_le_bytes());
                out.extend_from_slice(v.bytes);
            }
            Self::U64(v) => out.extend(v.to_le_bytes()),
            Self::I64(v) => out.extend(v.to_le_bytes()),
            Self::F64(v) => out.extend(v.to_le_bytes()),
        }
    }

    /// Reads one value of type `ty` off the front of `bytes`; `None` where they do not hold one.
    pub(super) fn decode(ty: ValueType, bytes: &mut &'a [u8]) -> Option<Self> {
        Some(match ty {
            ValueType::U8 => Self::U8(u8::from_le_bytes(take(bytes)?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(take(bytes)?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(take(bytes)?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(take(bytes)?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(take(bytes)?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(take(bytes)?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(take(bytes)?)),
            ValueType::Bool => Self::Bool(take::<1>(bytes)? == [1]),
            ValueType::Str => Self::Str(take_str(bytes)?),
            ValueType::Array => {
                let elem = ValueType::from_id(u32::from_le_bytes(take(bytes)?))?;
                let len = usize::try_from(u64::from_le_bytes(take(bytes)?)).ok()?;
                Self::Array(ArrayView { elem, len, bytes: std::mem::take(bytes) })
            }
            ValueType::U64 => Self::U64(u64::from_le_bytes(take(bytes)?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(take(bytes)?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(take(bytes)?)),
        })
    }
}

/// For people: a string as [`display_name`] has it, an array as its type and length.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            Self::F32(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::Str(v) if f.alternate() => f.write_str(&shown(v)),
            Self::Str(v) => f.write_str(&display_name(v)),
            Self::Array(v) => write!(f, "[{}; {}]", v.elem, v.len),
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F64(v) => v.fmt(f),
        }
    }
}

/// An array in the metadata: numbers, bools or strings, never arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayView<'a> {
    elem: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> ArrayView<'a> {
    /// `bytes` hold exactly `len` values of type `elem`.
    pub(super) fn new(elem: ValueType, len: usize, bytes: &'a [u8]) -> Self {
        Self { elem, len, bytes }
    }

    /// Type of the elements.
    pub fn elem(&self) -> ValueType {
        self.elem
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as they are stored.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Element `index`: at once for numbers and bools, by walking for strings.
    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        match self.elem.width() {
            Some(width) => {
                let mut at = self.bytes.get(index.checked_mul(width)?..)?;
                Value::decode(self.elem, &mut at)
            }
            None => self.iter().nth(index),
        }
    }

    /// The elements in order.
    pub fn iter(&self) -> ArrayIter<'a> {
        ArrayIter { elem: self.elem, left: self.len, bytes: self.bytes }
    }

    /// The elements of an array of strings, as bytes.
    pub fn strings(&self) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
        (self.elem == ValueType::Str).then(|| self.iter().filter_map(|v| v.as_bytes()))
    }
}

impl<'a> IntoIterator for ArrayView<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;

    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

/// Iterates over an [`ArrayView`].
#[derive(Clone, Debug)]
pub struct ArrayIter<'a> {
    elem: ValueType,
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        Value::decode(self.elem, &mut self.bytes)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ArrayIter<'_> {}

/// Appends a length and the bytes.
pub(super) fn encode_str(text: &[u8], out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend_from_slice(text);
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = bytes.split_first_chunk::<N>()?;
    *bytes = tail;
    Some(*head)
}

fn take_str<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(u64::from_le_bytes(take(bytes)?)).ok()?;
    let (head, tail) = bytes.split_at_checked(len)?;
    *bytes = tail;
    Some(head)
}
