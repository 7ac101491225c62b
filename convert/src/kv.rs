//! Types of a KV cache, as estimates of memory take them.

use clap::ValueEnum;
use gantry_formats::arch::BlockState;

/// Type of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvType {
    /// 4 bytes a value
    F32,
    /// 2 bytes a value
    F16,
    /// 1 byte a value, and 2 for those of a head at a position
    Int8,
}

impl KvType {
    /// Bytes of what is kept.
    pub(crate) fn bytes(self, state: &BlockState) -> u64 {
        match self {
            Self::F32 => state.bytes(4, 0),
            Self::F16 => state.bytes(2, 0),
            Self::Int8 => state.bytes(1, 2),
        }
    }

    /// As `--kv` takes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }

    /// The type called `name`; what no backend computes with is refused.
    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        match name {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "int8" => Ok(Self::Int8),
            _ => Err(format!("no KV cache is called {name}; known are f32, f16 and int8")),
        }
    }
}
