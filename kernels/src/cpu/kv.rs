//! The keys and values that attention remembers.

use std::ops::Range;

use half::f16;

use super::kv_int8::kv_int8_row;

/// How a cache stores its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// As computed.
    F32,
    /// Rounded to nearest even, half the memory.
    F16,
    /// A row of a head as int8 with an f16 scale ([`kv_int8_row`](super::kv_int8_row)): a quarter of the memory.
    Int8,
}

/// What a position holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key-value heads.
    pub heads: usize,
    /// Values of a head's key.
    pub key_len: usize,
    /// Values of a head's value.
    pub value_len: usize,
    /// The value is the first `value_len` of the key and is not stored again: [c | k_pe] with v = c, or K == V.
    pub shared: bool,
}

/// A cache that forgets: after a write at position p those from p − `keep` on are there (or as far back as before
/// the write, where that is less), and what was written. How much more is there is for [`KvCache::first`] to say.
///
/// A layer with a sliding window of w keys needs `keep` = w − 1, and as many more as it wants to be able to go back:
/// after positions are dropped, a write may again start at any position that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Positions before a write that stay.
    pub keep: usize,
    /// Positions of one write at most.
    pub batch: usize,
}

/// One layer's keys and values, each `[heads][slots][len]`: a head's keys follow one another, so that attention
/// reads them as one stream. Position p is in slot p; with a [`Window`] there are 2·keep + batch slots, position p
/// is in slot p − [`KvCache::first`], and a write that finds no room moves the last `keep` positions to the front
/// first (fewer than one position moved for each one written).
#[derive(Clone, Debug)]
pub struct KvCache {
    pub(super) shape: KvShape,
    capacity: usize,
    window: Option<Window>,
    slots: usize,
    /// The position in slot 0, and the one after the last written.
    first: usize,
    end: usize,
    pub(super) keys: KvPlane,
    /// None: shared.
    pub(super) values: Option<KvPlane>,
}

#[derive(Clone, Debug)]
pub(super) enum KvPlane {
    F32(Vec<f32>),
    F16(Vec<f16>),
    /// Values, and the scale of each of their rows.
    Int8(Vec<i8>, Vec<f16>),
}

impl KvCache {
    /// A zeroed cache for positions below `capacity`, all of them or those that `window` keeps.
    ///
    /// # Panics
    /// Where a dimension (or `window.batch`) is 0, a shared value is longer than its key, or memory does not
    /// suffice.
    pub fn new(kind: KvType, shape: KvShape, capacity: usize, window: Option<Window>) -> Self {
        let KvShape { heads, key_len, value_len, shared } = shape;
        assert!(heads > 0 && capacity > 0 && key_len > 0 && value_len > 0, "a cache without elements");
        assert!(!shared || value_len <= key_len, "values of {value_len} within keys of {key_len}");
        assert!(window.is_none_or(|w| w.batch > 0), "a window without room for a write");
        let bytes = Self::bytes_of(kind, shape, capacity, window);
        assert!(bytes.is_some_and(|n| isize::try_from(n).is_ok()), "the cache fits the address space");
        let slots = slots(capacity, window);
        let plane = |len: usize| match kind {
            KvType::F32 => KvPlane::F32(vec![0.0; heads * slots * len]),
            KvType::F16 => KvPlane::F16(vec![f16::ZERO; heads * slots * len]),
            KvType::Int8 => KvPlane::Int8(vec![0; heads * slots * len], vec![f16::ZERO; heads * slots]),
        };
        let values = (!shared).then(|| plane(value_len));
        KvCache { shape, capacity, window, slots, first: 0, end: 0, keys: plane(key_len), values }
    }

    /// Bytes that such a cache takes; none: more than a usize counts.
    pub fn bytes_of(kind: KvType, shape: KvShape, capacity: usize, window: Option<Window>) -> Option<usize> {
        let values = if shape.shared { Some(0) } else { kind.row_bytes(shape.value_len) };
        let row = kind.row_bytes(shape.key_len)?.checked_add(values?)?.checked_mul(shape.heads)?;
        row.checked_mul(slots(capacity, window))
    }

    /// What a position holds.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Positions that it can be written at: all below.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of its planes.
    pub fn bytes(&self) -> usize {
        Self::bytes_of(self.keys.kind(), self.shape, self.capacity, self.window).expect("it exists")
    }

