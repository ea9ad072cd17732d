//! Short lists without a heap.

use smallvec::{Array, SmallVec};

/// Collects few items. `collect` of a `SmallVec` is a call of its own each time; on the path of
/// small eager ops that is a large part of the whole.
#[inline(always)]
pub fn small<A: Array>(items: impl Iterator<Item = A::Item>) -> SmallVec<A> {
    let mut list = SmallVec::new();
    for item in items {
        list.push(item);
    }
    list
}
