//! A list that only grows, and that is read without a lock.

use std::sync::OnceLock;

/// Items that a chain takes at most. What does not fit is worked out again each time.
const LIMIT: usize = 32;

/// A short list: items are added behind the last, by any thread, and stay where they are.
pub struct Chain<T>(OnceLock<Box<Link<T>>>);

struct Link<T> {
    item: T,
    next: Chain<T>,
}

impl<T> Default for Chain<T> {
    fn default() -> Chain<T> {
        Chain(OnceLock::new())
    }
}

impl<T> Chain<T> {
    /// The items so far.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let links = std::iter::successors(self.0.get(), |link| link.next.0.get());
        links.map(|link| &link.item)
    }

    /// Adds an item, if there is room.
    pub fn push(&self, item: T) {
        let mut link = Box::new(Link { item, next: Chain::default() });
        let mut end = self;
        for _ in 0..LIMIT {
            match end.0.set(link) {
                Ok(()) => return,
                Err(back) => link = back,
            }
            let Some(next) = end.0.get() else { return };
            end = &next.next;
        }
    }
}