    /// The first position that is still there: 0 without a window. A write may start there or later, or at 0; a
    /// query whose keys begin at an earlier position cannot be answered. So who goes back to `start` in a layer that
    /// sees w keys asks first whether `first() <= start.saturating_sub(w - 1)`; otherwise it must start at 0.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Store the keys and values of positions `first..first + tokens`. Token t's stand at
    /// `keys[t·stride..][..heads·key_len]` and `values[t·stride..][..heads·value_len]` (so that both may be parts of
    /// a fused product); a shared cache takes no values.
    ///
    /// With a window a write may go back (it starts at a position that is there, or at 0: a new sequence) and then
    /// ends the sequence at its own end; it leaves no gap.
    ///
    /// # Panics
    /// Where a position exceeds the capacity, a slice ends early, or values are given to a shared cache or missing
    /// for another. With a window also for more than `batch` tokens, after a gap, and for a start that is gone.
    pub fn write(
        &mut self,
        first: usize,
        tokens: usize,
        keys: &[f32],
        values: Option<&[f32]>,
        stride: usize,
    ) {
        assert!(
            tokens <= self.capacity && first <= self.capacity - tokens,
            "positions {first}+{tokens} of {}",
            self.capacity
        );
        assert_eq!(values.is_none(), self.shape.shared, "values are given where they are not the keys'");
        if tokens == 0 {
            return;
        }
        self.make_room(first, tokens);
        let KvShape { heads, key_len, value_len, .. } = self.shape;
        let at = (heads, self.slots, first - self.first);
        self.keys.write(at, tokens, key_len, keys, stride);
        if let (Some(plane), Some(values)) = (&mut self.values, values) {
            plane.write(at, tokens, value_len, values, stride);
        }
    }

    /// The keys of positions `range`, one after the other.
    ///
    /// # Panics
    /// Where the cache has several heads or is not F32, or a position is not there.
    pub fn rows_f32(&self, range: Range<usize>) -> &[f32] {
        let KvPlane::F32(keys) = &self.keys else { panic!("rows of another cache as f32") };
        assert_eq!(self.shape.heads, 1, "rows of a cache with one head");
        assert!(range.start <= range.end, "positions {range:?}");
        self.assert_there(&range);
        let len = self.shape.key_len;
        &keys[(range.start - self.first) * len..(range.end - self.first) * len]
    }

    /// Appends the planes' rows of the positions that are there below `end` to `out`, little-endian, and gives the
    /// first of them. Positions below `end` that a cache with a window has not been written at are zeros, as many as
    /// it has slots for.
    ///
    /// # Panics
    /// Where `end` exceeds the capacity.
    pub fn save(&self, end: usize, out: &mut Vec<u8>) -> usize {
        // What is beyond `keep` depends on how writes were cut into batches, and nothing reads it.
        let keep = self.window.map_or(usize::MAX, |w| w.keep.min(self.slots));
        let first = self.first.min(end).max(end.saturating_sub(keep));
        let there = if self.window.is_some() { end.min(self.end).max(first) } else { end };
        let KvShape { heads, key_len, value_len, .. } = self.shape;
        let planes = [Some((&self.keys, key_len)), self.values.as_ref().map(|v| (v, value_len))];
        for (plane, len) in planes.into_iter().flatten() {
            for head in 0..heads {
                if first < there {
                    let slot = |position: usize| head * self.slots + position - self.first;
                    plane.save(slot(first)..slot(there), end - there, len, out);
                } else {
                    plane.save(0..0, end - there, len, out);
                }
            }
        }
        first
    }

    /// Takes what [`save`](Self::save) wrote for the positions `range`; `false`, and nothing changes, where `saved`
    /// is not as long as that takes or the positions have no room.
    pub fn restore(&mut self, range: Range<usize>, saved: &[u8]) -> bool {
        let KvShape { heads, key_len, value_len, shared } = self.shape;
        let n = range.len();
        let row = |len| self.keys.kind().row_bytes(len).unwrap_or(0);
        let row_bytes = heads * (row(key_len) + if shared { 0 } else { row(value_len) });
        let room =
            n <= self.slots && range.end <= self.capacity && (self.window.is_some() || range.start == 0);
        if !room || n.checked_mul(row_bytes) != Some(saved.len()) {
            return false;
        }
        if self.window.is_some() {
            (self.first, self.end) = (range.start, range.end);
        }
        let rows = [row(key_len), row(value_len)].map(|bytes| bytes * n);
        let mut rest = saved;
        let planes = [Some((&mut self.keys, key_len)), self.values.as_mut().map(|v| (v, value_len))];
        for ((plane, len), bytes) in planes.into_iter().flatten().zip(rows) {
            for head in 0..heads {
                let (own, later) = rest.split_at(bytes);
                plane.restore(head * self.slots, n, len, own);
                rest = later;
            }
        }
        true
    }

    /// # Panics
    /// Where one of the positions is not there.
    pub(super) fn assert_there(&self, range: &Range<usize>) {
        let end = if self.window.is_some() { self.end } else { self.capacity };
        assert!(
            range.is_empty() || self.first <= range.start && range.end <= end,
            "positions {range:?} are read where {}..{end} are there",
            self.first
        );
    }

