//! Host buffers: aligned, pooled, reference-counted; with counters and a limit.
//!
//! Promises: data is aligned to [`ALIGN`] bytes; a handle is one pointer wide and may be cloned and
//! dropped on any thread; the counters of [`stats`] are exact, except for changes under way; a
//! request beyond the limit or the machine's memory is refused before anything is allocated; a
//! forked child may allocate at once; who has an address of data finds all elements there, also
//! where they were [computed later](late).
//!
//! A block is a 64-byte header followed by the data. Freed blocks are cached in size classes, eight
//! to a doubling (besides rounding to 64 bytes, at most an eighth is wasted): small blocks per
//! thread, all others in one shared pool, which returns the blocks that have been unused for
//! longest to the system.

mod class;
mod counters;
mod data;
pub mod late;
mod os;
mod pool;
#[cfg(test)]
pub(crate) mod tests;

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering, fence};

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
    /// The data: right behind the header, or foreign. Null until the elements are computed.
    data: AtomicPtr<u8>,
    /// Bytes asked for.
    bytes: usize,
    /// The size class of pooled memory.
    class: Class,
    /// A [`Kind`], which changes from late to pooled when the elements are computed.
    kind: AtomicU8,
    /// What computes the elements of a late block.
    key: late::Key,
}

/// What a block is.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// Memory of a pool
    Pooled,
    /// The same, with elements that are not computed yet
    Late,
    /// Memory of another owner, to read
    Foreign,
    /// That of a late block, to be written by who computes it
    Lent,
    /// Elements that are not in host memory: [`Data`] knows more
    Away,
}

impl Header {
    /// A header of one handle.
    fn new(kind: Kind, data: *mut u8, bytes: usize, class: Class) -> Header {
        Header {
            refs: AtomicUsize::new(1),
            data: AtomicPtr::new(data),
            bytes,
            class,
            kind: AtomicU8::new(kind as u8),
            key: late::Key::NONE,
        }
    }

    #[inline]
    fn is(&self, kind: Kind) -> bool {
        // Relaxed: the kind says nothing of the elements, which come with their address.
        self.kind.load(Ordering::Relaxed) == kind as u8
    }
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
        let header = Header::new(Kind::Foreign, data.as_ptr(), bytes, Class::of(0));
        Buffer(NonNull::from(Box::leak(Box::new(External { header, owner }))).cast())
    }

    /// The first byte. Elements that are not computed yet are computed now.
    #[inline]
    pub fn ptr(&self) -> *const u8 {
        self.start()
    }

    #[inline]
    fn start(&self) -> *mut u8 {
        // Acquire: who computed the elements on another thread did so before it gave the address.
        let data = self.header().data.load(Ordering::Acquire);
        if data.is_null() { self.computed() } else { data }
    }

    /// The first byte, to write.
    ///
    /// # Safety
    /// The buffer is fresh or [unique](Buffer::is_unique), and nobody reads what is being written.
    #[inline]
    pub unsafe fn ptr_mut(&self) -> *mut u8 {
        debug_assert!(!self.is_foreign(), "foreign memory is read-only");
        self.start()
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

    /// Whether this is the only handle of pooled memory: then it may be written in place. Large
    /// memory that only operations of this thread hold, which were to run later, is let go by them.
    #[inline]
    pub fn is_unique(&self) -> bool {
        let header = self.header();
        if header.is(Kind::Pooled) || header.is(Kind::Late) {
            return self.is_sole() || late::settles(self);
        }
        false
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
        let is_pooled = header.is(Kind::Pooled);
        // The only handle: nobody else can clone it, so the count need not be written. Of a late
        // block, who computes it may make another.
        if header.refs.load(Ordering::Acquire) != 1 || !is_pooled {
            if header.refs.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            fence(Ordering::Acquire);
        }
        match is_pooled {
            true => pool::give_back(self.0, header.class),
            // SAFETY: we held the last handle.
            false => unsafe { give_back(self.0) },
        }
    }
}

/// Gives back a block that was not pooled when somebody looked.
///
/// # Safety
/// The last handle is gone.
#[cold]
unsafe fn give_back(block: NonNull<Header>) {
    // SAFETY: nobody else frees the block.
    let header = unsafe { block.as_ref() };
    if header.is(Kind::Away) {
        // SAFETY: `Data` makes headers that are away from such a box.
        drop(unsafe { Box::from_raw(block.cast::<Away>().as_ptr()) });
    } else if header.is(Kind::Foreign) || header.is(Kind::Lent) {
        // SAFETY: foreign headers are made from such a box.
        drop(unsafe { Box::from_raw(block.cast::<External>().as_ptr()) });
    } else {
        // SAFETY: as the caller's.
        unsafe { late::abandon(block) };
        pool::give_back(block, header.class);
    }
}
