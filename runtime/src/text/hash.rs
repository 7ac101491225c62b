//! A hash for the vocabulary tables: one wide multiplication for each 8 bytes, about a third of SipHash's time on
//! keys this short. The keys in a table are the model's own, so nobody who sends text can make them collide.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// A hash map with [`FoldHasher`].
pub(super) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FoldHasher>>;

/// Multiplies each word in and folds the high half of the product onto the low one.
#[derive(Default)]
pub(super) struct FoldHasher(u64);

/// The first 64 fraction bits of π, odd: no structure of its own.
const FACTOR: u64 = 0x243F_6A88_85A3_08D3;

impl Hasher for FoldHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0.rotate_left(32) ^ value ^ FACTOR) * u128::from(FACTOR);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
