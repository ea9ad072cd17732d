//! The thread pool: one job at a time, its chunks claimed one by one by the caller and the workers.
//!
//! Promises: which thread runs a chunk changes no result; a job started inside another, or while
//! another thread's job runs, runs on its caller alone, so nothing waits for anything but the
//! chunks being run; a chunk that unwinds, with an error or a panic, breaks the job off on every
//! thread, and the caller unwinds with the same; a forked child starts workers of its own.
//!
//! A job is broken off at calls of [`pause`]: every loop that may be long calls it now and then, on
//! whichever thread it runs.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::settings;

/// The threads to use, the caller included; 0 until somebody asks.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// The most threads a job can have: the workers inside are counted in [`INSIDE`].
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

/// Runs work with other looks, which are made of those so far. (A thread's own values are found by a
/// call, so there is one.)
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

/// Runs code of somebody else's in the middle of work, such as a handler of signals: what breaks off
/// the work does not break off this code.
pub fn apart<T>(code: impl FnOnce() -> T) -> T {
    looking(|_| Looks { watch: false, job: false }, code)
}

/// Ends the work by unwinding, where it may be broken off and the watch wants that, or where another
/// part of its job unwound. Loops that may be long call it now and then, inside chunks too.
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

    /// The same for a loop that makes the pause itself: whether it is time.
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

// The word that workers watch: jobs so far, whether one may be joined, and who is inside.

/// The workers inside the job.
const INSIDE: u64 = (1 << 16) - 1;
/// Set while workers may join.
const OPEN: u64 = 1 << 16;
/// Counts the jobs.
const JOB: u64 = 1 << 17;

/// How long a worker spins before it sleeps: briefly, but longer while jobs follow closely.
const SPIN_BRIEFLY: Duration = Duration::from_micros(5);
const SPIN_LONGER: Duration = Duration::from_micros(50);
/// A job after less than this, waking up included, follows closely.
const CLOSELY: Duration = Duration::from_micros(100);

/// A pool, never freed: workers and jobs refer to it for ever. There is one in each process.
struct Pool {
    watched: Line<AtomicU64>,
    /// The next chunk to claim.
    next: Line<AtomicUsize>,
    /// Whether somebody's job runs.
    busy: Line<AtomicBool>,
    /// The running job: written only by the thread that set `busy`, while the job is not open.
    job: UnsafeCell<Job>,
    /// How many workers may be inside at once.
    helpers: AtomicUsize,
    /// How many workers there are; changed only by the thread that set `busy`.
    workers: AtomicUsize,
    /// How many workers sleep; changed only under `bed`.
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    alarm: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Whether a chunk of the running job unwound.
    broken: AtomicBool,
}

// SAFETY: `job` is written and read as it says there; everything else synchronises itself.
unsafe impl Sync for Pool {}

/// A value on cache lines of its own.
#[repr(align(128))]
struct Line<T>(T);

#[derive(Clone, Copy)]
struct Job {
    f: *const (dyn Fn(usize) + Sync + 'static),
    chunks: usize,
}

/// The pool of this process; null until the first job, and again in a forked child.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());

impl Pool {
    /// The pool of this process.
    fn current() -> &'static Pool {
        let pool = POOL.load(Acquire);
        let pool = if pool.is_null() { Pool::create() } else { pool };
        // SAFETY: pools are leaked.
        unsafe { &*pool }
    }

    #[cold]
    fn create() -> *mut Pool {
        watch_forks();
        let nothing: &'static (dyn Fn(usize) + Sync) = &|_| {};
        let pool = Box::into_raw(Box::new(Pool {
            watched: Line(AtomicU64::new(0)),
            next: Line(AtomicUsize::new(0)),
            busy: Line(AtomicBool::new(false)),
            job: UnsafeCell::new(Job { f: nothing, chunks: 0 }),
            helpers: AtomicUsize::new(0),
            workers: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            alarm: Condvar::new(),
            panic: Mutex::new(None),
            broken: AtomicBool::new(false),
        }));
        match POOL.compare_exchange(std::ptr::null_mut(), pool, AcqRel, Acquire) {
            Ok(_) => pool,
            Err(winner) => {
                // SAFETY: nobody else knows this pool.
                drop(unsafe { Box::from_raw(pool) });
                winner
            }
        }
    }

