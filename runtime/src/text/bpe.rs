//! Byte-level BPE: words by the pre-tokenizer, then merges by rank inside each word.
//!
//! Token texts are stored in GPT-2's byte alphabet, where every byte is one printable character. Merging works on
//! *symbols*, numbers for the texts that merges can make, so that the loop neither builds nor hashes strings.

use super::{TextError, Vocab, hash::FastMap, split::Splitter};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

/// The character that stands for each byte: printable Latin-1 for itself, U+0100 and on for the rest in order.
pub(super) fn byte_alphabet() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) {
            char::from(byte)
        } else {
            let stand_in = char::from_u32(next).unwrap_or(char::REPLACEMENT_CHARACTER);
            next += 1;
            stand_in
        }
    })
}

/// The way back. Characters outside the alphabet stay as they are, and so do bytes that are not UTF-8: llama.cpp
/// prints `[UNK_BYTE_0x…]` for them, which no reader of generated text wants.
pub(super) struct ByteDecoder(HashMap<char, u8>);

impl ByteDecoder {
    pub(super) fn new() -> Self {
        Self(byte_alphabet().into_iter().zip(0..=255).collect())
    }

    /// The bytes that a token text stands for.
    pub(super) fn decode(&self, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len());
        for chunk in text.utf8_chunks() {
            for letter in chunk.valid().chars() {
                match self.0.get(&letter) {
                    Some(&byte) => out.push(byte),
                    None => out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
            out.extend_from_slice(chunk.invalid());
        }
        out
    }

    /// As [`Self::decode`], but only for texts wholly in the alphabet: those that text can be encoded to.
    fn decode_exact(&self, text: &[u8]) -> Option<Vec<u8>> {
        std::str::from_utf8(text).ok()?.chars().map(|letter| self.0.get(&letter).copied()).collect()
    }
}

/// A symbol that has been merged into its left neighbour.
const DEAD: u32 = u32::MAX;
/// No neighbour.
const END: u32 = u32::MAX;

/// What a finished symbol is written as.
#[derive(Clone, Copy, Debug)]
enum Output {
    Token(u32),
    /// A range of `Bpe::spelled`, for texts that no token has.
    Spelled(u32, u32),
}

/// The merge tables of one vocabulary.
#[derive(Debug)]
pub(super) struct Bpe {
    pub(super) splitter: Splitter,
    /// (left, right) → (rank, merged symbol). Symbols 0 to 255 are the bytes.
    merges: FastMap<(u32, u32), (u32, u32)>,
    outputs: Vec<Output>,
    spelled: Vec<u32>,
    /// Whole words that are tokens, by their bytes; empty unless the family skips merges for them.
    words: FastMap<Box<[u8]>, u32>,
}

/// Merges on the way; the lowest rank first, then the leftmost.
type Queue = BinaryHeap<(Reverse<(u32, u32)>, Pair)>;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    left: u32,
    right: u32,
    merged: u32,
}

#[derive(Clone, Copy)]
struct Node {
    symbol: u32,
    prev: u32,
    next: u32,
}

/// Buffers that one call uses for all its words.
#[derive(Default)]
struct Work {
    nodes: Vec<Node>,
    queue: Queue,
}

