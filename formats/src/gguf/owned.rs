//! Metadata values that own their bytes, for writing.

use super::value::{ArrayView, Value, ValueType, encode_str};

/// A type that arrays can hold.
pub trait Element: Copy {
    /// Its id.
    const TYPE: ValueType;

    /// Appends its bytes in a GGUF.
    fn encode(self, out: &mut Vec<u8>);
}

macro_rules! elements {
    ($($ty:ty = $variant:ident;)*) => {$(
        impl Element for $ty {
            const TYPE: ValueType = ValueType::$variant;

            fn encode(self, out: &mut Vec<u8>) {
                Value::$variant(self).encode(out);
            }
        }

        impl From<$ty> for OwnedValue {
            fn from(v: $ty) -> Self {
                Self::$variant(v)
            }
        }
    )*};
}

elements! {
    u8 = U8; i8 = I8; u16 = U16; i16 = I16; u32 = U32; i32 = I32; f32 = F32; bool = Bool; u64 = U64; i64 = I64;
    f64 = F64;
}

impl Element for &[u8] {
    const TYPE: ValueType = ValueType::Str;

    fn encode(self, out: &mut Vec<u8>) {
        encode_str(self, out);
    }
}

impl Element for &str {
    const TYPE: ValueType = ValueType::Str;

    fn encode(self, out: &mut Vec<u8>) {
        encode_str(self.as_bytes(), out);
    }
}

/// A [`Value`] that owns its bytes.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are those of ValueType")]
pub enum OwnedValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Any bytes.
    Str(Vec<u8>),
    Array(OwnedArray),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl OwnedValue {
    /// A borrowed view.
    pub fn view(&self) -> Value<'_> {
        match self {
            Self::U8(v) => Value::U8(*v),
            Self::I8(v) => Value::I8(*v),
            Self::U16(v) => Value::U16(*v),
            Self::I16(v) => Value::I16(*v),
            Self::U32(v) => Value::U32(*v),
            Self::I32(v) => Value::I32(*v),
            Self::F32(v) => Value::F32(*v),
            Self::Bool(v) => Value::Bool(*v),
            Self::Str(v) => Value::Str(v),
            Self::Array(v) => Value::Array(v.view()),
            Self::U64(v) => Value::U64(*v),
            Self::I64(v) => Value::I64(*v),
            Self::F64(v) => Value::F64(*v),
        }
    }
}

impl From<Value<'_>> for OwnedValue {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::U8(v) => Self::U8(v),
            Value::I8(v) => Self::I8(v),
            Value::U16(v) => Self::U16(v),
            Value::I16(v) => Self::I16(v),
            Value::U32(v) => Self::U32(v),
            Value::I32(v) => Self::I32(v),
            Value::F32(v) => Self::F32(v),
            Value::Bool(v) => Self::Bool(v),
            Value::Str(v) => Self::Str(v.to_vec()),
            Value::Array(v) => {
                Self::Array(OwnedArray { elem: v.elem(), len: v.len(), bytes: v.as_bytes().to_vec() })
            }
            Value::U64(v) => Self::U64(v),
            Value::I64(v) => Self::I64(v),
            Value::F64(v) => Self::F64(v),
        }
    }
}

impl From<&str> for OwnedValue {
    fn from(v: &str) -> Self {
        Self::Str(v.as_bytes().to_vec())
    }
}

impl From<&[u8]> for OwnedValue {
    fn from(v: &[u8]) -> Self {
        Self::Str(v.to_vec())
    }
}

impl From<OwnedArray> for OwnedValue {
    fn from(v: OwnedArray) -> Self {
        Self::Array(v)
    }
}

/// An array of numbers, bools or strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedArray {
    elem: ValueType,
    len: usize,
    bytes: Vec<u8>,
}

impl OwnedArray {
    /// An array of these elements: `OwnedArray::new([1u32, 2])`, `OwnedArray::new(["a", "b"])`.
    pub fn new<T: Element>(elements: impl IntoIterator<Item = T>) -> Self {
        let mut bytes = Vec::new();
        let mut len = 0;
        for element in elements {
            element.encode(&mut bytes);
            len += 1;
        }
        Self { elem: T::TYPE, len, bytes }
    }

    /// A borrowed view.
    pub fn view(&self) -> ArrayView<'_> {
        ArrayView::new(self.elem, self.len, &self.bytes)
    }
}
