//! The workers, and the job that they and its caller run.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Looks, looking, pause};

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
pub(super) struct Pool {
    watched: Line<AtomicU64>,
    /// For each thread that may take part, the next chunk to claim of its share. Written only by the
    /// thread that set `busy`, while the job is not open.
    shares: UnsafeCell<Vec<Line<AtomicUsize>>>,
    /// Whether somebody's job runs.
    busy: Line<AtomicBool>,
    /// The running job: written only by the thread that set `busy`, while the job is not open.
    job: UnsafeCell<Job>,
    /// How many workers may be inside at once.
    helpers: AtomicUsize,
    /// How many workers there are; changed only by the thread that set `busy`.
    pub(super) workers: AtomicUsize,
    /// How many workers sleep; changed only under `bed`.
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    alarm: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Whether a chunk of the running job unwound.
    pub(super) broken: AtomicBool,
}

// SAFETY: `job` and `shares` are written as they say there, and read by those inside a job;
// everything else synchronises itself.
unsafe impl Sync for Pool {}

/// A value on cache lines of its own.
#[repr(align(128))]
struct Line<T>(T);

#[derive(Clone, Copy)]
struct Job {
    f: *const (dyn Fn(usize) + Sync + 'static),
    cut: Cut,
}

/// How a job is cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub chunks: usize,
    /// How many threads may take part, at least one
    pub threads: usize,
}

impl Cut {
    /// The chunks of a share. Neighbours are one thread's, and every job with as many threads divides
    /// its chunks alike: what one job leaves in the caches of a core, the next one finds there.
    pub fn share(&self, share: usize) -> Range<usize> {
        let bound = |share: usize| {
            // Without a product that could overflow
            let (each, rest) = (self.chunks / self.threads, self.chunks % self.threads);
            each * share + rest * share / self.threads
        };
        bound(share)..bound(share + 1)
    }
}

/// The pool of this process; null until the first job, and again in a forked child.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());

impl Pool {
    /// The pool of this process.
    pub(super) fn current() -> &'static Pool {
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
            shares: UnsafeCell::new(Vec::new()),
            busy: Line(AtomicBool::new(false)),
            job: UnsafeCell::new(Job { f: nothing, cut: Cut { chunks: 0, threads: 1 } }),
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
    pub(super) fn run(
        &'static self,
        chunks: usize,
        helpers: usize,
        f: &(dyn Fn(usize) + Sync),
    ) -> bool {
        if self.busy.0.load(Relaxed) || self.busy.0.swap(true, Acquire) {
            return false;
        }
        self.hire(helpers);
        // SAFETY: only the lifetime changes. No worker calls `f` after `close`, before which we do
        // not return.
        let f = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(f)
        };
        let cut = Cut { chunks, threads: helpers + 1 };
        let job = Job { f, cut };
        // SAFETY: `busy` is ours and the last job is closed: nobody reads.
        let shares = unsafe {
            *self.job.get() = job;
            &mut *self.shares.get()
        };
        if shares.len() < cut.threads {
            shares.resize_with(cut.threads, || Line(AtomicUsize::new(0)));
        }
        for (i, share) in shares[..cut.threads].iter_mut().enumerate() {
            *share.0.get_mut() = cut.share(i).start;
        }
        self.broken.store(false, Relaxed);
        self.helpers.store(helpers, Relaxed);
        let closed = self.watched.0.load(Relaxed);
        // SeqCst: either a worker going to sleep sees the job, or we see the sleeper.
        self.watched.0.store((closed + JOB) | OPEN, SeqCst);
        self.wake(helpers);
        self.work(job, 0);
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
            if worker.spawn(move || self.serve(id + 1)).is_err() {
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

    /// Claims chunks until none is left, first those of its own share. What a chunk unwinds with is
    /// kept for the caller and ends the job.
    fn work(&self, job: Job, own: usize) {
        // SAFETY: `f` lives until the job is closed, and we are its caller or inside it; nobody
        // changes the shares meanwhile.
        let (f, shares) = unsafe { (&*job.f, &*self.shares.get()) };
        let chunks = || {
            for share in (own..job.cut.threads).chain(0..own.min(job.cut.threads)) {
                let end = job.cut.share(share).end;
                loop {
                    let i = shares[share].0.fetch_add(1, Relaxed);
                    if i >= end {
                        break;
                    }
                    pause();
                    f(i);
                }
            }
        };
        let in_job = |looks| Looks { job: true, ..looks };
        let result = catch_unwind(AssertUnwindSafe(|| looking(in_job, chunks)));
        if let Err(payload) = result {
            shares.iter().for_each(|share| _ = share.0.fetch_max(job.cut.chunks, Relaxed));
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

    /// The life of a worker, whose share of every job has the same place.
    fn serve(&self, share: usize) {
        let mut seen = 0;
        let mut spin = SPIN_BRIEFLY;
        loop {
            let idle = Instant::now();
            seen = self.await_job(seen, spin) / JOB;
            spin = if idle.elapsed() < CLOSELY { SPIN_LONGER } else { SPIN_BRIEFLY };
            if self.join(seen) {
                // SAFETY: we are inside an open job, which was written before it was opened.
                self.work(unsafe { *self.job.get() }, share);
                self.watched.0.fetch_sub(1, Release);
            }
        }
    }

    /// Goes inside job number `number`, unless it is closed or has enough helpers.
    fn join(&self, number: u64) -> bool {
        let enter = |state: u64| {
            let has_room = ((state & INSIDE) as usize) < self.helpers.load(Relaxed);
            (state & OPEN != 0 && state / JOB == number && has_room).then_some(state + 1)
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
