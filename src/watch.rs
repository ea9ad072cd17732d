//! What is watched while ops run: how long they take, and whether their values are finite.
//!
//! [`on`] is one load of a counter that nobody writes meanwhile, and false unless somebody watches;
//! everything else stands behind it. Times are taken of all threads into one list; values are
//! checked on the thread that asked for it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::fork::Lazy;
use crate::site::Site;

/// The most events kept at a time; what comes after is counted only.
const MOST: usize = 1 << 20;

/// What kind of work an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// An op of eager code
    Op,
    /// A composite of eager code, around its ops
    Composite,
    /// A step of a plan
    Step,
    /// A call of a compiled function, around its steps
    Call,
    /// An op or a step, by the clock of the device that computed it
    Device,
}

impl Work {
    /// The name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Work::Op => "op",
            Work::Composite => "composite",
            Work::Step => "step",
            Work::Call => "call",
            Work::Device => "device",
        }
    }
}

/// Something that took time.
#[derive(Clone, Debug)]
pub struct Event {
    /// What it is
    pub work: Work,
    /// The op, or a name for several
    pub name: String,
    /// The Python line
    pub site: Site,
    /// Nanoseconds from the start of this module's clock
    pub start: u64,
    /// Nanoseconds
    pub duration: u64,
    /// The thread, by a number of its own
    pub thread: u32,
    /// Bytes read and written, 0 where others inside count them
    pub bytes: u64,
    /// Operations on elements, where they are known
    pub flops: u64,
    /// The result, or what else there is to say
    pub detail: String,
}

#[derive(Default)]
struct Log {
    events: Vec<Event>,
    timers: u32,
    dropped: u64,
    /// Devices without a clock
    untimed: Vec<&'static str>,
}

/// How many watch: timers of all threads, checks of any thread.
static WATCHERS: AtomicU32 = AtomicU32::new(0);
static TIMERS: AtomicU32 = AtomicU32::new(0);
static LOG: Lazy<Mutex<Log>> = Lazy::new(Default::default);
static CLOCK: Lazy<Instant> = Lazy::new(Instant::now);

thread_local! {
    static CHECKS: Cell<u32> = const { Cell::new(0) };
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// Whether anybody watches.
#[inline(always)]
pub fn on() -> bool {
    WATCHERS.load(Ordering::Relaxed) != 0
}

/// Whether times are taken.
#[inline]
pub fn timing() -> bool {
    TIMERS.load(Ordering::Relaxed) != 0
}

/// Whether values are checked on this thread.
#[inline]
pub fn checking() -> bool {
    CHECKS.get() > 0
}

/// Nanoseconds on the clock of events.
pub fn now() -> u64 {
    CLOCK.elapsed().as_nanos() as u64
}

/// The number of this thread.
pub fn thread() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    if THREAD.get() == 0 {
        THREAD.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    THREAD.get()
}

/// Adds an event.
pub fn record(event: Event) {
    let mut log = LOG.lock();
    match log.timers {
        0 => {}
        _ if log.events.len() >= MOST => log.dropped += 1,
        _ => log.events.push(event),
    }
}

/// Says that a device computes and has no clock.
pub fn note_untimed(device: &'static str) {
    let mut log = LOG.lock();
    if !log.untimed.contains(&device) {
        log.untimed.push(device);
    }
}

/// Starts to take times: what [`end_timing`] wants back.
pub fn begin_timing() -> usize {
    let mut log = LOG.lock();
    log.timers += 1;
    TIMERS.fetch_add(1, Ordering::Relaxed);
    WATCHERS.fetch_add(1, Ordering::Relaxed);
    log.events.len()
}

/// The events since the matching [`begin_timing`], how many found no room, and which devices
/// computed and have no clock.
pub fn end_timing(mark: usize) -> (Vec<Event>, u64, Vec<&'static str>) {
    let mut log = LOG.lock();
    log.timers = log.timers.saturating_sub(1);
    TIMERS.fetch_sub(1, Ordering::Relaxed);
    WATCHERS.fetch_sub(1, Ordering::Relaxed);
    let dropped = log.dropped;
    if log.timers > 0 {
        let events = log.events.get(mark..).unwrap_or_default().to_vec();
        return (events, dropped, log.untimed.clone());
    }
    log.dropped = 0;
    let mut events = std::mem::take(&mut log.events);
    events.drain(..mark.min(events.len()));
    (events, dropped, std::mem::take(&mut log.untimed))
}

/// Starts to check values on this thread.
pub fn begin_checking() {
    CHECKS.set(CHECKS.get() + 1);
    WATCHERS.fetch_add(1, Ordering::Relaxed);
}

/// Ends what [`begin_checking`] started.
pub fn end_checking() {
    CHECKS.set(CHECKS.get().saturating_sub(1));
    WATCHERS.fetch_sub(1, Ordering::Relaxed);
}

/// Runs `f` without checks on this thread.
pub fn unchecked<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            CHECKS.set(self.0);
        }
    }
    let _restore = Restore(CHECKS.replace(0));
    f()
}
