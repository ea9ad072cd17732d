//! The thread pool: one job at a time, its chunks claimed one by one by the caller and the workers,
//! by each those of its own share first.
//!
//! Promises: which thread runs a chunk changes no result; a job started inside another, or while
//! another thread's job runs, runs on its caller alone, so nothing waits for anything but the
//! chunks being run; a chunk that unwinds, with an error or a panic, breaks the job off on every
//! thread, and the caller unwinds with the same; a forked child starts workers of its own.
//!
//! A job is broken off at calls of [`pause`]: every loop that may be long calls it now and then, on
//! whichever thread it runs.
//!
//! Here is what work is written with: how many threads, pauses, loops over chunks. `pool` has the
//! workers.

mod pool;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use crate::settings;
use pool::Pool;

/// The threads to use, the caller included; 0 until somebody asks.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// The most threads a job can have: `pool` counts the workers inside in 16 bits.
const MOST: usize = 1 << 12;

/// How many threads work on a job, the caller included: what [`set_num_threads`] or
/// `WENGERT_NUM_THREADS` says, else what the system grants this process.
#[inline]
pub fn num_threads() -> usize {
    match THREADS.load(Relaxed) {
        0 => default_threads(),
        threads => threads,
    }
}

#[cold]
fn default_threads() -> usize {
    let wish = settings::NUM_THREADS.value().and_then(|text| text.parse().ok());
    let threads = wish.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    // Somebody may have set the number meanwhile: that stays.
    let _ = THREADS.compare_exchange(0, threads.clamp(1, MOST), Relaxed, Relaxed);
    THREADS.load(Relaxed)
}

/// Sets how many threads work on a job, the caller included; at least one.
pub fn set_num_threads(threads: usize) {
    THREADS.store(threads.clamp(1, MOST), Relaxed);
}

/// What is asked between chunks of work that may be broken off; it unwinds where that is wanted.
static WATCH: OnceLock<fn()> = OnceLock::new();

/// What a pause looks for on a thread.
#[derive(Clone, Copy)]
struct Looks {
    /// Whether the work may be broken off by the watch
    watch: bool,
    /// Whether the work is part of a job, which another thread may break off
    job: bool,
}

thread_local! {
    static LOOKS: Cell<Looks> = const { Cell::new(Looks { watch: false, job: false }) };
}

/// Runs work with other looks, which are made of those so far. (A thread's own values are found by
/// a call, so there is one.)
#[inline(always)]
fn looking<T>(change: impl FnOnce(Looks) -> Looks, work: impl FnOnce() -> T) -> T {
    struct Before<'a>(&'a Cell<Looks>, Looks);
    impl Drop for Before<'_> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    LOOKS.with(|looks| {
        let before = Before(looks, looks.get());
        looks.set(change(before.1));
        work()
    })
}

/// Sets what is asked, by the thread that asked for the work, between two chunks of it; once.
pub fn set_watch(watch: fn()) {
    let _ = WATCH.set(watch);
}

/// Runs work that may (or may not) be broken off by the watch: what it writes is nobody's yet.
#[inline]
pub fn breakable<T>(may: bool, work: impl FnOnce() -> T) -> T {
    looking(|looks| Looks { watch: may, ..looks }, work)
}

/// Runs code of somebody else's in the middle of work, such as a handler of signals: what breaks
/// off the work does not break off this code.
pub fn apart<T>(code: impl FnOnce() -> T) -> T {
    looking(|_| Looks { watch: false, job: false }, code)
}

/// Ends the work by unwinding, where it may be broken off and the watch wants that, or where
/// another part of its job unwound. Loops that may be long call it now and then, inside chunks too.
#[inline]
pub fn pause() {
    let looks = LOOKS.get();
    if looks.watch
        && let Some(watch) = WATCH.get()
    {
        watch();
    }
    if looks.job && Pool::current().broken.load(Relaxed) {
        broken_off();
    }
}

#[cold]
fn broken_off() -> ! {
    resume_unwind(Box::new("the job was broken off"))
}

/// Counts the work of a loop, and calls [`pause`] now and then.
#[derive(Default)]
pub struct Pace(usize);

impl Pace {
    /// Units of work, of about a nanosecond each, between two pauses.
    const UNITS: usize = 1 << 16;

    /// So much has been done.
    #[inline(always)]
    pub fn work(&mut self, units: usize) {
        if self.is_up(units) {
            pause();
        }
    }

    /// So many multiplications of a product kernel have been done, of which even narrow registers do
    /// about sixteen in a nanosecond.
    #[inline(always)]
    pub fn multiplied(&mut self, count: usize) {
        self.work(count / 16);
    }

    /// The same as [`Pace::work`] for a loop that makes the pause itself: whether it is time.
    #[inline(always)]
    pub fn is_up(&mut self, units: usize) -> bool {
        self.0 = self.0.saturating_add(units);
        let is_up = self.0 >= Pace::UNITS;
        if is_up {
            self.0 = 0;
        }
        is_up
    }
}

/// Runs `f` on the stretches of a range, with a [`pause`] before each.
pub fn in_stretches(range: Range<usize>, stretch: usize, mut f: impl FnMut(Range<usize>)) {
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min(start.saturating_add(stretch.max(1)));
        pause();
        f(start..end);
        start = end;
    }
}

/// Runs `f(0)`, …, `f(chunks - 1)`, each once, in any order, on several threads.
///
/// A panic in `f` is raised here again once no thread runs `f` any more; chunks not yet begun are
/// then left out. One chunk alone is no longer than what may be done between two pauses.
pub fn parallel_for(chunks: usize, f: &(dyn Fn(usize) + Sync)) {
    if chunks == 1 {
        return f(0);
    }
    let helpers = num_threads().min(chunks).saturating_sub(1);
    if helpers == 0 || !Pool::current().run(chunks, helpers, f) {
        for i in 0..chunks {
            pause();
            f(i);
        }
    }
}

/// Runs `f` on the ranges `0..chunk`, `chunk..2 * chunk`, … that cover `0..count`, in any order, on
/// several threads. The ranges do not depend on the number of threads.
pub fn for_each_chunk(count: usize, chunk: usize, f: impl Fn(Range<usize>) + Sync) {
    let chunk = chunk.max(1);
    parallel_for(count.div_ceil(chunk), &|i| f(i * chunk..count.min((i + 1) * chunk)));
}
