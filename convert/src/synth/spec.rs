//! What a model is to be: an architecture, its metadata keys, and the tensors it has that others do without.
//!
//! ```toml
//! architecture = "qwen4exp"
//! about = "for people"
//! type = "BF16"                                # of the matrices
//! tensors = ["output.weight"]                  # of those that may be absent, or merged forms
//! [keys]                                       # without the architecture's prefix
//! vocab_size = 512
//! attention.head_count = 4
//! ```

use super::presets;
use crate::failure::Refusal;
use anyhow::Context;
use gantry_formats::arch::{self, Architecture, Presence};
use gantry_formats::block::GgmlType;
use gantry_formats::exit::Exit;
use gantry_formats::gguf::{OwnedArray, OwnedValue};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::str::FromStr;
use toml::{Table, Value};

/// Longest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// A specification.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) arch: &'static Architecture,
    pub(super) about: String,
    pub(super) ty: GgmlType,
    /// Names, those of blocks without `blk.N.`.
    pub(super) tensors: Vec<String>,
    /// Values by key without the architecture's prefix.
    pub(super) keys: BTreeMap<String, OwnedValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    architecture: String,
    #[serde(default)]
    about: String,
    r#type: String,
    #[serde(default)]
    tensors: Vec<String>,
    keys: Table,
}

