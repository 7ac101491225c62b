//! Which exchange of a run a flag speaks of.

/// The number of an exchange. Both sides count for themselves, from [`Epoch::FIRST`], one further for each exchange.
///
/// It is only ever compared for **equality**. "This or later" would be wrong: words are buffered once, so a later flag
/// means that the words expected are gone, and the words there are another exchange's. It would also need an order,
/// which a counter that wraps does not have. With equality an older epoch is never taken for a newer one: a reader
/// that waits for e sees, by the rules of the [module](super), e itself or something from before.
///
/// It wraps after 2^32 − 2 exchanges past the two values that are none: 0 (nothing yet) and `u32::MAX` (failed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(u32);

impl Epoch {
    /// The first exchange.
    pub const FIRST: Self = Self(1);
    /// The last one before the counter wraps.
    pub const LAST: Self = Self(u32::MAX - 1);

    /// The epoch with this number; `None` for the two numbers that are none.
    pub const fn new(number: u32) -> Option<Self> {
        match number {
            0 | u32::MAX => None,
            number => Some(Self(number)),
        }
    }

    /// The exchange after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        if self.0 == Self::LAST.0 { Self::FIRST } else { Self(self.0 + 1) }
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl std::fmt::Display for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Epoch;

    #[test]
    fn wraps_past_the_values_that_are_no_epoch() {
        assert_eq!(Epoch::new(0), None);
        assert_eq!(Epoch::new(u32::MAX), None);
        assert_eq!(Epoch::FIRST.next().get(), 2);
        assert_eq!(Epoch::new(u32::MAX - 2).map(Epoch::next), Some(Epoch::LAST));
        assert_eq!(Epoch::LAST.next(), Epoch::FIRST);
    }
}
