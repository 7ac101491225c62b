//! Types of a KV cache, as estimates of memory take them.

use clap::ValueEnum;

/// Type of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvType {
    /// 4 bytes a value
    F32,
    /// 2 bytes a value
    F16,
}

impl KvType {
    /// Bytes of a value.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }

    /// As `--kv` takes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// The type called `name`; what no backend computes with is refused.
    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        match name {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "int8" | "i8" | "q8_0" => Err(format!(
                "no backend of this version keeps keys and values as {name}; f32 and f16 can be run"
            )),
            _ => Err(format!("no KV cache is called {name}; known are f32 and f16")),
        }
    }
}
