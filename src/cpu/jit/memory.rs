//! Memory of machine code: writable first, executable afterwards, never both.

use std::ptr::NonNull;

/// Pages that are executed.
pub struct Executable {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: nobody writes to the pages.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl Executable {
    /// Pages with these bytes; `None` where the system gives none, or none to be executed.
    pub fn new(code: &[u8]) -> Option<Executable> {
        let bytes = code.len();
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, which nothing else has the address of.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, writable, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = NonNull::new(start.cast::<u8>())?;
        let pages = Executable { start, bytes };
        // SAFETY: the mapping is as long as the code, and writable so far.
        let failed = unsafe {
            start.as_ptr().copy_from_nonoverlapping(code.as_ptr(), bytes);
            libc::mprotect(start.as_ptr().cast(), bytes, libc::PROT_READ | libc::PROT_EXEC) != 0
        };
        (!failed).then_some(pages)
    }

    /// The address of a byte.
    pub fn at(&self, offset: usize) -> *const u8 {
        debug_assert!(offset < self.bytes);
        self.start.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nobody runs it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
