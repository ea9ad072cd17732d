//! Memory for packed blocks: one buffer for all threads of a product, so that its size does not
//! depend on how many threads work at once.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use smallvec::SmallVec;

use crate::error::Result;
use crate::memory::{ALIGN, Buffer, block_bytes};

/// Parts of a buffer that threads borrow.
pub struct Scratch {
    /// Keeps the memory alive, if it is not lent
    _buffer: Option<Buffer>,
    start: *mut u8,
    size: usize,
    taken: SmallVec<[AtomicBool; 16]>,
}

// SAFETY: a part is written by whoever has taken it.
unsafe impl Sync for Scratch {}

/// A borrowed part, returned when it is dropped.
pub enum Part<'a> {
    /// A part of the shared buffer
    Lent(*mut u8, &'a AtomicBool),
    /// A buffer of its own
    Own(Buffer),
    /// No memory is needed
    None,
}

fn free(parts: usize) -> SmallVec<[AtomicBool; 16]> {
    (0..parts).map(|_| AtomicBool::new(false)).collect()
}

/// Bytes of a buffer with `parts` parts of `size` bytes.
fn bytes(size: usize, parts: usize) -> usize {
    size.next_multiple_of(ALIGN) * parts
}

/// The bytes that [`Scratch::new`] takes, as the memory counters count them.
pub fn counted(size: usize, parts: usize) -> usize {
    if size == 0 { 0 } else { block_bytes(bytes(size, parts)) }
}

impl Scratch {
    /// `parts` parts of `size` bytes.
    pub fn new(size: usize, parts: usize) -> Result<Scratch> {
        let buffer = (size > 0).then(|| Buffer::alloc(bytes(size, parts))).transpose()?;
        let parts = if size > 0 { parts } else { 0 };
        // SAFETY: fresh.
        let start =
            buffer.as_ref().map_or(std::ptr::null_mut(), |buffer| unsafe { buffer.ptr_mut() });
        Ok(Scratch {
            _buffer: buffer,
            start,
            size: size.next_multiple_of(ALIGN),
            taken: free(parts),
        })
    }

    /// Memory that was lent, if there is enough; otherwise `parts` parts of `size` bytes.
    pub fn of(size: usize, parts: usize, lent: Option<(*mut u8, usize)>) -> Result<Scratch> {
        match lent {
            Some((ptr, bytes)) if size > 0 && bytes >= size => Ok(Scratch::lent(ptr, bytes, size)),
            Some(_) | None => Scratch::new(size, parts),
        }
    }

    /// As many parts of `size` bytes as lent memory holds.
    pub fn lent(start: *mut u8, bytes: usize, size: usize) -> Scratch {
        let parts = (bytes / size.next_multiple_of(ALIGN)).max(1);
        let taken = free(parts);
        Scratch { _buffer: None, start, size: size.next_multiple_of(ALIGN), taken }
    }

    /// A part of at least `bytes` bytes that no other thread has.
    pub fn lend(&self, bytes: usize) -> Result<Part<'_>> {
        if bytes == 0 {
            return Ok(Part::None);
        }
        if bytes <= self.size {
            for (i, taken) in self.taken.iter().enumerate() {
                if !taken.swap(true, Acquire) {
                    return Ok(Part::Lent(self.start.wrapping_add(i * self.size), taken));
                }
            }
        }
        Ok(Part::Own(Buffer::alloc(bytes)?))
    }
}

impl Part<'_> {
    /// The address of the part.
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
