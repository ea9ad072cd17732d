//! Sites from Python frames: interned code objects and instruction offsets.
//!
//! Frames of wengert's own Python files are passed over, so that a node made inside `nn` is
//! attributed to the user's line.

use std::cell::Cell;
use std::os::raw::c_int;
use std::sync::OnceLock;

use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;
use rustc_hash::FxHashMap;

use crate::engine::site::{self, Provider, Site};
use crate::module_scope::ModuleScope;

unsafe extern "C" {
    fn PyFrame_GetLasti(frame: *mut ffi::PyFrameObject) -> c_int;
}

/// Code objects seen so far, kept alive by the table; a site holds the number of one.
#[derive(Default)]
struct Codes {
    numbers: FxHashMap<usize, u32>,
    objects: Vec<Py<PyAny>>,
    internal: Vec<bool>,
}

static CODES: Mutex<Option<Codes>> = Mutex::new(None);

/// More code objects than this are not told apart: a program that makes code without end must not
/// make the table grow without end.
const LIMIT: usize = 1 << 16;

/// Lets the engine ask for the running line, and plans print, spell lines and be broken off.
pub fn start() {
    site::install(Provider { current, describe, quote });
    crate::executor::install(crate::executor::Hooks {
        print: super::print::print,
        interrupted: super::interrupt::interrupted,
        aside: super::interrupt::aside,
    });
}

thread_local! {
    /// The last code object asked for: its address, number, and whether it is ours. The table keeps
    /// it alive, so the address stays its own.
    static LAST: Cell<(usize, u32, bool)> = const { Cell::new((0, 0, false)) };
}

fn number(code: *mut ffi::PyObject) -> (u32, bool) {
    let (address, n, internal) = LAST.get();
    if address == code as usize {
        return (n, internal);
    }
    let (n, internal) = look_up(code);
    if n != 0 {
        LAST.set((code as usize, n, internal));
    }
    (n, internal)
}

fn look_up(code: *mut ffi::PyObject) -> (u32, bool) {
    let known = |codes: &Codes| {
        let n = *codes.numbers.get(&(code as usize))?;
        Some((n, codes.internal[n as usize - 1]))
    };
    if let Some(found) = CODES.lock().as_ref().and_then(known) {
        return found;
    }
    // SAFETY: recording happens on an attached thread (sites are pinned before detaching).
    let py = unsafe { Python::assume_attached() };
    // SAFETY: the code object is alive: a running frame holds it.
    let object: Py<PyAny> = unsafe { Bound::from_borrowed_ptr(py, code) }.unbind();
    // Not under the lock: another thread may wait for that with the interpreter in its hands.
    let file: PyResult<String> = object.getattr(py, "co_filename").and_then(|f| f.extract(py));
    let internal = file.is_ok_and(|f| is_internal(&f));
    let mut codes = CODES.lock();
    let codes = codes.get_or_insert_with(Codes::default);
    if let Some(found) = known(codes) {
        return found;
    }
    if codes.objects.len() >= LIMIT {
        return (0, false);
    }
    codes.objects.push(object);
    codes.internal.push(internal);
    let n = codes.objects.len() as u32;
    codes.numbers.insert(code as usize, n);
    (n, internal)
}

/// Where wengert's own Python files lie.
static PACKAGE: OnceLock<String> = OnceLock::new();

/// Says where the package's own files lie: provenance looks through them.
#[pyfunction]
fn _set_package(directory: String) {
    let _ = PACKAGE.set(directory);
}

fn is_internal(file: &str) -> bool {
    PACKAGE.get().is_some_and(|package| file.starts_with(package.as_str()))
}

fn current() -> (u32, u32) {
    // SAFETY: called on an attached thread; every reference taken is released.
    unsafe {
        let mut frame = ffi::PyThreadState_GetFrame(ffi::PyThreadState_Get());
        while !frame.is_null() {
            let code = ffi::PyFrame_GetCode(frame);
            let (code_number, internal) = number(code.cast());
            ffi::Py_DECREF(code.cast());
            let offset = PyFrame_GetLasti(frame);
            let back = if internal { ffi::PyFrame_GetBack(frame) } else { std::ptr::null_mut() };
            ffi::Py_DECREF(frame.cast());
            if !internal || back.is_null() {
                return (code_number, offset.max(0) as u32);
            }
            frame = back;
        }
    }
    (0, 0)
}

fn describe(site: Site) -> Option<String> {
    let (file, line) = location(site)?;
    Some(format!("{file}:{line}"))
}

fn quote(site: Site) -> Option<String> {
    let (file, line) = location(site)?;
    let text: Option<String> = Python::attach(|py| {
        let lines = py.import("linecache").ok()?;
        lines.call_method1("getline", (&file, line)).ok()?.extract().ok()
    });
    let text = text.unwrap_or_default();
    let text = text.trim();
    Some(if text.is_empty() { format!("{file}:{line}") } else { format!("{file}:{line}: {text}") })
}

/// The modules of a site, as `GPT/blocks.0`, if there are any.
pub fn scope_text(site: Site) -> Option<String> {
    let names = site.scope.names();
    (!names.is_empty()).then(|| names.join("/"))
}

/// Says that a module is called by the one that runs, under a name; what `_leave_module` takes.
#[pyfunction]
fn _enter_module(name: &str) -> u32 {
    ModuleScope::running().child(name).replace().number()
}

/// Says that the call has ended.
#[pyfunction]
fn _leave_module(before: u32) {
    ModuleScope::from_number(before).replace();
}

/// Adds functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(pyo3::wrap_pyfunction!(_set_package, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_enter_module, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_leave_module, module)?)
}

/// File and line of a site.
pub fn location(site: Site) -> Option<(String, i32)> {
    if site.code == 0 {
        return None;
    }
    Python::attach(|py| {
        let code = CODES.lock().as_ref()?.objects.get(site.code as usize - 1)?.clone_ref(py);
        // SAFETY: the object is a code object, kept alive here.
        let line = unsafe { ffi::PyCode_Addr2Line(code.as_ptr().cast(), site.offset as c_int) };
        let file = code.getattr(py, "co_filename").ok()?;
        let file = file.cast_bound::<PyString>(py).ok()?.to_string();
        Some((file, line))
    })
}
