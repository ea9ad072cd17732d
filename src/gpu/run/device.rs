//! Opened devices.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;

use super::cache::{self, Cache};
use super::key::Kernels;
use super::memory::{Constants, Pool};
use super::pipeline::Pipeline;
use super::queue::Stream;
use super::staging::Ring;
use super::submit::Groups;
use super::times::Clock;
use super::work::{Job, Run};
use crate::device::Device;
use crate::error::{self, Result};
use crate::gpu::target::Shaders;
use crate::gpu::{Trouble, adapter};
use crate::target::{Abilities, Tiling};
use crate::{fork, settings};

/// The most devices of a process.
const MOST: usize = Device::GPUS as usize;

/// A device with all that belongs to it. It is never closed.
pub struct Gpu {
    /// Its number
    pub index: u8,
    /// wgpu's device
    pub raw: wgpu::Device,
    /// wgpu's queue
    pub queue: wgpu::Queue,
    /// What plans may ask of it
    pub target: Shaders,
    /// The alignment of offsets of uniform buffers
    pub uniform_alignment: usize,
    /// The most bytes of a buffer, of which shaders may bind fewer
    pub largest_buffer: u64,
    /// Whether its driver compiles a shader when it first runs
    pub compiles_late: bool,
    /// Its own clock, where it has one
    pub clock: Option<Clock>,
    /// What is given and not done yet
    pub stream: Mutex<Stream>,
    /// Something was given, or done
    pub changed: Condvar,
    /// Buffers
    pub pool: Mutex<Pool>,
    /// Bind groups of dispatches that ran
    pub groups: Mutex<Groups>,
    /// What large uploads go through
    pub uploads: Arc<Ring>,
    /// Compiled shaders on disk, or why there are none
    pub cache: std::result::Result<Cache, &'static str>,
    /// Shaders by their texts
    pub pipelines: Mutex<HashMap<String, Arc<Pipeline>>>,
    /// Layouts of bindings by their counts
    pub layouts: Mutex<FxHashMap<usize, wgpu::BindGroupLayout>>,
    /// Kernels of ops that ran
    pub kernels: Mutex<Kernels>,
    /// Constants of plans
    pub constants: Mutex<Constants>,
    /// A job that is done
    pub done: Arc<Job>,
    /// Why it does not work any more
    lost: Arc<OnceLock<String>>,
    /// An error that nobody was waiting for
    trouble: Arc<Mutex<Option<String>>>,
    /// Of which generation of forked processes it is
    generation: usize,
}

static OPEN: [OnceLock<Result<&'static Gpu>>; MOST] = [const { OnceLock::new() }; MOST];

/// Pieces of large uploads: callers fill some while the device copies others.
const UPLOADS: usize = 8;

/// The most threads that compile shaders of a device.
const MOST_COMPILERS: usize = 4;

/// The device of a number, opened when it is first asked for.
pub fn open(index: u8) -> Result<&'static Gpu> {
    OPEN[index as usize].get_or_init(|| start(index)).clone()
}

/// The device of a number, if it was opened.
pub fn opened(index: u8) -> Option<&'static Gpu> {
    OPEN[index as usize].get()?.as_ref().ok().copied()
}

fn start(index: u8) -> Result<&'static Gpu> {
    let adapter::Opened { device: raw, queue, trouble, info, cache_key } = adapter::open(index)?;
    let own = raw.limits();
    let most = settings::GPU_BUFFER.value().and_then(|text| text.parse().ok());
    let largest_buffer = own.max_buffer_size.min(most.unwrap_or(u64::MAX)).max(256) & !255;
    let largest = own.max_storage_buffer_binding_size.min(largest_buffer) & !255;
    let buffers = own.max_storage_buffers_per_shader_stage as usize;
    let is_software = info.description.kind == "software";
    let tiling = match settings::PRODUCTS.value().as_deref() {
        Some("blocks") => Tiling::Never,
        Some("tiles") => Tiling::Always,
        // Workgroup memory of a processor is memory like any other.
        _ if is_software => Tiling::Never,
        _ => Tiling::Large,
    };
    let wants_subgroups = settings::SUBGROUPS.value().as_deref() != Some("off");
    let abilities = Abilities {
        has_f16: info.features.contains(wgpu::Features::SHADER_F16),
        has_subgroups: info.has_subgroups && wants_subgroups,
        busy: if is_software { 1 << 12 } else { Abilities::LEAST.busy },
        tiling,
    };
    let name = Device::Gpu(index).name();
    let target = Shaders::new(name, buffers, largest as usize, largest_buffer as usize);
    let target = target.able(abilities);
    let lost: Arc<OnceLock<String>> = Arc::default();
    let reason = lost.clone();
    raw.set_device_lost_callback(move |_, message| {
        let _ = reason.set(message);
    });
    let gpu: &'static Gpu = Box::leak(Box::new(Gpu {
        index,
        uniform_alignment: own.min_uniform_buffer_offset_alignment as usize,
        largest_buffer,
        compiles_late: info.description.kind == "software",
        clock: Clock::of(info.features, &queue),
        raw,
        queue,
        target,
        stream: Mutex::default(),
        changed: Condvar::new(),
        pool: Mutex::default(),
        groups: Mutex::default(),
        uploads: Ring::new(wgpu::MapMode::Write, UPLOADS),
        cache: match (cache::folder(), cache_key) {
            (None, _) => Err("off"),
            (Some(_), None) => Err("its driver gives no compiled shaders"),
            (Some(folder), Some(key)) => Cache::open(folder, key).ok_or("no thread for it"),
        },
        pipelines: Mutex::default(),
        layouts: Mutex::default(),
        kernels: Mutex::default(),
        constants: Mutex::default(),
        done: Job::new(Run::done()),
        lost,
        trouble,
        generation: fork::generation(),
    }));
    let start = |name: &str, work: fn(&'static Gpu)| {
        let thread = std::thread::Builder::new().name(name.into());
        thread.spawn(move || work(gpu)).map(drop).map_err(|problem| {
            error::device_lost("open", gpu.device(), format!("no thread for it: {problem}"))
        })
    };
    start("wengert-gpu", Gpu::serve)?;
    let compilers = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_COMPILERS);
    for _ in 0..compilers {
        start("wengert-wgsl", Gpu::compile_all)?;
    }
    Ok(gpu)
}

impl Gpu {
    /// As values name it.
    pub fn device(&self) -> Device {
        Device::Gpu(self.index)
    }

    /// Whether this is the process that opened it.
    pub fn is_here(&self) -> bool {
        self.generation == fork::generation()
    }

    /// Refuses a device that cannot work any more.
    pub fn check(&self, op: &str) -> Result<()> {
        if !self.is_here() {
            return Err(Trouble::Forked.of(op, self.device().name()));
        }
        if let Some(problem) = self.trouble.lock().take() {
            self.lose(problem);
        }
        match self.lost.get() {
            Some(why) => Err(error::device_lost(op, self.device(), why)),
            None => Ok(()),
        }
    }

    /// Says why it does not work any more.
    pub fn lose(&self, why: String) {
        let _ = self.lost.set(why);
    }
}

/// What a future of wgpu gives, which on native devices is there at once.
pub fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    adapter::block_on(future)
}
