//! Checked arithmetic on sizes and offsets: the one place where lengths from a file are multiplied or rounded.

/// `a · b`, or `None` where it does not fit 64 bits.
pub fn mul(a: u64, b: u64) -> Option<u64> {
    a.checked_mul(b)
}

/// `a + b`, or `None` where it does not fit 64 bits.
pub fn add(a: u64, b: u64) -> Option<u64> {
    a.checked_add(b)
}

/// The product of all `dims`, or `None` where it does not fit 64 bits. No dims: 1. A zero anywhere makes 0,
/// even beside dims whose product would overflow, since such a tensor holds no element.
pub fn product(dims: &[u64]) -> Option<u64> {
    if dims.contains(&0) {
        return Some(0);
    }
    dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d))
}

/// `n` rounded up to a multiple of `align` (> 0), or `None` where it does not fit 64 bits.
pub fn align_up(n: u64, align: u64) -> Option<u64> {
    n.checked_next_multiple_of(align)
}

/// Bytes in MiB with one digit, rounded up, so that adding what a text says is enough.
pub fn mib(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10).div_ceil(1 << 20);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// A length as `usize`, or `None` where this machine cannot address it.
pub fn to_usize(n: u64) -> Option<usize> {
    usize::try_from(n).ok()
}