impl Bpe {
    /// Builds the tables. `ids` maps token texts to ids. Merges of unknown texts are kept: their results may take
    /// part in others, and what is left at the end is spelled out.
    pub(super) fn new(vocab: &Vocab, ids: &FastMap<&[u8], u32>, pre: &str) -> Result<Self, TextError> {
        let splitter = Splitter::new(pre)?;
        let mut symbols: FastMap<Vec<u8>, u32> = FastMap::default();
        let mut texts: Vec<Vec<u8>> = Vec::with_capacity(vocab.merges.len() + 256);
        let mut intern = |text: Vec<u8>| match symbols.get(&text) {
            Some(&symbol) => symbol,
            None => {
                let symbol = texts.len() as u32;
                texts.push(text.clone());
                symbols.insert(text, symbol);
                symbol
            }
        };
        for letter in byte_alphabet() {
            intern(letter.to_string().into_bytes());
        }
        let mut merges = FastMap::with_capacity_and_hasher(vocab.merges.len(), Default::default());
        for (rank, merge) in vocab.merges.iter().enumerate() {
            // The space after the first byte parts the two, so that a left side may begin with a space.
            let Some(gap) = memchr::memchr(b' ', merge.get(1..).unwrap_or_default()) else { continue };
            let (left, right) = (&merge[..gap + 1], &merge[gap + 2..]);
            let key = (intern(left.to_vec()), intern(right.to_vec()));
            let merged = intern([left, right].concat());
            merges.entry(key).or_insert((rank as u32, merged));
        }

        let mut spelled = Vec::new();
        let outputs = texts
            .iter()
            .map(|text| match ids.get(text.as_slice()) {
                Some(&id) => Output::Token(id),
                None => {
                    let start = spelled.len() as u32;
                    spelled.extend(text.iter().filter_map(|&byte| ids.get([byte].as_slice())));
                    Output::Spelled(start, spelled.len() as u32)
                }
            })
            .collect();

        let mut words = FastMap::default();
        if splitter.ignore_merges {
            let decoder = ByteDecoder::new();
            for (&text, &id) in ids {
                if let Some(bytes) = decoder.decode_exact(text) {
                    words.insert(bytes.into_boxed_slice(), id);
                }
            }
        }
        Ok(Self { splitter, merges, outputs, spelled, words })
    }

    /// Appends the ids of `text`.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut work = Work::default();
        for word in self.splitter.split(text) {
            match self.words.get(word.as_bytes()) {
                Some(&id) => out.push(id),
                None => self.merge(word.as_bytes(), &mut work, out),
            }
        }
    }

    fn merge(&self, word: &[u8], work: &mut Work, out: &mut Vec<u32>) {
        let Work { nodes, queue } = work;
        let last = word.len().saturating_sub(1);
        nodes.clear();
        nodes.extend(word.iter().enumerate().map(|(at, &byte)| Node {
            symbol: u32::from(byte),
            prev: if at == 0 { END } else { at as u32 - 1 },
            next: if at == last { END } else { at as u32 + 1 },
        }));
        queue.clear();
        for at in 0..last {
            self.queue(nodes, queue, at as u32);
        }
        while let Some((Reverse((_, at)), pair)) = queue.pop() {
            let Node { symbol, prev, next } = nodes[at as usize];
            // Outdated when either side has grown or gone since.
            if symbol != pair.left || next == END || nodes[next as usize].symbol != pair.right {
                continue;
            }
            let after = nodes[next as usize].next;
            nodes[next as usize].symbol = DEAD;
            nodes[at as usize].symbol = pair.merged;
            nodes[at as usize].next = after;
            if after != END {
                nodes[after as usize].prev = at;
                self.queue(nodes, queue, at);
            }
            if prev != END {
                self.queue(nodes, queue, prev);
            }
        }
        for node in nodes.iter().filter(|node| node.symbol != DEAD) {
            match self.outputs[node.symbol as usize] {
                Output::Token(id) => out.push(id),
                Output::Spelled(start, end) => {
                    out.extend_from_slice(&self.spelled[start as usize..end as usize]);
                }
            }
        }
    }

    /// Queues the merge of the symbol at `at` with its right neighbour, if there is one.
    fn queue(&self, nodes: &[Node], queue: &mut Queue, at: u32) {
        let left = nodes[at as usize];
        let Some(right) = nodes.get(left.next as usize) else { return };
        if let Some(&(rank, merged)) = self.merges.get(&(left.symbol, right.symbol)) {
            queue.push((Reverse((rank, at)), Pair { left: left.symbol, right: right.symbol, merged }));
        }
    }
}
