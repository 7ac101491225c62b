//! Gantry's own JSON: `docs/HOTNESS.md` describes it field by field.

use super::{Hotness, HotnessFault, LayerCounts};
use crate::hash;
use serde::Deserialize;
use std::fmt::Write;

/// `schema` of the document.
pub const SCHEMA: &str = "gantry-hotness";

/// `version` of the document; another one is refused.
pub const VERSION: u64 = 1;

/// What comes before all else.
#[derive(Deserialize)]
struct Head {
    schema: String,
    version: u64,
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    fingerprint: Option<String>,
    layers: u32,
    experts: u32,
    tokens: u64,
    counts: Vec<Line>,
}

#[derive(Deserialize)]
struct Line {
    layer: u32,
    counts: Vec<u64>,
}

impl Hotness {
    /// The document, one line for each layer. The same counts give the same bytes.
    pub fn to_json(&self) -> String {
        let mut out = format!("{{\n  \"schema\": \"{SCHEMA}\",\n  \"version\": {VERSION},\n");
        if let Some(fingerprint) = &self.fingerprint {
            // Anybody may set the field: quoted by the rules, whatever is in it.
            let _ = writeln!(out, "  \"fingerprint\": {},", serde_json::Value::from(fingerprint.as_str()));
        }
        let _ = write!(out, "  \"layers\": {},\n  \"experts\": {},\n", self.layers, self.experts);
        let _ = write!(out, "  \"tokens\": {},\n  \"counts\": [", self.tokens);
        for (i, LayerCounts { layer, counts }) in self.counts.iter().enumerate() {
            let counts: Vec<String> = counts.iter().map(u64::to_string).collect();
            let comma = if i == 0 { "" } else { "," };
            let counts = counts.join(", ");
            let _ = write!(out, "{comma}\n    {{ \"layer\": {layer}, \"counts\": [{counts}] }}");
        }
        out + if self.counts.is_empty() { "]\n}\n" } else { "\n  ]\n}\n" }
    }

    /// Reads the document; a byte order mark before it is passed over.
    ///
    /// # Errors
    /// Where it is no such document, of another version, or breaks a rule ([`Hotness::check`]); also where an expert
    /// has more tokens than were seen.
    pub fn from_json(bytes: &[u8]) -> Result<Self, HotnessFault> {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let bad = |e: serde_json::Error| HotnessFault::Malformed { what: e.to_string() };
        let Head { schema, version } = serde_json::from_slice(bytes).map_err(bad)?;
        if schema != SCHEMA || version != VERSION {
            return Err(HotnessFault::Version { schema: schema.chars().take(64).collect(), version });
        }
        let document: Document = serde_json::from_slice(bytes).map_err(bad)?;
        let Document { fingerprint, layers, experts, tokens, counts } = document;
        if fingerprint.as_ref().is_some_and(|f| hash::from_hex(f).is_none()) {
            return Err(HotnessFault::Malformed { what: "fingerprint: expected 64 hex digits".into() });
        }
        let mut counts: Vec<LayerCounts> =
            counts.into_iter().map(|Line { layer, counts }| LayerCounts { layer, counts }).collect();
        counts.sort_by_key(|l| l.layer);
        let hotness = Self {
            fingerprint: fingerprint.map(|f| f.to_ascii_lowercase()),
            layers,
            experts,
            tokens,
            counts,
        };
        hotness.check()?;
        for LayerCounts { layer, counts } in &hotness.counts {
            if let Some(expert) = counts.iter().position(|n| *n > tokens).filter(|_| tokens > 0) {
                let n = counts[expert];
                let what = format!("layer {layer} expert {expert}: {n} tokens, {tokens} were seen");
                return Err(HotnessFault::Malformed { what });
            }
        }
        Ok(hotness)
    }
}
