//! What is live, what was at most, and what may be: a handful of relaxed atomics.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::os;
use crate::error::{Error, out_of_memory};

/// Bytes and buffers, process-wide. Every block counts with the size of its class: what was asked
/// for, rounded up by at most an eighth to a multiple of 64. Foreign memory does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of buffers that somebody holds.
    pub live_bytes: usize,
    /// Bytes of freed blocks kept for reuse.
    pub cached_bytes: usize,
    /// The most bytes that were live at once since [`reset_peak`].
    pub peak_bytes: usize,
    /// The limit set by [`set_limit`].
    pub limit: Option<usize>,
    /// Buffers that somebody holds.
    pub live_buffers: usize,
}

/// Values that change with every allocation, on a cache line of their own.
#[repr(align(64))]
struct Hot {
    bytes: AtomicUsize,
    buffers: AtomicUsize,
    peak: AtomicUsize,
    /// The live bytes that are refused, less one; 0 until the machine was asked.
    ceiling: AtomicUsize,
}

const UNLIMITED: usize = usize::MAX;

static HOT: Hot = Hot {
    bytes: AtomicUsize::new(0),
    buffers: AtomicUsize::new(0),
    peak: AtomicUsize::new(0),
    ceiling: AtomicUsize::new(0),
};

/// The bytes of all blocks, live or cached.
static HELD: AtomicUsize = AtomicUsize::new(0);

static LIMIT: AtomicUsize = AtomicUsize::new(UNLIMITED);

/// Counts a buffer of `size` bytes as live, or refuses it.
#[inline]
pub(super) fn charge(size: usize) -> bool {
    let live = HOT.bytes.fetch_add(size, Relaxed).wrapping_add(size);
    if live > HOT.ceiling.load(Relaxed) && live > ceiling() {
        HOT.bytes.fetch_sub(size, Relaxed);
        return false;
    }
    if live > HOT.peak.load(Relaxed) {
        HOT.peak.fetch_max(live, Relaxed);
    }
    HOT.buffers.fetch_add(1, Relaxed);
    true
}

/// Takes back a [`charge`].
#[inline]
pub(super) fn discharge(size: usize) {
    HOT.bytes.fetch_sub(size, Relaxed);
    HOT.buffers.fetch_sub(1, Relaxed);
}

/// The bytes that may be live: the limit, or what the machine has.
#[cold]
pub(super) fn ceiling() -> usize {
    let ceiling = LIMIT.load(Relaxed).min(os::machine_bytes());
    HOT.ceiling.store(ceiling, Relaxed);
    ceiling
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
pub(super) fn refusal(bytes: usize) -> Error {
    let limit = match LIMIT.load(Relaxed) {
        UNLIMITED => format!(", the machine has {}", os::machine_bytes()),
        limit => format!(", limit {limit}"),
    };
    out_of_memory(bytes, HOT.bytes.load(Relaxed), limit)
}

/// The counters now.
pub fn stats() -> Stats {
    let live_bytes = HOT.bytes.load(Relaxed);
    let limit = LIMIT.load(Relaxed);
    Stats {
        live_bytes,
        cached_bytes: held().saturating_sub(live_bytes),
        peak_bytes: HOT.peak.load(Relaxed).max(live_bytes),
        limit: (limit != UNLIMITED).then_some(limit),
        live_buffers: HOT.buffers.load(Relaxed),
    }
}

/// Starts the peak again from what is live now.
pub fn reset_peak() {
    HOT.peak.store(HOT.bytes.load(Relaxed), Relaxed);
}

/// Sets how many bytes may be live, or lifts the limit. What is live already stays.
pub fn set_limit(limit: Option<usize>) {
    LIMIT.store(limit.unwrap_or(UNLIMITED), Relaxed);
    ceiling();
}