    /// Runs a job with up to `helpers` workers; `false`, and nothing done, when another job runs.
    fn run(&'static self, chunks: usize, helpers: usize, f: &(dyn Fn(usize) + Sync)) -> bool {
        if self.busy.0.load(Relaxed) || self.busy.0.swap(true, Acquire) {
            return false;
        }
        self.hire(helpers);
        // SAFETY: only the lifetime changes. No worker calls `f` after `close`, before which we do
        // not return.
        let f = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(f)
        };
        let job = Job { f, chunks };
        // SAFETY: `busy` is ours and the last job is closed: nobody reads.
        unsafe { *self.job.get() = job };
        self.next.0.store(0, Relaxed);
        self.broken.store(false, Relaxed);
        self.helpers.store(helpers, Relaxed);
        let closed = self.watched.0.load(Relaxed);
        // SeqCst: either a worker going to sleep sees the job, or we see the sleeper.
        self.watched.0.store((closed + JOB) | OPEN, SeqCst);
        self.wake(helpers);
        self.work(job);
        self.close();
        let panic = lock(&self.panic).take();
        self.busy.0.store(false, Release);
        if let Some(payload) = panic {
            crate::error::throw_on(payload);
        }
        true
    }

    /// Starts workers until there are `wanted`, or as many as the system allows.
    fn hire(&'static self, wanted: usize) {
        for id in self.workers.load(Relaxed)..wanted {
            let worker = thread::Builder::new().name(format!("wengert-{id}"));
            // Fewer workers are slower, not wrong.
            if worker.spawn(|| self.serve()).is_err() {
                return;
            }
            self.workers.store(id + 1, Relaxed);
        }
    }

    fn wake(&self, wanted: usize) {
        let sleepers = self.sleepers.load(SeqCst);
        if sleepers == 0 {
            return;
        }
        // Whoever counted itself a sleeper under the lock waits by now.
        drop(lock(&self.bed));
        if wanted >= sleepers {
            self.alarm.notify_all();
        } else {
            (0..wanted).for_each(|_| self.alarm.notify_one());
        }
    }

    /// Claims chunks until none is left. What a chunk unwinds with is kept for the caller and ends the
    /// job.
    fn work(&self, job: Job) {
        let chunks = || {
            // SAFETY: `f` lives until the job is closed, and we are its caller or inside it.
            let f = unsafe { &*job.f };
            loop {
                let i = self.next.0.fetch_add(1, Relaxed);
                if i >= job.chunks {
                    return;
                }
                pause();
                f(i);
            }
        };
        let in_job = |looks| Looks { job: true, ..looks };
        let result = catch_unwind(AssertUnwindSafe(|| looking(in_job, chunks)));
        if let Err(payload) = result {
            self.next.0.fetch_max(job.chunks, Relaxed);
            // The first is the reason; others only end because of it.
            lock(&self.panic).get_or_insert(payload);
            self.broken.store(true, Relaxed);
        }
    }

    /// Lets nobody join any more, and waits until nobody is inside.
    fn close(&self) {
        let mut state = self.watched.0.fetch_and(!OPEN, AcqRel);
        let mut turns = 0_u32;
        while state & INSIDE != 0 {
            turns += 1;
            // A worker may have lost its core to somebody: to us, perhaps.
            if turns > 1000 {
                thread::yield_now()
            } else {
                spin_loop()
            }
            state = self.watched.0.load(Acquire);
        }
    }

    /// The life of a worker.
    fn serve(&self) {
        let mut seen = 0;
        let mut spin = SPIN_BRIEFLY;
        loop {
            let idle = Instant::now();
            seen = self.await_job(seen, spin) / JOB;
            spin = if idle.elapsed() < CLOSELY { SPIN_LONGER } else { SPIN_BRIEFLY };
            if self.join(seen) {
                // SAFETY: we are inside an open job, which was written before it was opened.
                self.work(unsafe { *self.job.get() });
                self.watched.0.fetch_sub(1, Release);
            }
        }
    }

    /// Goes inside job number `number`, unless it is closed or has enough helpers.
    fn join(&self, number: u64) -> bool {
        let enter = |state: u64| {
            let room = ((state & INSIDE) as usize) < self.helpers.load(Relaxed);
            (state & OPEN != 0 && state / JOB == number && room).then_some(state + 1)
        };
        self.watched.0.fetch_update(Acquire, Relaxed, enter).is_ok()
    }

    /// Waits for a job other than number `seen`: spinning for a while, then asleep. Who wakes too
    /// late for a job comes back all the same, and spins for the next.
    fn await_job(&self, seen: u64, spin: Duration) -> u64 {
        let fresh = |state: u64| state & OPEN != 0 && state / JOB != seen;
        let start = Instant::now();
        while start.elapsed() < spin {
            for _ in 0..32 {
                let state = self.watched.0.load(Relaxed);
                if fresh(state) {
                    return state;
                }
                spin_loop();
            }
        }
        let guard = lock(&self.bed);
        self.sleepers.fetch_add(1, SeqCst);
        if !fresh(self.watched.0.load(SeqCst)) {
            drop(self.alarm.wait(guard));
        }
        self.sleepers.fetch_sub(1, SeqCst);
        self.watched.0.load(Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A forked child has no workers, and its parent's pool may be in any state: the child makes its
/// own.
fn watch_forks() {
    #[cfg(unix)]
    {
        extern "C" fn forget() {
            POOL.store(std::ptr::null_mut(), Relaxed);
        }
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: the handler stores one atomic.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(forget));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of threads is one for all tests: those that set it take turns.
    fn with_threads(threads: usize) -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = lock(&TURN);
        set_num_threads(threads);
        turn
    }

    fn hits(chunks: usize) -> Vec<usize> {
        let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
        parallel_for(chunks, &|i| {
            counts[i].fetch_add(1, Relaxed);
        });
        counts.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_chunk_runs_once() {
        for threads in [1, 2, 5] {
            let _turn = with_threads(threads);
            for chunks in [0, 1, 2, 3, 100] {
                assert_eq!(hits(chunks), vec![1; chunks]);
            }
            for _ in 0..200 {
                assert_eq!(hits(7), [1; 7]);
            }
        }
    }

    #[test]
    fn ranges_cover_the_count_and_do_not_depend_on_threads() {
        for threads in [1, 3] {
            let _turn = with_threads(threads);
            let ranges = Mutex::new(Vec::new());
            for_each_chunk(10, 4, |range| lock(&ranges).push((range.start, range.end)));
            let mut ranges = ranges.into_inner().unwrap();
            ranges.sort();
            assert_eq!(ranges, [(0, 4), (4, 8), (8, 10)]);
        }
        for_each_chunk(0, 4, |_| panic!("there is nothing to do"));
    }

    #[test]
    fn workers_help() {
        let _turn = with_threads(3);
        let inside = AtomicUsize::new(0);
        // Each chunk waits for another thread: this ends only if two threads work at once. Another
        // test's job may hold the pool, in which case we try again.
        let met = (0..1000).any(|_| {
            let met = AtomicBool::new(false);
            parallel_for(2, &|_| {
                inside.fetch_add(1, SeqCst);
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(20) {
                    if inside.load(SeqCst) == 2 {
                        met.store(true, SeqCst);
                    }
                    thread::yield_now();
                }
                inside.fetch_sub(1, SeqCst);
            });
            met.into_inner()
        });
        assert!(met);
    }

    #[test]
    fn nested_and_concurrent_jobs_finish() {
        let _turn = with_threads(3);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let total = AtomicUsize::new(0);
                        parallel_for(4, &|i| {
                            parallel_for(3, &|j| {
                                total.fetch_add(i * 3 + j, Relaxed);
                            });
                        });
                        assert_eq!(total.into_inner(), 66);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let _turn = with_threads(3);
        for _ in 0..20 {
            let caught = catch_unwind(|| {
                parallel_for(50, &|i| {
                    if i == 17 {
                        std::panic::resume_unwind(Box::new("chunk 17"));
                    }
                });
            });
            assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"chunk 17"));
            assert_eq!(hits(20), [1; 20]);
        }
    }

    #[test]
    fn workers_leave_a_job_that_was_broken_off() {
        let _turn = with_threads(2);
        let caller = thread::current().id();
        // Either side breaks off; the other side's chunk, a job inside it, ends only at a pause.
        for breaks in [true, false] {
            let met = AtomicBool::new(false);
            let chunk = |_: usize| {
                let is_caller = thread::current().id() == caller;
                if !is_caller {
                    met.store(true, SeqCst);
                }
                let start = Instant::now();
                while !met.load(SeqCst) && start.elapsed() < Duration::from_millis(20) {
                    thread::yield_now();
                }
                if is_caller == breaks || !met.load(SeqCst) {
                    resume_unwind(Box::new("the reason"));
                }
                // What is caught inside does not hide that the job is broken off.
                let endless = || in_stretches(0..usize::MAX, 1, |_| thread::yield_now());
                let inner = catch_unwind(|| parallel_for(2, &|_| endless()));
                assert_eq!(inner.unwrap_err().downcast_ref(), Some(&"the job was broken off"));
            };
            // Another test's job may hold the pool, in which case no worker comes and we try again.
            let came = (0..1000).any(|_| {
                let caught = catch_unwind(AssertUnwindSafe(|| parallel_for(2, &chunk)));
                assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"the reason"));
                met.load(SeqCst)
            });
            assert!(came, "no worker came");
        }
    }

    #[test]
    fn code_of_others_is_not_broken_off_with_the_job() {
        let _turn = with_threads(1);
        looking(
            |_| Looks { watch: true, job: true },
            || {
                let seen = apart(|| LOOKS.get());
                assert!(!seen.watch && !seen.job);
                assert!(LOOKS.get().watch && LOOKS.get().job);
            },
        );
    }

    #[cfg(all(unix, not(miri)))]
    #[test]
    fn a_forked_child_has_workers_of_its_own() {
        let _turn = with_threads(3);
        assert_eq!(hits(10), [1; 10]);
        // SAFETY: the child runs our code only, and leaves without running anybody's handlers.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                set_num_threads(3);
                let fine = hits(100) == [1; 100] && Pool::current().workers.load(Relaxed) == 2;
                libc::_exit(if fine { 0 } else { 1 });
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(status, 0);
        }
    }
}
