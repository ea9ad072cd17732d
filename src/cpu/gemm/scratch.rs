//! Memory for packed blocks: one buffer for all threads of a product, so that how much is taken does
//! not depend on how many of them work at once.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use smallvec::SmallVec;

use crate::error::Result;
use crate::memory::{ALIGN, Buffer, block_bytes};

/// Parts of a buffer that threads borrow.
pub struct Scratch {
    buffer: Option<Buffer>,
    room: usize,
    taken: SmallVec<[AtomicBool; 16]>,
}

/// A part, until it is dropped.
pub enum Part<'a> {
    /// Of the buffer that is shared
    Lent(*mut u8, &'a AtomicBool),
    /// A buffer of its own
    Own(Buffer),
    /// Nothing is needed
    None,
}

/// Bytes of a buffer with `parts` parts of `room` bytes.
fn bytes(room: usize, parts: usize) -> usize {
    room.next_multiple_of(ALIGN) * parts
}

/// The bytes that [`Scratch::new`] takes, as the counters of memory count them.
pub fn counted(room: usize, parts: usize) -> usize {
    if room == 0 { 0 } else { block_bytes(bytes(room, parts)) }
}

impl Scratch {
    /// `parts` parts of `room` bytes.
    pub fn new(room: usize, parts: usize) -> Result<Scratch> {
        let buffer = (room > 0).then(|| Buffer::alloc(bytes(room, parts))).transpose()?;
        let parts = if room > 0 { parts } else { 0 };
        let taken = (0..parts).map(|_| AtomicBool::new(false)).collect();
        Ok(Scratch { buffer, room: room.next_multiple_of(ALIGN), taken })
    }

    /// A part of at least `bytes` bytes that nobody else has.
    pub fn lend(&self, bytes: usize) -> Result<Part<'_>> {
        if bytes == 0 {
            return Ok(Part::None);
        }
        if let Some(buffer) = self.buffer.as_ref().filter(|_| bytes <= self.room) {
            for (i, taken) in self.taken.iter().enumerate() {
                if !taken.swap(true, Acquire) {
                    // SAFETY: the buffer is ours, and this part was free.
                    let ptr = unsafe { buffer.ptr_mut().add(i * self.room) };
                    return Ok(Part::Lent(ptr, taken));
                }
            }
        }
        Ok(Part::Own(Buffer::alloc(bytes)?))
    }
}

impl Part<'_> {
    /// Where it is.
    pub fn ptr(&self) -> *mut u8 {
        match self {
            Part::Lent(ptr, _) => *ptr,
            // SAFETY: fresh.
            Part::Own(buffer) => unsafe { buffer.ptr_mut() },
            Part::None => std::ptr::null_mut(),
        }
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        if let Part::Lent(_, taken) = self {
            taken.store(false, Release);
        }
    }
}
