//! How many entries live. Every thread counts those that it drops by itself: a number that all
//! threads write takes as long as all else in dropping an entry.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Numbers of entries, which start at 1.
static SEQUENCE: AtomicU64 = AtomicU64::new(1);

/// The first count. There is no lock: a child of `fork` would wait for a thread that is not there.
static COUNTS: AtomicPtr<Count> = AtomicPtr::new(ptr::null_mut());

/// Entries dropped by threads that are ending, and have no count any more.
static OTHERS: AtomicU64 = AtomicU64::new(0);

/// Entries dropped by a thread, which alone writes the number. Counts are never freed: the next
/// thread goes on with that of one that has ended.
struct Count {
    dropped: AtomicU64,
    is_taken: AtomicBool,
    next: AtomicPtr<Count>,
}

/// All counts.
fn counts() -> impl Iterator<Item = &'static Count> {
    // SAFETY: a count in the list is complete, and is never freed.
    let at = |count: &AtomicPtr<Count>| unsafe { count.load(Ordering::Acquire).as_ref() };
    std::iter::successors(at(&COUNTS), move |count| at(&count.next))
}

/// The count of a thread while it runs.
struct Own(&'static Count);

impl Own {
    fn take() -> Own {
        let takes = |count: &&Count| !count.is_taken.swap(true, Ordering::Acquire);
        if let Some(count) = counts().find(takes) {
            return Own(count);
        }
        let count: &'static Count = Box::leak(Box::new(Count {
            dropped: AtomicU64::new(0),
            is_taken: AtomicBool::new(true),
            next: AtomicPtr::default(),
        }));
        let _ = COUNTS.fetch_update(Ordering::Release, Ordering::Relaxed, |first| {
            count.next.store(first, Ordering::Relaxed);
            Some(ptr::from_ref(count).cast_mut())
        });
        Own(count)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}

thread_local! {
    static OWN: Own = Own::take();
}

/// The number of a new entry.
#[inline(always)]
pub fn number() -> u64 {
    SEQUENCE.fetch_add(1, Ordering::Relaxed)
}

/// Counts an entry that is dropped.
#[inline(always)]
pub fn dropped() {
    let counted = OWN.try_with(|Own(count)| {
        let more = count.dropped.load(Ordering::Relaxed).wrapping_add(1);
        count.dropped.store(more, Ordering::Relaxed);
    });
    if counted.is_err() {
        OTHERS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Entries dropped so far.
fn all_dropped() -> u64 {
    let each = counts().map(|count| count.dropped.load(Ordering::Relaxed));
    each.fold(OTHERS.load(Ordering::Relaxed), u64::wrapping_add)
}

/// The number of live entries.
pub fn live_nodes() -> i64 {
    // Entries made (their numbers start at 1) less entries dropped.
    let dropped = all_dropped();
    (SEQUENCE.load(Ordering::Relaxed) - 1).wrapping_sub(dropped) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_threads_that_ended_are_counted() {
        // Other tests drop entries meanwhile, so at least as many.
        let before = all_dropped();
        for _ in 0..2 {
            let threads: Vec<_> =
                (0..4).map(|_| std::thread::spawn(|| (0..1000).for_each(|_| dropped()))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
        assert!(all_dropped() >= before + 8000);
        // As they were not dropped in fact, their numbers are given up too.
        (0..8000).for_each(|_| _ = number());
    }

    #[test]
    fn a_count_is_taken_again() {
        let count = || std::thread::spawn(|| OWN.with(|own| ptr::from_ref(own.0) as usize));
        // One thread after the other: each has ended, its count given back, when the next begins.
        let found: Vec<usize> = (0..50).map(|_| count().join().unwrap()).collect();
        let mut kinds = found.clone();
        kinds.sort_unstable();
        kinds.dedup();
        assert!(kinds.len() < found.len(), "a count for each thread that ever was");
    }
}
