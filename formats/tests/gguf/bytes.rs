//! A small independent GGUF builder, that writes wrong files as readily as right ones.

pub(crate) const U8: u32 = 0;
pub(crate) const U16: u32 = 2;
pub(crate) const U32: u32 = 4;
pub(crate) const I32: u32 = 5;
pub(crate) const BOOL: u32 = 7;
pub(crate) const STR: u32 = 8;
pub(crate) const ARR: u32 = 9;

pub(crate) const F32: u32 = 0;
pub(crate) const Q8_0: u32 = 8;
pub(crate) const BF16: u32 = 30;

/// A length and bytes.
pub(crate) fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

pub(crate) fn kv(key: &str, ty: u32, raw: &[u8]) -> Vec<u8> {
    [&text(key.as_bytes())[..], &ty.to_le_bytes(), raw].concat()
}

pub(crate) fn kv_str(key: &str, value: &[u8]) -> Vec<u8> {
    kv(key, STR, &text(value))
}

pub(crate) fn kv_array(key: &str, elem: u32, len: u64, raw: &[u8]) -> Vec<u8> {
    kv(key, ARR, &[&elem.to_le_bytes()[..], &len.to_le_bytes(), raw].concat())
}

pub(crate) fn arch() -> Vec<u8> {
    kv_str("general.architecture", b"llama")
}

pub(crate) fn tensor(name: &[u8], dims: &[u64], ty: u32, offset: u64) -> Vec<u8> {
    let mut out = text(name);
    out.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
    out.extend(ty.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

/// `n` BF16 ones.
pub(crate) fn ones(n: usize) -> Vec<u8> {
    [0x80, 0x3f].repeat(n)
}

/// A file in parts; counts follow the parts unless they are given.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) version: u32,
    pub(crate) kvs: Vec<Vec<u8>>,
    pub(crate) tensors: Vec<Vec<u8>>,
    pub(crate) tensor_count: Option<u64>,
    pub(crate) align: usize,
    pub(crate) data: Vec<u8>,
}

/// One BF16 tensor `a.weight` of 32 ones.
pub(crate) fn good() -> File {
    File {
        version: 3,
        kvs: vec![arch()],
        tensors: vec![tensor(b"a.weight", &[32], BF16, 0)],
        tensor_count: None,
        align: 32,
        data: ones(32),
    }
}

impl File {
    /// This file with another tensor instead.
    pub(crate) fn with(mut self, dims: &[u64], ty: u32, offset: u64, data: Vec<u8>) -> Self {
        self.tensors = vec![tensor(b"a.weight", dims, ty, offset)];
        self.data = data;
        self
    }

    /// This file with another pair after the others.
    pub(crate) fn key(mut self, kv: Vec<u8>) -> Self {
        self.kvs.push(kv);
        self
    }

    /// Fixed part, pairs and tensor table.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend((self.kvs.len() as u64).to_le_bytes());
        out.extend(self.kvs.concat());
        out.extend(self.tensors.concat());
        out
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut out = self.header();
        out.resize(out.len().next_multiple_of(self.align), 0);
        out.extend(&self.data);
        out
    }
}

/// Magic, version 3, counts, and what follows.
pub(crate) fn raw(tensors: u64, keys: u64, rest: &[u8]) -> Vec<u8> {
    [&b"GGUF"[..], &3u32.to_le_bytes(), &tensors.to_le_bytes(), &keys.to_le_bytes(), rest].concat()
}
