//! The end of the process while drivers of devices compile shaders.
//!
//! Software adapters compile when a shader first runs. `exit` destroys what their compilers keep
//! while these still run on threads of theirs, and the process would crash. Nobody waits for them:
//! a handler of ours, which runs before all that were registered earlier, ends the process there.
//! By then Python has ended (its own `atexit` has run); handlers of C libraries that were loaded
//! before are passed over, in this case alone.

use pyo3::ffi;

/// Has devices closed when Python has ended, before the handlers of `exit` run.
pub fn close_devices_at_end() {
    // SAFETY: the function calls nothing of Python's. Where there is no room for it, devices are
    // not closed.
    let _ = unsafe { ffi::Py_AtExit(Some(close_devices)) };
}

extern "C" fn close_devices() {
    let is_compiling = crate::gpu::close();
    // Drivers whose compilers this concerns are Mesa's, on Linux; other systems stop threads first.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if is_compiling {
        // SAFETY: the handler lives as long as the process, and uses no argument.
        let _ = unsafe { on_exit(leave, std::ptr::null_mut()) };
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = is_compiling;
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
unsafe extern "C" {
    /// glibc's `atexit` with the status of the process.
    fn on_exit(
        handler: extern "C" fn(libc::c_int, *mut libc::c_void),
        argument: *mut libc::c_void,
    ) -> libc::c_int;
}

/// Ends the process with its status, if a compiler is still at work.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
extern "C" fn leave(status: libc::c_int, _: *mut libc::c_void) {
    if crate::gpu::close() {
        // SAFETY: null stands for all streams of C, whose last output `_exit` would lose.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(status);
        }
    }
}
