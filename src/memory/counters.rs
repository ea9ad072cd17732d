//! Memory counters: live bytes, the peak, and the limit, as atomics.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::{late, os};
use crate::error::{Error, out_of_memory};

/// Bytes and buffers, process-wide. Every block counts with the size of its class: the bytes asked
/// for, rounded up to a multiple of 64, and from 1 KiB on by up to an eighth more. Foreign memory
/// does not count. The numbers are exact except for allocations and drops on other threads at the
/// moment of reading; the peak may miss a small block that two threads race for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of buffers with a handle.
    pub live_bytes: usize,
    /// Bytes of freed blocks kept for reuse.
    pub cached_bytes: usize,
    /// The most bytes that were live at once since [`reset_peak`].
    pub peak_bytes: usize,
    /// The limit set by [`set_limit`].
    pub limit: Option<usize>,
    /// Buffers with a handle.
    pub live_buffers: usize,
}

/// Bytes and buffers made, minus those dropped. One half alone may be negative (it wraps), because
/// a buffer may be made on a thread that counts in one half and dropped on a thread that counts in
/// the other.
#[repr(align(128))]
struct Half {
    bytes: AtomicUsize,
    buffers: AtomicUsize,
}

impl Half {
    const fn new() -> Half {
        Half { bytes: AtomicUsize::new(0), buffers: AtomicUsize::new(0) }
    }
}

/// The half that all other threads share, changed by read-modify-writes.
static COMMON: Half = Half::new();

/// The half that one thread at a time, the one at [home](Post::Home), writes with plain stores.
/// Four read-modify-writes would cost more than the rest of a small allocation.
static HOME: Half = Half::new();

/// The values that every allocation reads and few write.
#[repr(align(128))]
struct Watermarks {
    peak: AtomicUsize,
    /// The most bytes that may be live; 0 until the machine was asked, and while buffers are
    /// counted down.
    ceiling: AtomicUsize,
}

static WATERMARKS: Watermarks =
    Watermarks { peak: AtomicUsize::new(0), ceiling: AtomicUsize::new(0) };

/// The bytes of all blocks, live or cached.
static HELD: AtomicUsize = AtomicUsize::new(0);

const UNLIMITED: usize = usize::MAX;

static LIMIT: AtomicUsize = AtomicUsize::new(UNLIMITED);

/// Buffers that may still be made before one is refused, for tests; [`UNLIMITED`] where none is.
static ALLOWED: AtomicUsize = AtomicUsize::new(UNLIMITED);

/// Whether a thread has the home post.
static OCCUPIED: AtomicBool = AtomicBool::new(false);

/// Which half a thread writes.
pub(super) enum Post {
    /// The half of this thread alone.
    Home,
    /// The half that all other threads share.
    Away,
}

impl Post {
    /// Takes the home post if it is free.
    pub(super) fn take() -> Post {
        if OCCUPIED.swap(true, Acquire) { Post::Away } else { Post::Home }
    }

    /// Counts a buffer of `size` bytes as live, or refuses it.
    #[inline]
    pub(super) fn charge(&self, size: usize) -> bool {
        let live = total(self.add(|half| &half.bytes, size), self.other().bytes.load(Acquire));
        if live > WATERMARKS.ceiling.load(Relaxed) && is_refused(live) {
            self.add(|half| &half.bytes, size.wrapping_neg());
            return false;
        }
        if live > WATERMARKS.peak.load(Relaxed) {
            WATERMARKS.peak.fetch_max(live, Relaxed);
        }
        self.add(|half| &half.buffers, 1);
        true
    }

    /// Takes back a [`charge`](Post::charge).
    #[inline]
    pub(super) fn discharge(&self, size: usize) {
        self.add(|half| &half.bytes, size.wrapping_neg());
        self.add(|half| &half.buffers, 1_usize.wrapping_neg());
    }

