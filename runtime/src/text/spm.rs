//! SentencePiece as llama.cpp does it: the best-scored pair of neighbours that makes a token is merged first, on
//! the whole text; what is no token in the end is written as bytes.

use super::{Vocab, hash::FastMap};
use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

/// What stands for a space in token texts.
pub(super) const SPACE: &str = "\u{2581}";

/// No neighbour.
const END: u32 = u32::MAX;

/// The tables of one vocabulary.
#[derive(Debug)]
pub(super) struct Spm {
    /// Token text → (id, score).
    tokens: FastMap<Box<[u8]>, (u32, f32)>,
    /// The token of each byte: `<0xXX>`, else the byte itself, else the unknown token.
    bytes: [Option<u32>; 256],
    longest: usize,
    /// No token has a space after something else, so that no merge crosses the beginning of a word.
    by_word: bool,
    pub(super) space_prefix: bool,
}

/// A stretch of the text; of length 0 once merged into its left neighbour.
struct Node {
    start: usize,
    len: usize,
    prev: u32,
    next: u32,
}

/// A possible merge; the highest score first, then the leftmost.
struct Pair {
    score: f32,
    left: u32,
    right: u32,
    /// Bytes of both; another number later means that the pair is outdated.
    len: usize,
}

/// Buffers that one call uses for all its words.
#[derive(Default)]
struct Work {
    nodes: Vec<Node>,
    queue: BinaryHeap<Pair>,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |pair: &Self| (Reverse(pair.left), Reverse(pair.len));
        self.score.total_cmp(&other.score).then_with(|| key(self).cmp(&key(other)))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl Spm {
    /// Builds the tables. `ids` maps token texts to ids.
    pub(super) fn new(vocab: &Vocab, ids: &FastMap<&[u8], u32>, unknown: Option<u32>) -> Self {
        let score = |id: u32| vocab.scores.get(id as usize).copied().unwrap_or(0.0);
        let bytes = std::array::from_fn(|byte| {
            let byte = byte as u8;
            ids.get(format!("<0x{byte:02X}>").as_bytes())
                .or_else(|| ids.get([byte].as_slice()))
                .copied()
                .or(unknown)
        });
        Self {
            // Adding zero makes -0.0 of 0.0, which `total_cmp` would tell apart.
            tokens: ids.iter().map(|(&text, &id)| (text.into(), (id, score(id) + 0.0))).collect(),
            bytes,
            by_word: !ids.keys().any(|text| word_end(text) < text.len()),
            longest: ids.keys().map(|text| text.len()).max().unwrap_or(0),
            space_prefix: vocab.add_space_prefix.unwrap_or(true),
        }
    }

    /// Appends the ids of `text`. `first`: at the beginning, or after a special token.
    pub(super) fn encode(&self, text: &str, first: bool, out: &mut Vec<u32>) {
        let mut escaped = String::with_capacity(text.len() + text.len() / 4 + SPACE.len());
        if first && self.space_prefix {
            escaped.push_str(SPACE);
        }
        for piece in text.split_inclusive(' ') {
            match piece.strip_suffix(' ') {
                Some(word) => {
                    escaped.push_str(word);
                    escaped.push_str(SPACE);
                }
                None => escaped.push_str(piece),
            }
        }
        let mut work = Work::default();
        let mut rest = escaped.as_str();
        while !rest.is_empty() {
            // Words keep the queue short, which is most of the time that a long text takes.
            let (word, after) =
                rest.split_at(if self.by_word { word_end(rest.as_bytes()) } else { rest.len() });
            self.merge(word, &mut work, out);
            rest = after;
        }
    }

    fn merge(&self, word: &str, work: &mut Work, out: &mut Vec<u32>) {
        let Work { nodes, queue } = work;
        nodes.clear();
        nodes.extend(word.char_indices().enumerate().map(|(at, (start, letter))| Node {
            start,
            len: letter.len_utf8(),
            prev: if at == 0 { END } else { at as u32 - 1 },
            next: at as u32 + 1,
        }));
        if let Some(last) = nodes.last_mut() {
            last.next = END;
        }
        let text = word.as_bytes();
        queue.clear();
        for left in 0..nodes.len() {
            self.queue(text, nodes, queue, left as u32);
        }
        while let Some(Pair { left, right, len, .. }) = queue.pop() {
            let (left_len, right_len) = (nodes[left as usize].len, nodes[right as usize].len);
            if left_len == 0 || right_len == 0 || left_len + right_len != len {
                continue;
            }
            let after = nodes[right as usize].next;
            nodes[right as usize].len = 0;
            nodes[left as usize].len = len;
            nodes[left as usize].next = after;
            if after != END {
                nodes[after as usize].prev = left;
                self.queue(text, nodes, queue, left);
            }
            let before = nodes[left as usize].prev;
            if before != END {
                self.queue(text, nodes, queue, before);
            }
        }
        for node in nodes.iter().filter(|node| node.len > 0) {
            let piece = &text[node.start..node.start + node.len];
            match self.tokens.get(piece) {
                Some(&(id, _)) => out.push(id),
                None => out.extend(piece.iter().filter_map(|&byte| self.bytes[usize::from(byte)])),
            }
        }
    }

    /// Queues the merge of the stretch at `left` with its right neighbour, if the two make a token.
    fn queue(&self, text: &[u8], nodes: &[Node], queue: &mut BinaryHeap<Pair>, left: u32) {
        let node = &nodes[left as usize];
        let Some(next) = nodes.get(node.next as usize) else { return };
        let len = node.len + next.len;
        if len > self.longest {
            return;
        }
        if let Some(&(_, score)) = self.tokens.get(&text[node.start..node.start + len]) {
            queue.push(Pair { score, left, right: node.next, len });
        }
    }
}

/// Where the first word ends: before the first space that follows something else.
fn word_end(text: &[u8]) -> usize {
    let space = SPACE.as_bytes();
    let mut start = 0;
    while text[start..].starts_with(space) {
        start += space.len();
    }
    memchr::memmem::find(&text[start..], space).map_or(text.len(), |at| start + at)
}
