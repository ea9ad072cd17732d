//! How many entries live. Every thread counts those that it drops by itself: a number that all
//! threads write takes as long as all else in dropping an entry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Numbers of entries, which start at 1.
static SEQUENCE: AtomicU64 = AtomicU64::new(1);
/// Entries dropped by threads that have ended.
static GONE: AtomicU64 = AtomicU64::new(0);
/// Entries dropped by each other thread.
static COUNTS: Mutex<Vec<Arc<AtomicU64>>> = Mutex::new(Vec::new());

/// The count of a thread, which alone writes it.
struct Count(Arc<AtomicU64>);

impl Count {
    fn new() -> Count {
        let count = Arc::default();
        COUNTS.lock().push(Arc::clone(&count));
        Count(count)
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        let mut counts = COUNTS.lock();
        counts.retain(|other| !Arc::ptr_eq(other, &self.0));
        GONE.fetch_add(self.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

thread_local! {
    static DROPPED: Count = Count::new();
}

/// The number of a new entry.
#[inline(always)]
pub fn number() -> u64 {
    SEQUENCE.fetch_add(1, Ordering::Relaxed)
}

/// Counts an entry that is dropped.
#[inline(always)]
pub fn dropped() {
    let counted = DROPPED.try_with(|Count(count)| {
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    });
    // A thread that is ending has no count any more.
    if counted.is_err() {
        GONE.fetch_add(1, Ordering::Relaxed);
    }
}

/// The number of live entries.
pub fn live_nodes() -> i64 {
    let counts = COUNTS.lock();
    let gone = GONE.load(Ordering::Relaxed);
    let dropped = counts.iter().fold(gone, |sum, n| sum.wrapping_add(n.load(Ordering::Relaxed)));
    (SEQUENCE.load(Ordering::Relaxed) - 1).wrapping_sub(dropped) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_threads_that_ended_are_counted() {
        let sum = || {
            let counts = COUNTS.lock();
            let each = counts.iter().map(|n| n.load(Ordering::Relaxed));
            each.fold(GONE.load(Ordering::Relaxed), u64::wrapping_add)
        };
        // Other tests drop entries meanwhile, so at least as many.
        let before = sum();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| dropped()));
            }
        });
        assert!(sum() >= before + 4000);
        // As they were not dropped in fact, their numbers are given up too.
        (0..4000).for_each(|_| _ = number());
    }
}
