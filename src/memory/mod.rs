//! Host buffers: aligned, pooled, reference-counted; with counters and a limit.
//!
//! Promises: data is aligned to [`ALIGN`] bytes; a handle is one pointer wide and may be cloned and
//! dropped on any thread; the counters of [`stats`] are exact, except for changes under way; a
//! request beyond the limit or the machine's memory is refused before anything is allocated; a
//! forked child may allocate at once.
//!
//! A block is a 64-byte header followed by the data. Freed blocks are cached in size classes, eight
//! to a doubling (besides rounding to 64 bytes, at most an eighth is wasted): small blocks per
//! thread, all others in one shared pool, which returns the blocks that have been unused for
//! longest to the system.

mod class;
mod counters;
mod data;
mod os;
mod pool;
#[cfg(test)]
pub(crate) mod tests;

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use crate::error::Result;
use class::Class;
use data::Away;

pub use counters::{Stats, check_room, refusal, refuse_after, reset_peak, set_limit, stats};
pub use data::{Busy, Data, DeviceBuffer, TracedNode, Where};
pub use pool::release_cached;

/// The alignment of every pooled buffer: a cache line, and the widest vector.
pub const ALIGN: usize = 64;

/// The bytes that the counters add for a buffer of `bytes` bytes: those of its size class.
pub fn block_bytes(bytes: usize) -> usize {
    Class::of(bytes.min(class::LARGEST)).size()
}

/// The header before the data of a block.
#[repr(C, align(64))]
struct Header {
    /// Handles that share this block.
    refs: AtomicUsize,
    /// The data: right behind the header, or foreign.
    data: *mut u8,
    /// Bytes asked for.
    bytes: usize,
    /// The size class; `None` for foreign memory.
    class: Option<Class>,
    /// Whether the elements are not in host memory: [`Data`] knows more.
    is_away: bool,
}

/// The header of foreign memory, with the owner that keeps the memory alive.
#[repr(C)]
struct External {
    header: Header,
    owner: Box<dyn Any + Send + Sync>,
}

/// A block of host memory. Cloning shares it.
pub struct Buffer(NonNull<Header>);

// SAFETY: the reference count is atomic, the other fields are only written while one handle exists,
// and writing the data is `unsafe` at the one who does it.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A block of at least `bytes` bytes with arbitrary contents: the caller fills all of it.
    #[inline]
    pub fn alloc(bytes: usize) -> Result<Buffer> {
        pool::obtain(bytes, false).map(Buffer)
    }

    /// A block of at least `bytes` bytes, all zero. Fresh pages from the system are zero already
    /// and are not written.
    pub fn zeroed(bytes: usize) -> Result<Buffer> {
        pool::obtain(bytes, true).map(Buffer)
    }

    /// Read-only memory of another owner, kept alive by `owner`. It counts in no statistics.
    ///
    /// # Safety
    /// `ptr` is readable for `bytes` bytes, and nobody writes there, as long as `owner` lives.
    pub unsafe fn external(
        ptr: *const u8,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Buffer {
        // A foreign pointer to no bytes may be null, which a slice must not be.
        let data = NonNull::new(ptr.cast_mut()).unwrap_or(NonNull::<Header>::dangling().cast());
        let header = Header {
            refs: AtomicUsize::new(1),
            data: data.as_ptr(),
            bytes,
            class: None,
            is_away: false,
        };
        Buffer(NonNull::from(Box::leak(Box::new(External { header, owner }))).cast())
    }

    /// The first byte.
    #[inline]
    pub fn ptr(&self) -> *const u8 {
        self.header().data
    }

    /// The first byte, to write.
    ///
    /// # Safety
    /// The buffer is fresh or [unique](Buffer::is_unique), and nobody reads what is being written.
    #[inline]
    pub unsafe fn ptr_mut(&self) -> *mut u8 {
        debug_assert!(self.header().class.is_some(), "foreign memory is read-only");
        self.header().data
    }

    /// The address of the block, equal for handles that share it.
    pub fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// The bytes asked for.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.header().bytes
    }

    /// Whether this is the only handle of pooled memory: then it may be written in place.
    #[inline]
    pub fn is_unique(&self) -> bool {
        self.header().class.is_some() && self.is_sole()
    }

    /// Whether this is the only handle of the block.
    #[inline]
    pub fn is_sole(&self) -> bool {
        // Acquire: reads through other handles, before they were dropped, come before our writes.
        self.header().refs.load(Ordering::Acquire) == 1
    }

    /// Whether both handles share one block.
    #[inline]
    pub fn same(&self, other: &Buffer) -> bool {
        self.0 == other.0
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: the header lives until the last handle is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for Buffer {
    #[inline]
    fn clone(&self) -> Buffer {
        // Relaxed: whatever passes a handle to another thread synchronises. The count cannot
        // overflow: each handle takes eight bytes of memory.
        self.header().refs.fetch_add(1, Ordering::Relaxed);
        Buffer(self.0)
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        let header = self.header();
        // The only handle: nobody else can clone it, so the count need not be written.
        if header.refs.load(Ordering::Acquire) != 1 {
            if header.refs.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            fence(Ordering::Acquire);
        }
        match header.class {
            Some(class) => pool::give_back(self.0, class),
            // SAFETY: `Data` makes headers that are away from such a box, and we hold the last
            // handle.
            None if header.is_away => {
                drop(unsafe { Box::from_raw(self.0.cast::<Away>().as_ptr()) })
            }
            // SAFETY: foreign headers are made by `external` from such a box, and we hold the last
            // handle.
            None => drop(unsafe { Box::from_raw(self.0.cast::<External>().as_ptr()) }),
        }
    }
}
