//! What the process keeps: memory, threads, the random generator.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::engine::executors::{self, Device, device};
use crate::engine::pending;
use crate::engine::random;
use crate::engine::tape::{self};
use crate::engine::trace;
use crate::engine::transfer::placed;
use crate::error;
use crate::memory;
use crate::py::convert;
use crate::py::errors::{OrRaise, to_python};
use crate::py::tensor::wrap;
use crate::simd::Isa;
use crate::threads;

/// What the tape holds: `nodes`, the live entries.
#[pyfunction]
fn graph_stats(py: Python<'_>) -> PyResult<Py<PyDict>> {
    let stats = PyDict::new(py);
    stats.set_item("nodes", tape::live_nodes())?;
    Ok(stats.unbind())
}

/// Bytes of buffers: `live_bytes`, `cached_bytes`, `peak_bytes`, `limit` (None: the machine's), of
/// the CPU or of another device. The memory of the reference is counted with that of the CPU.
#[pyfunction]
#[pyo3(signature = (device = None))]
fn memory_stats(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyDict>> {
    let device = device_of("memory_stats", device)?;
    let now = executors::memory_stats(device).or_raise(py)?;
    let stats = PyDict::new(py);
    stats.set_item("live_bytes", now.live_bytes)?;
    stats.set_item("cached_bytes", now.cached_bytes)?;
    stats.set_item("peak_bytes", now.peak_bytes)?;
    stats.set_item("live_buffers", now.live_buffers)?;
    stats.set_item("limit", now.limit)?;
    Ok(stats.unbind())
}

/// The device of a keyword; the CPU for none.
fn device_of(op: &str, device: Option<&Bound<'_, PyAny>>) -> PyResult<Device> {
    let device = device.map(|device| convert::device(op, device)).transpose()?;
    Ok(device.flatten().unwrap_or(Device::Cpu))
}

/// Starts measuring `peak_bytes` anew, of the CPU or of another device.
#[pyfunction]
#[pyo3(signature = (device = None))]
fn reset_peak_memory(device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    executors::reset_peak(device_of("reset_peak_memory", device)?);
    Ok(())
}

/// Refuses allocations beyond `limit` bytes with MemoryError, on the CPU or on another device; None
/// lifts the limit. On a GPU the bytes of buffers that are kept for reuse count too.
#[pyfunction]
#[pyo3(signature = (limit, device = None))]
fn set_memory_limit(
    py: Python<'_>,
    limit: Option<usize>,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    executors::set_memory_limit(device_of("set_memory_limit", device)?, limit).or_raise(py)
}

/// Makes a GPU count as lost. For tests.
#[pyfunction]
fn _lose_device(device: &Bound<'_, PyAny>, why: &str) -> PyResult<()> {
    executors::lose(device_of("lose", Some(device))?, why);
    Ok(())
}

/// The instruction sets that kernels of this build have and the processor can run, best last.
#[pyfunction]
fn _instruction_sets() -> Vec<&'static str> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available()).map(Isa::name).collect()
}

/// Refuses one buffer after `allowed` further ones, for tests of what a failure leaves behind; None
/// refuses none. Gives how many were still allowed.
#[pyfunction]
#[pyo3(signature = (allowed))]
fn _refuse_buffer(allowed: Option<usize>) -> Option<usize> {
    memory::refuse_after(allowed)
}

/// Sets from how many bytes of an operand on eager elementwise ops wait for others, for tests; None is
/// what the environment says. Gives what it was.
#[pyfunction]
#[pyo3(signature = (bytes))]
fn _pend_from(bytes: Option<usize>) -> usize {
    pending::set_least(bytes)
}

/// Gives cached buffers back to the system.
#[pyfunction]
fn release_cached_memory() {
    memory::release_cached();
}

/// Threads that large ops use. Results do not depend on it.
#[pyfunction]
fn set_num_threads(py: Python<'_>, count: i64) -> PyResult<()> {
    if !(1..=4096).contains(&count) {
        let facts = format!("got {count}");
        return Err(to_python(
            py,
            error::bad_value("set_num_threads", "the count must be in 1..=4096", facts),
        ));
    }
    threads::set_num_threads(count as usize);
    Ok(())
}

/// Threads that large ops use.
#[pyfunction]
fn get_num_threads() -> usize {
    threads::num_threads()
}

/// Seeds the global generator. Refused while a function is captured, whose numbers are fresh at
/// every call.
#[pyfunction]
fn seed(py: Python<'_>, seed: i128) -> PyResult<()> {
    trace::check_seeding().or_raise(py)?;
    random::set_state(random::State { key: random::seed_key(seed as u64), drawn: 0 });
    Ok(())
}

/// A key: a uint32 tensor of shape (2,) that determines random numbers wherever it is passed.
#[pyfunction]
fn key(py: Python<'_>, seed: i128) -> PyResult<Py<PyAny>> {
    let key = random::key_value(random::seed_key(seed as u64)).or_raise(py)?;
    let key = placed(key, device::current()).or_raise(py)?;
    wrap(py, trace::lift(key).or_raise(py)?)
}

/// The next key of the global generator.
#[pyfunction]
fn next_key(py: Python<'_>) -> PyResult<Py<PyAny>> {
    wrap(py, random::draw().or_raise(py)?)
}

/// The next key of a generator whose state is given, and its state afterwards.
#[pyfunction]
fn _next_of(py: Python<'_>, state: (u32, u32, u64)) -> PyResult<(Py<PyAny>, (u32, u32, u64))> {
    let mut state = random::State { key: [state.0, state.1], drawn: state.2 };
    let key = random::key_value(random::next_of(&mut state)).or_raise(py)?;
    Ok((wrap(py, key)?, (state.key[0], state.key[1], state.drawn)))
}

/// What `f` returns. Where it raises, the keys that it drew from the global generator are given
/// back.
#[pyfunction]
fn _attempt(f: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    random::Attempt::make(|| f.call0().map(Bound::unbind))
}

/// The state of the global generator, as a tuple to keep.
#[pyfunction]
fn get_state() -> (u32, u32, u64) {
    let state = random::seen_state();
    (state.key[0], state.key[1], state.drawn)
}

/// Puts back a state of the global generator. While a function is captured these are states of its
/// own keys, which are fresh at every call.
#[pyfunction]
fn set_state(py: Python<'_>, state: (u32, u32, u64)) -> PyResult<()> {
    let state = random::State { key: [state.0, state.1], drawn: state.2 };
    random::set_seen_state(state).or_raise(py)
}

/// Adds what is here to the module, and to its namespace `random`.
pub(super) fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    macro_rules! functions {
        ($home:expr; $($name:ident),+) => {
            $($home.add_function(pyo3::wrap_pyfunction!($name, $home)?)?;)+
        };
    }
    functions!(module; graph_stats, _lose_device, memory_stats, reset_peak_memory, set_memory_limit,
        release_cached_memory, _instruction_sets, _pend_from, _refuse_buffer, set_num_threads,
        get_num_threads, _attempt);
    let random = match module.getattr("random") {
        Ok(random) => random.cast_into::<PyModule>()?,
        Err(_) => {
            let random = PyModule::new(py, "wengert._core.random")?;
            random.setattr("__all__", pyo3::types::PyList::empty(py))?;
            module.setattr("random", &random)?;
            random
        }
    };
    functions!(&random; seed, key, next_key, get_state, set_state, _next_of);
    Ok(())
}
