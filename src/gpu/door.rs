//! What the rest of the engine asks of GPUs: which exist, and their executors.
//!
//! Promises: no driver is opened before the first of these questions; nothing here waits in a
//! process that was forked from one with an open driver.

// Without the feature no device is ever open, so that nothing is asked of it.
#![cfg_attr(not(feature = "gpu"), allow(unused_variables))]

#[cfg(feature = "gpu")]
use super::adapter;
use crate::device::{Description, Device};
use crate::error::{self, Error, Result};
use crate::executor::Executor;
use crate::memory::Stats;

/// The kinds of devices of this build, in words.
pub const KINDS: &str =
    if cfg!(feature = "gpu") { "cpu, reference and gpu" } else { "cpu and reference" };

/// The reason why this process has no GPU.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// This build cannot run shaders
    Left,
    /// A parent opened the driver before it forked, and its threads are not here
    Forked,
    /// No driver offers an adapter
    Empty,
    /// The setting names no adapter: its value, and what there is
    Setting(String, String),
}

/// What was looked for among adapters.
pub type Sought<T> = std::result::Result<T, Trouble>;

impl Trouble {
    /// The error of a call that asks for a GPU by a name.
    #[cold]
    pub fn of(&self, op: &str, name: &str) -> Error {
        let facts = match self {
            Trouble::Left => "this build of wengert is without the feature gpu",
            Trouble::Forked => {
                "this process was forked from one that uses GPUs, whose driver does not survive \
                 that; start processes with \"spawn\" or \"forkserver\""
            }
            Trouble::Empty => {
                "no driver offers an adapter: this machine has cpu and reference; install a driver \
                 for WebGPU's backends (Debian's mesa-vulkan-drivers has one that needs no GPU)"
            }
            Trouble::Setting(got, known) => {
                return error::bad_setting(crate::settings::ADAPTER.name(), got, known);
            }
        };
        error::no_gpu(op, name, facts)
    }
}

/// How many adapters there are; where there is none, the reason.
#[cfg(feature = "gpu")]
pub fn ready() -> Sought<u8> {
    adapter::count()
}

/// How many adapters there are; where there is none, the reason.
#[cfg(not(feature = "gpu"))]
pub fn ready() -> Sought<u8> {
    Err(Trouble::Left)
}

/// How many adapters there are. A driver in trouble has none; only a wrong setting is an error.
pub fn count() -> Result<u8> {
    match ready() {
        Err(trouble @ Trouble::Setting(..)) => Err(trouble.of("devices", "gpu")),
        Err(_) => Ok(0),
        Ok(count) => Ok(count),
    }
}

/// Whether there is an adapter of this number.
pub fn is_present(index: u8) -> bool {
    count().is_ok_and(|count| index < count)
}

/// What is known of an adapter.
pub fn describe(index: u8) -> Result<Description> {
    let name = Device::Gpu(index).name();
    ready().map_err(|trouble| trouble.of("device_info", name))?;
    #[cfg(feature = "gpu")]
    if let Some(info) = adapter::info(index) {
        return Ok(info.description.clone());
    }
    Err(error::no_gpu("device_info", name, "no adapter has this number"))
}

/// The numbers of the devices that are open.
pub fn opened() -> impl Iterator<Item = u8> {
    #[cfg(feature = "gpu")]
    let is_open = |index: &u8| super::run::device::opened(*index).is_some();
    #[cfg(not(feature = "gpu"))]
    let is_open = |_: &u8| false;
    (0..Device::GPUS).filter(is_open)
}

/// The memory of a device's values.
pub fn memory_stats(index: u8) -> Result<Stats> {
    #[cfg(feature = "gpu")]
    if let Some(gpu) = super::run::device::opened(index) {
        gpu.check("memory_stats")?;
        return Ok(gpu.pool.lock().stats());
    }
    Ok(Stats { live_bytes: 0, cached_bytes: 0, peak_bytes: 0, limit: None, live_buffers: 0 })
}

/// Where compiled shaders of a device are kept on disk, or why they are not, and counts.
pub fn shader_cache(index: u8) -> (String, Vec<(&'static str, u64)>) {
    #[cfg(feature = "gpu")]
    if let Some(gpu) = super::run::device::opened(index) {
        return match &gpu.cache {
            Ok(cache) => (cache.folder().display().to_string(), cache.counts().to_vec()),
            Err(why) => (why.to_string(), Vec::new()),
        };
    }
    ("not opened yet".into(), Vec::new())
}

/// Waits for the work of a device, so that its times are known. One that is lost has none.
pub fn finish(index: u8) -> Result<()> {
    #[cfg(feature = "gpu")]
    if let Some(gpu) = super::run::device::opened(index)
        && gpu.check("profile").is_ok()
    {
        return gpu.finish_all();
    }
    Ok(())
}

/// Sets the most bytes that a device may hold.
pub fn set_memory_limit(index: u8, limit: Option<usize>) -> Result<()> {
    #[cfg(feature = "gpu")]
    return super::run::device::open(index)
        .map(|gpu| gpu.pool.lock().set_limit(limit.map(|limit| limit as u64)));
    #[cfg(not(feature = "gpu"))]
    Err(Trouble::Left.of("set_memory_limit", Device::Gpu(index).name()))
}

/// Forgets the most bytes that a device held.
pub fn reset_peak(index: u8) {
    #[cfg(feature = "gpu")]
    if let Some(gpu) = super::run::device::opened(index).filter(|gpu| gpu.is_here()) {
        gpu.pool.lock().reset_peak();
    }
}

/// To be called once nothing uses devices any more: they take no more work. Says whether a driver's
/// compiler is at work, whose memory must not go before it rests.
pub fn close() -> bool {
    #[cfg(feature = "gpu")]
    return (0..Device::GPUS)
        .filter_map(super::run::device::opened)
        .fold(false, |is_busy, gpu| gpu.close() | is_busy);
    #[cfg(not(feature = "gpu"))]
    false
}

/// Makes a device count as lost. For tests.
pub fn lose(index: u8, why: &str) {
    #[cfg(feature = "gpu")]
    if let Some(gpu) = super::run::device::opened(index) {
        gpu.lose(why.into());
    }
}

/// The executor of an adapter, which is opened when somebody first asks. Unwinds with an error
/// where there is none.
pub fn executor(index: u8) -> &'static dyn Executor {
    #[cfg(feature = "gpu")]
    return match super::run::device::open(index) {
        Ok(gpu) => gpu,
        Err(refusal) => error::throw(refusal),
    };
    #[cfg(not(feature = "gpu"))]
    error::throw(Trouble::Left.of("execute", Device::Gpu(index).name()))
}
