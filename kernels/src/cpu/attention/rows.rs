//! The rows of a cache that a query reads, whatever their type and however they are chosen.

use half::f16;

use crate::cpu::kv::{KvCache, KvPlane};
use crate::cpu::lanes::{LANES, Simd};

/// What a cache holds, widened exactly to f32.
pub(super) trait Stored: Copy {
    /// Whether a load takes more than reading.
    const WIDENS: bool;
    /// # Safety
    /// 16 elements at `p`.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F;
    /// # Safety
    /// `n` elements at `p`, n <= 16; the other lanes become +0.
    unsafe fn load_part<S: Simd>(s: S, p: *const Self, n: usize) -> S::F;
}

impl Stored for f32 {
    const WIDENS: bool = false;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const f32) -> S::F {
        // SAFETY: the caller's.
        unsafe { s.load(p) }
    }
    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, p: *const f32, n: usize) -> S::F {
        // SAFETY: the caller's.
        unsafe { s.load_part(p, n) }
    }
}

impl Stored for f16 {
    const WIDENS: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const f16) -> S::F {
        // SAFETY: the caller's; f16 is a transparent u16.
        unsafe { s.load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, p: *const f16, n: usize) -> S::F {
        let mut lanes = [0u16; LANES];
        // SAFETY: the caller's; n <= 16.
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast(), lanes.as_mut_ptr(), n);
            s.load_f16(lanes.as_ptr())
        }
    }
}

impl Stored for i8 {
    const WIDENS: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const i8) -> S::F {
        // SAFETY: the caller's.
        unsafe { s.load_i8(p) }
    }
    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, p: *const i8, n: usize) -> S::F {
        let mut lanes = [0i8; LANES];
        // SAFETY: the caller's; n <= 16.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
            s.load_i8(lanes.as_ptr())
        }
    }
}

/// Rows of `len` elements, the i-th at `at(i)`.
pub(super) trait Rows: Copy {
    type T: Stored;
    /// Whether elements stand for themselves times a scale of their row: such rows are always widened.
    const SCALED: bool = false;
    fn count(self) -> usize;
    fn len(self) -> usize;
    /// The address of `len` elements.
    ///
    /// # Safety
    /// i < count.
    unsafe fn at(self, i: usize) -> *const Self::T;
    /// Where row i stands among all, counted from the plane's first.
    fn slot(self, i: usize) -> usize;
    /// The scale of row i.
    fn scale(self, _i: usize) -> f32 {
        1.0
    }
}

/// Rows one after the other, `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Run<'a, T> {
    plane: &'a [T],
    count: usize,
    len: usize,
    stride: usize,
}

impl<'a, T> Run<'a, T> {
    /// # Panics
    /// Where the last row ends beyond the plane.
    #[inline(always)]
    pub(super) fn new(plane: &'a [T], count: usize, len: usize, stride: usize) -> Self {
        assert!(len <= stride && count * stride <= plane.len(), "{count} rows of {stride}");
        Run { plane, count, len, stride }
    }
}

impl<T: Stored> Rows for Run<'_, T> {
    type T = T;
    #[inline(always)]
    fn count(self) -> usize {
        self.count
    }
    #[inline(always)]
    fn len(self) -> usize {
        self.len
    }
    #[inline(always)]
    unsafe fn at(self, i: usize) -> *const T {
        debug_assert!(i < self.count);
        // SAFETY: `new` has checked that `count` rows lie inside; the caller that i is less.
        unsafe { self.plane.as_ptr().add(i * self.stride) }
    }
    #[inline(always)]
    fn slot(self, i: usize) -> usize {
        i
    }
}

/// Rows by number: `ids[i] - first`.
#[derive(Clone, Copy)]
pub(super) struct Picked<'a, T> {
    plane: &'a [T],
    ids: &'a [u32],
    first: usize,
    len: usize,
    stride: usize,
}

impl<T: Stored> Rows for Picked<'_, T> {
    type T = T;
    #[inline(always)]
    fn count(self) -> usize {
        self.ids.len()
    }
    #[inline(always)]
    fn len(self) -> usize {
        self.len
    }
    #[inline(always)]
    unsafe fn at(self, i: usize) -> *const T {
        debug_assert!(i < self.ids.len());
        // SAFETY: `visit` has checked that every id's row lies inside; the caller that i is less.
        unsafe { self.plane.as_ptr().add((*self.ids.get_unchecked(i) as usize - self.first) * self.stride) }
    }
    #[inline(always)]
    fn slot(self, i: usize) -> usize {
        self.ids[i] as usize - self.first
    }
}

