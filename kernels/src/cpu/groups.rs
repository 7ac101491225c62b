//! Quants in groups with one scale each, whatever a group is: 32 values of a row, or a row.

/// The parts of quantized rows, group after group.
pub(super) struct Groups<'a> {
    /// Each within ±127.
    pub(super) quants: &'a mut Vec<i8>,
    /// One for each group.
    pub(super) scales: &'a mut Vec<f32>,
    /// One for each group: -128 · Σ q modulo 2^32, what an unsigned w + 128 adds too much.
    pub(super) offsets: &'a mut Vec<i32>,
}

impl Groups<'_> {
    /// Holds `count` groups of `len` quants that were made elsewhere: `read` writes quants and scales, the offsets
    /// follow.
    ///
    /// # Errors
    /// Those of `read`; the groups are then of no use.
    pub(super) fn fill<E>(
        self,
        count: usize,
        len: usize,
        read: impl FnOnce(&mut [i8], &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.quants.resize(count * len, 0);
        self.scales.resize(count, 0.0);
        read(self.quants, self.scales)?;
        self.offsets.clear();
        let sum = |group: &[i8]| group.iter().fold(0i32, |n, &q| n.wrapping_add(i32::from(q)));
        self.offsets.extend(self.quants.chunks_exact(len.max(1)).map(|group| sum(group).wrapping_mul(-128)));
        Ok(())
    }
}
