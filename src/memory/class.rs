//! Size classes of blocks: eight to a doubling, in steps of at least 64 bytes.

/// The largest request that has a class.
pub(super) const LARGEST: usize = 1 << 47;

/// The largest class that threads cache, in bytes.
pub(super) const SMALL: usize = 64 << 10;

/// How many classes there are.
pub(super) const COUNT: usize = Class::of(LARGEST).index() + 1;

/// How many classes threads cache.
pub(super) const SMALL_COUNT: usize = Class::of(SMALL).index() + 1;

/// Classes in a doubling, as a power of two.
const STEPS_LOG2: u32 = 3;

/// The size of a block, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(u16);

impl Class {
    /// The smallest class that holds `bytes ≤ LARGEST`.
    #[inline]
    pub(super) const fn of(bytes: usize) -> Class {
        // `last` is the size in units of 64 bytes, less one. The values 0 … 15 are classes of their
        // own; of larger ones the four highest bits make the class.
        let last = bytes.saturating_sub(1) >> 6;
        let shift = (last >> STEPS_LOG2 | 1).ilog2();
        Class(((shift as usize) << STEPS_LOG2) as u16 + (last >> shift) as u16)
    }

    /// The bytes of data in a block of this class.
    #[inline]
    pub(super) const fn size(self) -> usize {
        let shift = (self.0 >> STEPS_LOG2).saturating_sub(1);
        (self.0 as usize - ((shift as usize) << STEPS_LOG2) + 1) << shift << 6
    }

    /// The position in a table of classes.
    #[inline]
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether threads cache blocks of this class.
    #[inline]
    pub(super) const fn is_small(self) -> bool {
        self.0 < SMALL_COUNT as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_by_an_eighth_at_most_and_hold_what_was_asked() {
        for index in 0..COUNT as u16 {
            let class = Class(index);
            assert_eq!(Class::of(class.size()), class);
            assert_eq!(class.size() % 64, 0);
            if index + 1 < COUNT as u16 {
                assert_eq!(Class::of(class.size() + 1), Class(index + 1));
            }
            if index > 0 {
                let below = Class(index - 1).size();
                assert!(below < class.size() && class.size() - below <= 64.max(below / 8));
            }
        }
        assert_eq!(
            (Class::of(0).size(), Class::of(64).size(), Class::of(65).size()),
            (64, 64, 128)
        );
        assert_eq!((Class::of(SMALL).size(), Class::of(LARGEST).size()), (SMALL, LARGEST));
    }
}
