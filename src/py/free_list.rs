//! Objects of tensors that nobody refers to, for the next results.

use std::cell::Cell;
use std::ptr::null_mut;

use super::tensor::TensorObject;

/// Free objects, linked through `weakrefs`. Guarded by the interpreter lock.
pub struct FreeList {
    head: Cell<*mut TensorObject>,
    length: Cell<usize>,
}
// SAFETY: only attached threads touch it.
unsafe impl Sync for FreeList {}

/// The most objects that are kept.
const LIMIT: usize = 256;

impl FreeList {
    /// A list without objects.
    pub const fn new() -> FreeList {
        FreeList { head: Cell::new(null_mut()), length: Cell::new(0) }
    }

    /// Whether there is no object.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.head.get().is_null()
    }

    /// Whether one more may be kept.
    pub fn has_room(&self) -> bool {
        self.length.get() < LIMIT
    }

    /// An object, dead and without a slot, which is the caller's.
    #[inline(always)]
    pub fn take(&self) -> Option<*mut TensorObject> {
        let head = self.head.get();
        if head.is_null() {
            return None;
        }
        // SAFETY: an object in the list is memory that only the list refers to.
        self.head.set(unsafe { (*head).weakrefs.cast() });
        self.length.set(self.length.get() - 1);
        Some(head)
    }

    /// Keeps an object.
    ///
    /// # Safety
    /// The object is of the exact type, untracked, without a slot, and nobody refers to it.
    #[inline(always)]
    pub unsafe fn put(&self, object: *mut TensorObject) {
        // SAFETY: as the caller's.
        unsafe { (*object).weakrefs = self.head.get().cast() };
        self.head.set(object);
        self.length.set(self.length.get() + 1);
    }
}
