//! One output, written by several threads.

use std::marker::PhantomData;

/// A mutable slice that threads write in disjoint parts.
pub(super) struct Disjoint<'a, T> {
    start: *mut T,
    pub(super) len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Disjoint<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Disjoint<'_, T> {}

// SAFETY: it hands out `&mut [T]` to other threads, which T: Send allows; that the parts are disjoint is the
// promise of every call to `slice` and `at`.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// All but the first `offset`.
    pub(super) fn skip(&self, offset: usize) -> Self {
        assert!(offset <= self.len);
        // SAFETY: it lies inside the slice, or at its end.
        Disjoint { start: unsafe { self.start.add(offset) }, len: self.len - offset, borrow: PhantomData }
    }

    /// The part of `len` from `offset`.
    ///
    /// # Safety
    /// It lies inside the slice, and no two live parts overlap.
    pub(super) unsafe fn slice(&self, offset: usize, len: usize) -> &'a mut [T] {
        debug_assert!(offset + len <= self.len);
        // SAFETY: the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), len) }
    }

    /// The address of the element at `offset`.
    ///
    /// # Safety
    /// It lies inside the slice; what is written through it overlaps no other thread's part.
    #[inline(always)]
    pub(super) unsafe fn at(&self, offset: usize) -> *mut T {
        debug_assert!(offset < self.len);
        // SAFETY: the caller's.
        unsafe { self.start.add(offset) }
    }
}
