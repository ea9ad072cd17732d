//! Host buffers: aligned, pooled, reference-counted.

use crate::error::Result;

/// A stretch of memory. Cloning shares it.
#[derive(Clone)]
pub struct Buffer(std::sync::Arc<()>);

#[allow(missing_docs, unused_variables)]
impl Buffer {
    pub fn alloc(bytes: usize) -> Result<Buffer> {
        unreachable!()
    }
    pub fn zeroed(bytes: usize) -> Result<Buffer> {
        unreachable!()
    }
    pub fn ptr(&self) -> *const u8 {
        unreachable!()
    }
    /// # Safety
    /// The buffer is held alone.
    pub unsafe fn ptr_mut(&self) -> *mut u8 {
        unreachable!()
    }
    pub fn bytes(&self) -> usize {
        unreachable!()
    }
}
