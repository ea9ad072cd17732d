//! Blocks whose elements are computed when somebody first asks for their address.
//!
//! Memory, counters and refusals are those of any other block: only the elements come later. What
//! computes them is [`Work`], a layer above, under a [`Key`]. It holds a late block weakly, so a
//! block that everybody else has dropped is gone at once and need not be computed.
//!
//! Promises: nobody gets an address of elements that are not computed; all handles see them at
//! once; once computed, a block is like any other.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::class::{self, Class};
use super::{Buffer, External, Header, Kind};
use crate::error;

/// What computes the elements of a block: an operation of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The chain
    pub chain: u64,
    /// The operation in it
    pub node: u32,
}

impl Key {
    /// That of blocks which are not late.
    pub const NONE: Key = Key { chain: 0, node: 0 };
}

/// What computes late blocks.
pub trait Work: Sync {
    /// Computes the elements under a key, and [finishes](Late::finish) their block. Another thread
    /// may be about to do so: then it is waited for.
    fn compute(&self, key: Key);

    /// The last handle of a block under a key was dropped: afterwards its [`Late`] is gone.
    fn forget(&self, key: Key);

    /// Runs the operations of this thread that hold a block as an operand.
    fn settle(&self, block: &Buffer);

    /// Runs the operations of this thread, because memory is short; false where there are none.
    fn relieve(&self) -> bool;
}

static WORK: OnceLock<&'static dyn Work> = OnceLock::new();

/// Installs what computes late blocks, once. Before, there are none.
pub fn install(work: &'static dyn Work) {
    let _ = WORK.set(work);
}

/// Whether operations of this thread let go of memory, because it is short.
pub(super) fn relieves() -> bool {
    WORK.get().is_some_and(|work| work.relieve())
}

/// Whether this is the only handle of a block, once operations of this thread have let go of it.
#[inline]
pub(super) fn settles(block: &Buffer) -> bool {
    // Small memory is copied instead.
    block.bytes() > class::SMALL && settles_large(block)
}

#[cold]
fn settles_large(block: &Buffer) -> bool {
    let Some(work) = WORK.get() else { return false };
    work.settle(block);
    block.is_sole()
}

/// A late block, without a handle.
pub struct Late(NonNull<Header>);

// SAFETY: a late block is only reached through a handle, which `upgraded` counts atomically.
unsafe impl Send for Late {}
// SAFETY: as above.
unsafe impl Sync for Late {}

impl Late {
    /// A handle, unless the last one was dropped.
    ///
    /// # Safety
    /// [`Work::forget`] has not returned for this block.
    pub unsafe fn upgraded(&self) -> Option<Buffer> {
        // SAFETY: a block is freed only after it was forgotten.
        let refs: &AtomicUsize = unsafe { &self.0.as_ref().refs };
        let more = |n: usize| (n > 0).then_some(n + 1);
        refs.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Buffer(self.0))
    }
}

impl Buffer {
    /// Makes a fresh block late.
    ///
    /// # Safety
    /// This is the only handle, and nobody has an address of the data.
    pub unsafe fn postponed(self, key: Key) -> Buffer {
        // SAFETY: the handle is ours alone.
        let header = unsafe { &mut *self.0.as_ptr() };
        header.key = key;
        *header.data.get_mut() = std::ptr::null_mut();
        *header.kind.get_mut() = Kind::Late as u8;
        self
    }

    /// The block without a handle.
    pub fn late(&self) -> Late {
        Late(self.0)
    }

    /// What will compute the elements, if they are not computed yet.
    #[inline]
    pub fn key(&self) -> Option<Key> {
        self.header().is(Kind::Late).then(|| self.header().key)
    }

    /// Whether the memory is another owner's.
    pub fn is_foreign(&self) -> bool {
        self.header().is(Kind::Foreign)
    }

    /// The memory of a late block, to be written by who computes it.
    ///
    /// # Safety
    /// The block is late, and nobody else computes it meanwhile.
    pub unsafe fn unfinished(&self) -> Buffer {
        let data = Header::data_of(self.0);
        let header = Header::new(Kind::Lent, data, self.bytes(), Class::of(0));
        let lent = External { header, owner: Box::new(self.clone()) };
        Buffer(NonNull::from(Box::leak(Box::new(lent))).cast())
    }

    /// Says that the elements of a late block are computed.
    ///
    /// # Safety
    /// They are, and no [`Late`] of this block is used any more.
    pub unsafe fn finish(&self) {
        // SAFETY: we have a handle.
        unsafe { finish(self.0) };
    }

    /// The address of elements that were not computed when somebody looked.
    #[cold]
    pub(super) fn computed(&self) -> *mut u8 {
        let header = self.header();
        if let Some(work) = WORK.get() {
            work.compute(header.key);
        }
        let data = header.data.load(Ordering::Acquire);
        if data.is_null() {
            error::throw(error::internal("a late block was not computed"));
        }
        data
    }
}

impl Header {
    /// The data of a pooled block: right behind the header.
    fn data_of(block: NonNull<Header>) -> *mut u8 {
        block.as_ptr().wrapping_add(1).cast()
    }
}

/// # Safety
/// The block lives; its elements are computed, or nobody will look at them.
unsafe fn finish(block: NonNull<Header>) {
    // SAFETY: as the caller's.
    let header = unsafe { block.as_ref() };
    // In this order: who finds an address finds no late block any more.
    header.kind.store(Kind::Pooled as u8, Ordering::Relaxed);
    header.data.store(Header::data_of(block), Ordering::Release);
}

/// Makes an ordinary block of one that was late and has no handle any more.
///
/// # Safety
/// The last handle is gone.
pub(super) unsafe fn abandon(block: NonNull<Header>) {
    // SAFETY: nobody else frees the block.
    let key = unsafe { block.as_ref() }.key;
    if let Some(work) = WORK.get() {
        work.forget(key);
    }
    // SAFETY: as above.
    unsafe { finish(block) };
}