    /// Adds to this post's half and returns the new value. The store is a release, so that a thread
    /// that sees a buffer dropped in one half also sees it made in the other.
    #[inline]
    fn add(&self, counter: impl Fn(&'static Half) -> &'static AtomicUsize, amount: usize) -> usize {
        match self {
            Post::Home => {
                let sum = counter(&HOME).load(Relaxed).wrapping_add(amount);
                counter(&HOME).store(sum, Release);
                sum
            }
            Post::Away => counter(&COMMON).fetch_add(amount, AcqRel).wrapping_add(amount),
        }
    }

    #[inline]
    fn other(&self) -> &'static Half {
        match self {
            Post::Home => &COMMON,
            Post::Away => &HOME,
        }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        if let Post::Home = self {
            OCCUPIED.store(false, Release);
        }
    }
}

/// The sum of two halves. If they change while they are read, the sum may be off by the changes
/// under way, and even negative.
#[inline]
fn total(a: usize, b: usize) -> usize {
    (a.wrapping_add(b) as isize).max(0) as usize
}

fn live_bytes() -> usize {
    total(COMMON.bytes.load(Acquire), HOME.bytes.load(Acquire))
}

/// The most bytes that may be live: the limit, or the memory of the machine if it is less.
#[cold]
pub(super) fn ceiling() -> usize {
    let ceiling = LIMIT.load(Relaxed).min(os::machine_bytes());
    // A ceiling of 0 sends every allocation to `is_refused`, which counts buffers down.
    let counts_down = ALLOWED.load(Relaxed) != UNLIMITED;
    WATERMARKS.ceiling.store(if counts_down { 0 } else { ceiling }, Relaxed);
    ceiling
}

/// Whether a buffer is refused that would make this many bytes live.
#[cold]
fn is_refused(live: usize) -> bool {
    let step = |left| (left != UNLIMITED).then(|| if left == 0 { UNLIMITED } else { left - 1 });
    ALLOWED.fetch_update(Relaxed, Relaxed, step) == Ok(0) || live > ceiling()
}

/// Refuses one buffer after `allowed` further ones, as if memory were exhausted; `None` refuses
/// none. Returns how many were still allowed under the last such call.
pub fn refuse_after(allowed: Option<usize>) -> Option<usize> {
    let left = ALLOWED.swap(allowed.unwrap_or(UNLIMITED), Relaxed);
    ceiling();
    (left != UNLIMITED).then_some(left)
}

/// Counts the bytes of a block that came from the system.
pub(super) fn hold(size: usize) {
    HELD.fetch_add(size, Relaxed);
}

/// Counts the bytes of a block that went back to the system.
pub(super) fn unhold(size: usize) {
    HELD.fetch_sub(size, Relaxed);
}

/// The bytes of all blocks, live or cached.
pub(super) fn held() -> usize {
    HELD.load(Relaxed)
}

/// The error for a request of `bytes` bytes.
#[cold]
pub fn refusal(bytes: usize) -> Error {
    let limit = match LIMIT.load(Relaxed) {
        UNLIMITED => format!(", the machine has {}", os::machine_bytes()),
        limit => format!(", limit {limit}"),
    };
    out_of_memory(bytes, live_bytes(), limit)
}

/// Refuses a request that does not fit beside the live bytes.
pub fn check_room(bytes: usize) -> Result<(), Error> {
    let fits = || live_bytes().saturating_add(bytes) <= ceiling();
    match fits() || late::relieves() && fits() {
        true => Ok(()),
        false => Err(refusal(bytes)),
    }
}

/// The counters now.
pub fn stats() -> Stats {
    let live_bytes = live_bytes();
    let limit = LIMIT.load(Relaxed);
    Stats {
        live_bytes,
        cached_bytes: held().saturating_sub(live_bytes),
        peak_bytes: WATERMARKS.peak.load(Relaxed).max(live_bytes),
        limit: (limit != UNLIMITED).then_some(limit),
        live_buffers: total(COMMON.buffers.load(Acquire), HOME.buffers.load(Acquire)),
    }
}

/// Resets the peak to the bytes that are live now.
pub fn reset_peak() {
    WATERMARKS.peak.store(live_bytes(), Relaxed);
}

/// Sets how many bytes may be live, or lifts the limit. Live buffers stay, even beyond the limit.
pub fn set_limit(limit: Option<usize>) {
    LIMIT.store(limit.unwrap_or(UNLIMITED), Relaxed);
    ceiling();
}
