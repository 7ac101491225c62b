//! Working memory of a thread, kept between steps.

use std::cell::RefCell;

/// One cache line: buffers start at a multiple of 64 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; 16]);

/// The lines as bytes.
pub(super) fn bytes(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: f32 has no padding, and any bytes are f32.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

/// The lines as f32.
pub(super) fn floats(lines: &mut [Line]) -> &mut [f32] {
    // SAFETY: a line is an array of f32 without padding.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 16) }
}

thread_local! {
    static LINES: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Call `f` with `lines` × 64 bytes of this thread's memory, of any content.
///
/// # Panics
/// Where `f` calls it again.
pub(super) fn with_lines<R>(lines: usize, f: impl FnOnce(&mut [Line]) -> R) -> R {
    LINES.with_borrow_mut(|buffer| {
        if buffer.len() < lines {
            buffer.resize(lines, Line([0.0; 16]));
        }
        f(&mut buffer[..lines])
    })
}