impl Spec {
    /// The preset of this name, or what this file says.
    pub(super) fn named(name: &str) -> anyhow::Result<Self> {
        let usage = |text: String| Refusal::new(Exit::Usage, text);
        if let Some(text) = presets::text(name) {
            return Self::parse(name, text).map_err(|e| usage(format!("{name}: {e}")));
        }
        if !name.ends_with(".toml") {
            return Err(presets::unknown(name));
        }
        if !std::fs::metadata(name).with_context(|| name.to_string())?.is_file() {
            return Err(usage(format!("{name} is no regular file")));
        }
        let read = || -> std::io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            std::fs::File::open(name)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().with_context(|| name.to_string())?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(usage(format!("{name}: a specification has at most {MAX_FILE} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|_| usage(format!("{name} is no UTF-8 text")))?;
        let stem = std::path::Path::new(name).file_stem().unwrap_or_default().to_string_lossy();
        Self::parse(&stem, &text).map_err(|e| usage(format!("{name}: {e}")))
    }

    /// What `text` says.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_string())?;
        let arch = arch::find(&file.architecture).ok_or_else(|| {
            let known: Vec<&str> = arch::ARCHITECTURES.iter().map(|a| a.name).collect();
            format!("architecture {:?} is unknown; known: {}", file.architecture, known.join(", "))
        })?;
        let ty = super::weight_type(&file.r#type).map_err(|e| format!("type {:?}: {e}", file.r#type))?;
        for tensor in &file.tensors {
            let free =
                |p: Presence| matches!(p, Presence::Optional | Presence::TiedTo(_) | Presence::OwnIndexer);
            if !arch.rules().any(|rule| rule.name == tensor && free(rule.presence)) {
                return Err(format!("tensors: {} has no {tensor:?} that may be absent", arch.name));
            }
        }
        let mut keys = BTreeMap::new();
        flatten("", &file.keys, &mut keys)?;
        keys.keys().try_for_each(|key| check_key(arch, key))?;
        Ok(Self { name: name.into(), arch, about: file.about, ty, tensors: file.tensors, keys })
    }

    /// Sets a key, or takes it out.
    pub(super) fn set(&mut self, setting: &Setting) -> Result<(), String> {
        check_key(self.arch, &setting.key)?;
        match &setting.value {
            None => drop(self.keys.remove(&setting.key)),
            Some(Value::Table(_)) => return Err("a table is no value".into()),
            Some(value) => drop(self.keys.insert(setting.key.clone(), owned(&setting.key, value)?)),
        }
        Ok(())
    }

    /// The whole number at `key`, where there is one.
    pub(super) fn number(&self, key: &str) -> Option<u64> {
        self.keys.get(key)?.view().as_u64()
    }
}

/// Refuses a key that means nothing to models of this architecture: it would change nothing. What describes a model to
/// people (`general.…`) is free.
fn check_key(arch: &Architecture, key: &str) -> Result<(), String> {
    let mut known = arch.keys();
    if known.contains(&"ple.layers") {
        known.push(super::derive::PLE_ROWS);
    }
    if key.starts_with("general.") || known.contains(&key) {
        return Ok(());
    }
    Err(format!("{} has no key {key:?}; it has general.… and {}", arch.name, known.join(", ")))
}

/// Values of dotted keys: TOML has them as tables in tables.
fn flatten(prefix: &str, table: &Table, out: &mut BTreeMap<String, OwnedValue>) -> Result<(), String> {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            // The parser limits how deep they are.
            Value::Table(inner) => flatten(&key, inner, out)?,
            value => drop(out.insert(key.clone(), owned(&key, value).map_err(|e| format!("{key}: {e}"))?)),
        }
    }
    Ok(())
}

/// Keys that llama.cpp reads as floats, by how they end: a whole number is written as one.
const FLOATS: [&str; 7] =
    ["epsilon", "freq_base", "_scale", "factor", "_clamp_exp", "_clamp_shexp", "magnitude"];

/// Arrays of 64-bit numbers, and of signed ones; all others are of u32.
const WIDE: [&str; 3] = ["ple.layer_multipliers", "ple.head_offsets", "ple.head_vocab_sizes"];
const SIGNED: &str = "rope.dimension_sections";

/// A value with the type that GGUF readers expect at `key`.
fn owned(key: &str, value: &Value) -> Result<OwnedValue, String> {
    let is_float = FLOATS.iter().any(|end| key.ends_with(end));
    let whole = |v: &Value| {
        let number = v.as_integer().ok_or_else(|| format!("{} is no whole number", v.type_str()))?;
        u64::try_from(number).map_err(|_| format!("{number} is negative"))
    };
    let small =
        |v: &Value| whole(v).and_then(|n| u32::try_from(n).map_err(|_| format!("{n} is 2^32 or more")));
    let float = |v: &Value| match v {
        Value::Integer(n) => Ok(*n as f32),
        Value::Float(x) => Ok(*x as f32),
        other => Err(format!("{} is no number", other.type_str())),
    };
    Ok(match value {
        Value::Boolean(v) => OwnedValue::Bool(*v),
        Value::String(v) => v.as_str().into(),
        Value::Float(_) => OwnedValue::F32(float(value)?),
        Value::Integer(_) if is_float => OwnedValue::F32(float(value)?),
        Value::Integer(_) => OwnedValue::U32(small(value)?),
        Value::Array(list) if is_float || list.iter().any(Value::is_float) => {
            OwnedArray::new(list.iter().map(float).collect::<Result<Vec<f32>, _>>()?).into()
        }
        Value::Array(list) if WIDE.contains(&key) => {
            OwnedArray::new(list.iter().map(whole).collect::<Result<Vec<u64>, _>>()?).into()
        }
        Value::Array(list) => {
            let list = list.iter().map(small).collect::<Result<Vec<u32>, _>>()?;
            match key == SIGNED {
                true => OwnedArray::new(list.into_iter().map(|n| n as i32)).into(),
                false => OwnedArray::new(list).into(),
            }
        }
        other => return Err(format!("{} is no number, text or list", other.type_str())),
    })
}

/// `KEY=VALUE` of the command line.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    key: String,
    /// None: take it out.
    value: Option<Value>,
    text: String,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
            return Err(format!("{key:?} is no key"));
        }
        // What TOML cannot read is text.
        let read = |value: &str| toml::from_str::<Table>(&format!("v = {value}")).ok()?.remove("v");
        let value = match value {
            "" => None,
            value => Some(read(value).unwrap_or_else(|| Value::String(value.into()))),
        };
        Ok(Self { key: key.into(), value, text: text.into() })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
