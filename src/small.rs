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

/// Appends what `make` gives, which is written where it stays. Of what [`SmallVec::push`] is given
/// the room may be elsewhere until it is there, and moving large items costs more than making them.
#[inline(always)]
pub fn push_with<A: Array>(list: &mut SmallVec<A>, make: impl FnOnce() -> A::Item) {
    push_finished(list, make, |_| {});
}

/// The same of an item that is finished where it stays.
#[inline(always)]
pub fn push_finished<A: Array>(
    list: &mut SmallVec<A>,
    make: impl FnOnce() -> A::Item,
    finish: impl FnOnce(&mut A::Item),
) {
    list.reserve(1);
    let length = list.len();
    // SAFETY: there is room for one more, and nobody looks at it until it is written; one whose
    // finishing panics is leaked.
    unsafe {
        let place = list.as_mut_ptr().add(length);
        place.write(make());
        finish(&mut *place);
        list.set_len(length + 1);
    }
}
