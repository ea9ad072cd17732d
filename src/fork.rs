//! Locks over `fork`.
//!
//! A child of `fork` has only the forking thread. What several threads change under a lock is
//! locked over the fork, so that no other thread leaves it half-changed, or locked for ever, in the
//! child.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
#[cfg(unix)]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Where the guard of a lock lies while the process forks.
pub struct Held<G>(UnsafeCell<Option<G>>);

// SAFETY: only the thread that holds the lock reads and writes the guard.
unsafe impl<G> Sync for Held<G> {}

impl<G> Held<G> {
    /// No guard.
    #[allow(clippy::new_without_default, reason = "a static needs a constant")]
    pub const fn new() -> Held<G> {
        Held(UnsafeCell::new(None))
    }
}

/// A value that is made when it is first asked for. Threads that ask at the same time each make one,
/// and the first is kept. So nobody waits for another thread, which a child of `fork` would do for
/// ever: the thread is not there.
pub struct Lazy<T> {
    made: AtomicPtr<T>,
    make: fn() -> T,
    value: PhantomData<T>,
}

impl<T> Lazy<T> {
    /// A value that is not made yet. It is never dropped, so this is for statics.
    pub const fn new(make: fn() -> T) -> Lazy<T> {
        Lazy { made: AtomicPtr::new(ptr::null_mut()), make, value: PhantomData }
    }

    #[cold]
    fn start(&self) -> *mut T {
        let new = Box::into_raw(Box::new((self.make)()));
        match self.made.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire) {
            Ok(_) => new,
            Err(first) => {
                // SAFETY: the box was made above, and nobody else saw it.
                drop(unsafe { Box::from_raw(new) });
                first
            }
        }
    }
}

impl<T> Deref for Lazy<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let made = self.made.load(Acquire);
        let made = if made.is_null() { self.start() } else { made };
        // SAFETY: it came from a box that nobody frees, and it is only read from now on.
        unsafe { &*made }
    }
}

/// A lock that is taken before a fork and let go after it, in the parent and in the child.
pub trait OverFork {
    /// What holds the lock
    type Guard: 'static;

    /// Takes the lock.
    fn lock() -> Self::Guard;

    /// Where its guard lies over a fork.
    fn held() -> &'static Held<Self::Guard>;
}

/// Holds a lock over every fork from now on; to be called once for each lock.
#[cfg(unix)]
pub fn install<L: OverFork>() {
    extern "C" fn lock<L: OverFork>() {
        let guard = L::lock();
        // SAFETY: we hold the lock.
        unsafe { *L::held().0.get() = Some(guard) };
    }

    extern "C" fn unlock<L: OverFork>() {
        // SAFETY: the forking thread holds the lock, in the parent and in the child.
        let guard = unsafe { (*L::held().0.get()).take() };
        drop(guard);
    }

    // SAFETY: the handlers only lock and unlock. Without memory to register them nothing is lost
    // yet.
    unsafe { libc::pthread_atfork(Some(lock::<L>), Some(unlock::<L>), Some(unlock::<L>)) };
}

/// How often this process and those it was forked from have forked since the first call, as seen
/// from here: what was made at another number belongs to a parent.
#[cfg(unix)]
pub fn generation() -> usize {
    static FORKS: AtomicUsize = AtomicUsize::new(0);
    static IS_COUNTING: AtomicBool = AtomicBool::new(false);
    extern "C" fn count() {
        FORKS.fetch_add(1, Relaxed);
    }

    if !IS_COUNTING.load(Relaxed) && !IS_COUNTING.swap(true, Relaxed) {
        // SAFETY: the handler only counts.
        unsafe { libc::pthread_atfork(None, None, Some(count)) };
    }
    FORKS.load(Relaxed)
}

/// Nothing forks here.
#[cfg(not(unix))]
pub fn generation() -> usize {
    0
}

/// Nothing forks here.
#[cfg(not(unix))]
pub fn install<L: OverFork>() {}
