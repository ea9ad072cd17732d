//! Tests of buffers, pool and counters.

use super::*;

#[test]
fn buffers_are_aligned_and_hold_what_was_asked() {
    for bytes in [0, 1, 63, 64, 65, 4096, 70_000, 3 << 20] {
        let buffer = Buffer::alloc(bytes).unwrap();
        assert_eq!(buffer.ptr() as usize % ALIGN, 0);
        assert_eq!(buffer.bytes(), bytes);
        // SAFETY: fresh, and `bytes` long.
        unsafe { buffer.ptr_mut().write_bytes(0xA5, bytes) };
        drop(buffer);
        let zero = Buffer::zeroed(bytes).unwrap();
        // SAFETY: all bytes are initialised.
        assert!(
            unsafe { std::slice::from_raw_parts(zero.ptr(), bytes) }.iter().all(|&byte| byte == 0)
        );
    }
}
