//! Signals that arrive while a plan runs, such as that of Ctrl-C.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::errors::foreign;
use crate::error::Result;
use crate::threads;

unsafe extern "C" {
    // Says whether SIGINT arrived, and forgets that it did; never on another thread than Python's
    // main one.
    fn PyOS_InterruptOccurred() -> std::os::raw::c_int;
}

/// Signals are looked for no more often than this: it needs the interpreter's lock.
const PAUSE: Duration = Duration::from_millis(20);

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Whether this is the thread on which Python handles signals, once that is known.
    static IS_MAIN: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Whether a call of this moment looks at operands where they are. It holds the interpreter's lock, so
/// whoever has the lock and reads this is that call.
static LOOKING: AtomicBool = AtomicBool::new(false);

/// While it lives, signals wait: a handler might write the operands that are looked at. For calls
/// that hold the interpreter's lock until they end, which is soon.
#[must_use]
pub struct Unheard(());

impl Unheard {
    /// Lets signals wait.
    #[inline]
    pub fn new() -> Unheard {
        LOOKING.store(true, Relaxed);
        Unheard(())
    }
}

impl Drop for Unheard {
    #[inline]
    fn drop(&mut self) {
        LOOKING.store(false, Relaxed);
    }
}

/// The exception of a signal that arrived on this thread. While tensors are `given` to a run they
/// have no values, and a handler that looks at one would wait for ever: then no handler is called,
/// and only Ctrl-C counts, if nobody handles it otherwise.
pub fn interrupted(given: bool) -> Result<()> {
    if IS_MAIN.get() == Some(false) {
        return Ok(());
    }
    let now = Instant::now();
    if LAST.get().is_some_and(|last| now.duration_since(last) < PAUSE) {
        return Ok(());
    }
    LAST.set(Some(now));
    attached(|py| {
        if LOOKING.load(Relaxed) {
            return Ok(());
        }
        let look = || match given {
            true => pressed(py),
            false => {
                // A handler may run in this Python code already: what it raises is what was asked
                // for.
                if IS_MAIN.get().is_none() {
                    IS_MAIN.set(is_main(py)?);
                }
                py.check_signals()
            }
        };
        look().map_err(|exception| foreign(py, exception))
    })
}

/// Runs code of the user's in the middle of engine work, such as a hook: what may break off the
/// work does not break off this code.
pub fn attached<T>(code: impl FnOnce(Python<'_>) -> T) -> T {
    threads::apart(|| Python::attach(code))
}

/// Does something while other Python threads run.
pub fn aside(work: &mut (dyn FnMut() + Send)) {
    Python::attach(|py| py.detach(work));
}

/// None while nobody has imported `threading`: it takes whoever imports it for the main thread.
fn is_main(py: Python<'_>) -> PyResult<Option<bool>> {
    let modules = py.import("sys")?.getattr("modules")?;
    let Some(threading) = modules.cast::<PyDict>()?.get_item("threading")? else {
        return Ok(None);
    };
    let (main, this) =
        (threading.call_method0("main_thread")?, threading.call_method0("get_ident")?);
    main.getattr("ident")?.eq(this).map(Some)
}

/// KeyboardInterrupt, if Ctrl-C was pressed and Python's own handler is there.
fn pressed(py: Python<'_>) -> PyResult<()> {
    // SAFETY: called with the interpreter's lock held.
    if unsafe { PyOS_InterruptOccurred() } == 0 {
        return Ok(());
    }
    // The one in C, which is there: that of Python would be imported in the middle of a run.
    let signal = py.import("_signal")?;
    let handler = signal.call_method1("getsignal", (signal.getattr("SIGINT")?,))?;
    if handler.is(&signal.getattr("default_int_handler")?) {
        return Err(PyKeyboardInterrupt::new_err(()));
    }
    // Another handler gets it when the run has ended.
    // SAFETY: as above.
    unsafe { ffi::PyErr_SetInterrupt() };
    Ok(())
}
