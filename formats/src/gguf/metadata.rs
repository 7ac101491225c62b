//! Typed look-ups, as the architecture tables ask for them.

use super::Header;
use crate::arch::Metadata;

impl Metadata for Header {
    fn u64(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    fn f64(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_f64()
    }

    fn bool(&self, key: &str) -> Option<bool> {
        self.get(key)?.as_bool()
    }

    fn text(&self, key: &str) -> Option<String> {
        self.get(key)?.as_str().map(str::to_owned)
    }

    fn array_len(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_array().map(|a| a.len() as u64)
    }

    fn u64_array(&self, key: &str) -> Option<Vec<u64>> {
        self.get(key)?.as_array()?.iter().map(|v| v.as_u64().or(v.as_bool().map(u64::from))).collect()
    }

    fn f64_array(&self, key: &str) -> Option<Vec<f64>> {
        self.get(key)?.as_array()?.iter().map(|v| v.as_f64()).collect()
    }
}