    /// Slots of a head.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// `first` and `end` as they are after a write.
    fn make_room(&mut self, first: usize, tokens: usize) {
        let Some(Window { keep, batch }) = self.window else { return };
        assert!(tokens <= batch, "{tokens} positions written to a cache for {batch} at a time");
        assert!(first <= self.end, "position {first} written after {}: a gap", self.end);
        if first == 0 {
            self.first = 0;
        }
        assert!(
            self.first <= first,
            "position {first} written, but the first that is there is {}",
            self.first
        );
        self.end = first + tokens;
        if self.end - self.first > self.slots {
            // More than `keep` are there before `first`, or this write would have had room.
            let (from, count) = (first - keep - self.first, keep);
            let KvShape { heads, key_len, value_len, .. } = self.shape;
            let planes = [Some((&mut self.keys, key_len)), self.values.as_mut().map(|v| (v, value_len))];
            for (plane, len) in planes.into_iter().flatten() {
                for head in 0..heads {
                    let at = head * self.slots;
                    plane.copy_within(at + from..at + from + count, at, len);
                }
            }
            self.first = first - keep;
        }
    }
}

fn slots(capacity: usize, window: Option<Window>) -> usize {
    let needed = window.map(|w| w.keep.saturating_mul(2).saturating_add(w.batch));
    capacity.min(needed.unwrap_or(usize::MAX))
}

impl KvType {
    /// Bytes of a row of a head of `len` values.
    fn row_bytes(self, len: usize) -> Option<usize> {
        match self {
            KvType::F32 => len.checked_mul(4),
            KvType::F16 => len.checked_mul(2),
            KvType::Int8 => len.checked_add(2),
        }
    }
}

impl KvPlane {
    fn kind(&self) -> KvType {
        match self {
            KvPlane::F32(_) => KvType::F32,
            KvPlane::F16(_) => KvType::F16,
            KvPlane::Int8(..) => KvType::Int8,
        }
    }

    /// Rows of `len` values in `slots`, then as many as `missing` of zeros; of int8 the scales after the values.
    fn save(&self, slots: Range<usize>, missing: usize, len: usize, out: &mut Vec<u8>) {
        let range = slots.start * len..slots.end * len;
        match self {
            KvPlane::F32(plane) => out.extend(plane[range].iter().flat_map(|v| v.to_le_bytes())),
            KvPlane::F16(plane) => out.extend(plane[range].iter().flat_map(|v| v.to_le_bytes())),
            KvPlane::Int8(plane, scales) => {
                out.extend(plane[range].iter().map(|v| v.cast_unsigned()));
                out.resize(out.len() + missing * len, 0);
                out.extend(scales[slots].iter().flat_map(|v| v.to_le_bytes()));
                out.resize(out.len() + missing * 2, 0);
                return;
            }
        }
        out.resize(out.len() + missing * self.kind().row_bytes(len).unwrap_or(0), 0);
    }

    /// Takes `n` rows from slot `slot` on, as `save` wrote them.
    fn restore(&mut self, slot: usize, n: usize, len: usize, saved: &[u8]) {
        let at = slot * len;
        match self {
            KvPlane::F32(plane) => {
                let values = saved.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
                plane[at..].iter_mut().zip(values).for_each(|(to, from)| *to = from);
            }
            KvPlane::F16(plane) => halves(saved, &mut plane[at..]),
            KvPlane::Int8(plane, scales) => {
                let (values, rest) = saved.split_at(n * len);
                plane[at..].iter_mut().zip(values).for_each(|(to, from)| *to = from.cast_signed());
                halves(rest, &mut scales[slot..]);
            }
        }
    }

    /// Rows of some slots to those from `to` on.
    fn copy_within(&mut self, slots: Range<usize>, to: usize, len: usize) {
        let from = slots.start * len..slots.end * len;
        match self {
            KvPlane::F32(plane) => plane.copy_within(from, to * len),
            KvPlane::F16(plane) => plane.copy_within(from, to * len),
            KvPlane::Int8(plane, scales) => {
                plane.copy_within(from, to * len);
                scales.copy_within(slots, to);
            }
        }
    }

    /// The heads of `tokens` rows of `from` to the slots from `slot` on.
    fn write(
        &mut self,
        (heads, slots, slot): (usize, usize, usize),
        tokens: usize,
        len: usize,
        from: &[f32],
        stride: usize,
    ) {
        for token in 0..tokens {
            let row = from[token * stride..][..heads * len].chunks_exact(len);
            for (head, from) in row.enumerate() {
                let row = head * slots + slot + token;
                let at = row * len;
                match self {
                    KvPlane::F32(to) => to[at..][..len].copy_from_slice(from),
                    KvPlane::F16(to) => {
                        to[at..][..len]
                            .iter_mut()
                            .zip(from)
                            .for_each(|(to, from)| *to = f16::from_f32(*from));
                    }
                    KvPlane::Int8(to, scales) => scales[row] = kv_int8_row(from, &mut to[at..][..len]),
                }
            }
        }
    }
}

fn halves(bytes: &[u8], to: &mut [f16]) {
    let values = bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b));
    to.iter_mut().zip(values).for_each(|(to, from)| *to = from);
}