/// Rows with a scale for each, by slot.
#[derive(Clone, Copy)]
pub(super) struct Scaled<'a, R> {
    rows: R,
    scales: &'a [f16],
}

impl<R: Rows> Rows for Scaled<'_, R> {
    type T = R::T;
    const SCALED: bool = true;
    #[inline(always)]
    fn count(self) -> usize {
        self.rows.count()
    }
    #[inline(always)]
    fn len(self) -> usize {
        self.rows.len()
    }
    #[inline(always)]
    unsafe fn at(self, i: usize) -> *const R::T {
        // SAFETY: the caller's.
        unsafe { self.rows.at(i) }
    }
    #[inline(always)]
    fn slot(self, i: usize) -> usize {
        self.rows.slot(i)
    }
    #[inline(always)]
    fn scale(self, i: usize) -> f32 {
        self.scales[self.rows.slot(i)].to_f32()
    }
}

/// What is done with rows of any kind.
pub(super) trait Visit {
    fn visit<R: Rows>(self, rows: R);
}

/// The positions of a cache that one token reads, ascending.
#[derive(Clone, Copy)]
pub(super) enum Positions<'a> {
    Run { first: usize, count: usize },
    Picked(&'a [u32]),
}

impl<'a> Positions<'a> {
    /// Those of `first..end` that the token may choose from; `chosen` is its list as in
    /// [`Chosen`](super::Chosen).
    ///
    /// # Panics
    /// Where the list does not ascend or holds a position from `end` on.
    pub(super) fn new(first: usize, end: usize, chosen: Option<&'a [u32]>) -> Self {
        let Some(ids) = chosen else { return Positions::Run { first, count: end - first } };
        let ids = &ids[..ids.partition_point(|id| *id != u32::MAX)];
        assert!(ids.is_sorted_by(|a, b| a < b), "chosen positions ascend");
        assert!(
            ids.last().is_none_or(|id| (*id as usize) < end),
            "{:?} chosen of {end} positions",
            ids.last()
        );
        Positions::Picked(&ids[ids.partition_point(|id| (*id as usize) < first)..])
    }

    pub(super) fn count(self) -> usize {
        match self {
            Positions::Run { count, .. } => count,
            Positions::Picked(ids) => ids.len(),
        }
    }
}

/// The positions of `cache` that one token reads.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) cache: &'a KvCache,
    pub(super) positions: Positions<'a>,
}

impl Part<'_> {
    pub(super) fn keys(self, head: usize, visit: impl Visit) {
        let len = self.cache.shape.key_len;
        self.plane(&self.cache.keys, head, len, len, visit);
    }

    pub(super) fn values(self, head: usize, visit: impl Visit) {
        let shape = self.cache.shape;
        match &self.cache.values {
            Some(values) => self.plane(values, head, shape.value_len, shape.value_len, visit),
            None => self.plane(&self.cache.keys, head, shape.value_len, shape.key_len, visit),
        }
    }

    fn plane(self, plane: &KvPlane, head: usize, len: usize, stride: usize, visit: impl Visit) {
        let slots = self.cache.slots();
        let at = head * slots * stride;
        match plane {
            KvPlane::F32(plane) => self.visit(&plane[at..], None, len, stride, visit),
            KvPlane::F16(plane) => self.visit(&plane[at..], None, len, stride, visit),
            KvPlane::Int8(plane, scales) => {
                self.visit(&plane[at..], Some(&scales[head * slots..][..slots]), len, stride, visit);
            }
        }
    }

    fn visit<T: Stored>(
        self,
        plane: &[T],
        scales: Option<&[f16]>,
        len: usize,
        stride: usize,
        visit: impl Visit,
    ) {
        match self.positions {
            Positions::Run { first, count } => {
                self.cache.assert_there(&(first..first + count));
                let slot = if count == 0 { 0 } else { first - self.cache.first() };
                let rows = Run::new(&plane[slot * stride..], count, len, stride);
                match scales {
                    None => visit.visit(rows),
                    Some(scales) => visit.visit(Scaled { rows, scales: &scales[slot..] }),
                }
            }
            Positions::Picked(ids) => {
                if let (Some(low), Some(high)) = (ids.first(), ids.last()) {
                    // They ascend (`Positions::new`), so each one lies between these.
                    let there = *low as usize..*high as usize + 1;
                    self.cache.assert_there(&there);
                    assert!(len <= stride && (there.end - self.cache.first()) * stride <= plane.len());
                }
                let rows = Picked { plane, ids, first: self.cache.first(), len, stride };
                match scales {
                    None => visit.visit(rows),
                    Some(scales) => visit.visit(Scaled { rows, scales }),
                }
            }
        }
    }
}
