//! Other bytes in the place of a tensor's, on a card that runs.
#![allow(unsafe_code, reason = "a launch")]

use super::driver::DeviceMemory;
use super::kernels::{Args, Group};
use super::lift::described;
use super::loaded::{Loaded, wrong};
use crate::Result;
use crate::load::Hashed;
use std::sync::PoisonError;

impl Loaded {
    /// Writes `bytes` at `at` of the arena once no run is under way, and gives the hashes of what is there then.
    pub(super) fn replace(&self, at: u64, bytes: &[u8], hashed: &[Hashed]) -> Result<Vec<[u8; 32]>> {
        let _alone = self.used.write().unwrap_or_else(PoisonError::into_inner);
        let inside = |at: u64, len: u64| at.checked_add(len).is_some_and(|end| end <= self.arena().bytes());
        if !inside(at, bytes.len() as u64) || !hashed.iter().all(|h| inside(h.at, h.bytes)) {
            return Err(wrong("arena", format!("{} bytes at {at} lie outside of it", bytes.len())));
        }
        self.arena().write(at, bytes, &self.aside)?;
        if hashed.is_empty() {
            return Ok(Vec::new());
        }
        let described = described(hashed);
        let what = "the table of what a card hashes";
        let stretches = DeviceMemory::new(&self.context, described.len() as u64, what)?;
        stretches.write(0, &described, &self.aside)?;
        let values = DeviceMemory::new(&self.context, 32 * hashed.len() as u64, what)?;
        let args = Args::at(&[self.arena().address(), stretches.address(), values.address()]);
        // SAFETY: each stretch lies in the arena, which has room behind it, and has a description and a value; all of
        // them outlive the stream's work, which is waited for.
        unsafe {
            self.kernels.launch(&self.aside, "gantry_blake3", [hashed.len(), 1, 1], Group::default(), &args)
        }?;
        let mut found = vec![0; 32 * hashed.len()];
        values.read(0, &mut found, &self.aside)?;
        Ok(found.as_chunks().0.to_vec())
    }
}
