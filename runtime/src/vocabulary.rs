//! The vocabulary that a container carries.

use crate::text::{Meta, TextError, Vocab};
use gantry_formats::gguf::{ArrayView, Header, Value, ValueType};

/// Reads tokenizer and chat template from a GGUF header, as [`header`](crate::model::header) gives it.
///
/// # Errors
/// [`TextError::NoTokenizer`] where there is none, and what [`Vocab::from_metadata`] refuses.
pub fn vocab(header: &Header) -> Result<Vocab, TextError> {
    Vocab::from_metadata(&|key: &str| header.get(key).and_then(meta))
}

/// A value in the shapes that tokenizer keys take; `None` for one that no such key has.
fn meta(value: Value<'_>) -> Option<Meta> {
    match value {
        Value::Bool(v) => Some(Meta::Bool(v)),
        Value::Str(v) => Some(Meta::Text(v.to_vec())),
        Value::F32(_) | Value::F64(_) => value.as_f64().map(Meta::Float),
        Value::Array(array) => elements(array),
        // An id beyond i64 is in no vocabulary either.
        _ => Some(Meta::Int(value.as_i64().unwrap_or(i64::MAX))),
    }
}

fn elements(array: ArrayView<'_>) -> Option<Meta> {
    match array.elem() {
        ValueType::Str => Some(Meta::Texts(array.strings()?.map(<[u8]>::to_vec).collect())),
        ValueType::F32 | ValueType::F64 => {
            array.iter().map(|v| v.as_f64().map(|v| v as f32)).collect::<Option<_>>().map(Meta::Floats)
        }
        ValueType::Array => None,
        _ => array.iter().map(|v| v.as_i64()).collect::<Option<_>>().map(Meta::Ints),
    }
}
