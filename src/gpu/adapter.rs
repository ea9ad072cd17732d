//! Adapters: which there are, in which order they are numbered, and how one is opened.
//!
//! Promises: drivers are looked for once, when somebody first asks; the order stays the same as
//! long as the process lives; an adapter that is opened has all its limits, and those optional
//! features that shaders make use of.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::door::{Sought, Trouble};
use super::kernel::WORKGROUP;
use super::lanes::LANES;
use crate::device::{Description, Device};
use crate::error::{self, Result};
use crate::{fork, settings};

/// What is known of an adapter.
#[derive(Debug)]
pub struct Info {
    /// What a user is told
    pub description: Description,
    /// Its limits
    pub limits: wgpu::Limits,
    /// All optional features that it offers
    pub features: wgpu::Features,
    /// Whether eight neighbouring invocations of a workgroup always belong to one subgroup
    pub has_subgroups: bool,
}

/// An adapter that was opened.
pub struct Opened {
    /// Makes buffers and pipelines
    pub device: wgpu::Device,
    /// Takes work
    pub queue: wgpu::Queue,
    /// What is known of it. Its features are those that it was opened with
    pub info: Arc<Info>,
    /// Names adapter and driver to files of compiled shaders, where the driver gives such
    pub cache_key: Option<String>,
    /// The first error that nobody was waiting for, until somebody takes it
    pub trouble: Arc<Mutex<Option<String>>>,
}

/// An adapter, and what is known of it.
struct Found {
    adapter: wgpu::Adapter,
    info: Arc<Info>,
}

/// Optional features that shaders and times make use of.
const USEFUL: wgpu::Features = wgpu::Features::TIMESTAMP_QUERY
    .union(wgpu::Features::PIPELINE_CACHE)
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::SHADER_F16);

/// One more than the generation that looked for adapters; 0 while nobody did. It is looked at
/// before any lock is: in a child that was forked meanwhile, nobody would open that.
static OWNER: AtomicUsize = AtomicUsize::new(0);
static FOUND: OnceLock<Sought<Vec<Found>>> = OnceLock::new();

/// The adapters. The first call opens the drivers.
fn found() -> Sought<&'static [Found]> {
    let own = fork::generation() + 1;
    if OWNER.compare_exchange(0, own, Release, Acquire).is_err_and(|owner| owner != own) {
        return Err(Trouble::Forked);
    }
    match FOUND.get_or_init(look) {
        Ok(found) => Ok(found),
        Err(trouble) => Err(trouble.clone()),
    }
}

/// What is known of each adapter, in the order of their numbers.
pub fn adapters() -> Sought<Vec<Arc<Info>>> {
    Ok(found()?.iter().map(|found| found.info.clone()).collect())
}

/// How many adapters there are.
pub fn count() -> Sought<u8> {
    found().map(|found| found.len() as u8)
}

/// What is known of the adapter of a number.
pub fn info(index: u8) -> Option<Arc<Info>> {
    found().ok()?.get(usize::from(index)).map(|found| found.info.clone())
}

/// Opens an adapter.
pub fn open(index: u8) -> Result<Opened> {
    let name = Device::Gpu(index).name();
    let found = found().map_err(|trouble| trouble.of("open", name))?;
    let Some(Found { adapter, info }) = found.get(usize::from(index)) else {
        return Err(error::no_gpu("open", name, "no adapter has this number"));
    };
    let features = info.features & USEFUL;
    let wanted = wgpu::DeviceDescriptor {
        label: Some("wengert"),
        required_features: features,
        required_limits: info.limits.clone(),
        ..Default::default()
    };
    let opened = guarded(|| block_on(adapter.request_device(&wanted)));
    let (device, queue) = match opened {
        Some(Some(Ok(opened))) => opened,
        Some(Some(Err(refusal))) => return Err(error::no_gpu("open", name, refusal)),
        Some(None) | None => return Err(error::no_gpu("open", name, "its driver failed")),
    };
    let trouble = Arc::new(Mutex::new(None));
    let heard = trouble.clone();
    // Without a handler of ours such errors panic.
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
        heard.lock().get_or_insert_with(|| error.to_string());
    }));
    let info = Info {
        description: info.description.clone(),
        limits: device.limits(),
        features,
        has_subgroups: info.has_subgroups,
    };
    let about = adapter.get_info();
    let cache_key = features
        .contains(wgpu::Features::PIPELINE_CACHE)
        .then(|| wgpu::util::pipeline_cache_key(&about))
        .flatten()
        .map(|key| [key, about.name, about.driver, about.driver_info].join("\n"));
    Ok(Opened { device, queue, info: Arc::new(info), cache_key, trouble })
}

/// Looks for adapters that compute.
fn look() -> Sought<Vec<Found>> {
    let all = guarded(|| {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            flags: wgpu::InstanceFlags::empty(),
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        block_on(instance.enumerate_adapters(wgpu::Backends::all())).unwrap_or_default()
    });
    let mut found: Vec<Found> = Vec::new();
    for adapter in all.unwrap_or_default() {
        let about = adapter.get_info();
        let computes = adapter
            .get_downlevel_capabilities()
            .flags
            .contains(wgpu::DownlevelFlags::COMPUTE_SHADERS);
        // Where two interfaces reach one adapter, the first is taken.
        let is_known = found.iter().any(|other| {
            let other = other.adapter.get_info();
            (other.vendor, other.device) == (about.vendor, about.device)
                && other.backend != about.backend
        });
        if computes && !is_known {
            let info = Arc::new(describe(&adapter, about));
            found.push(Found { adapter, info });
        }
    }
    let saves = settings::POWER.value().as_deref() == Some("low");
    found.sort_by_key(|found| rank(found.info.description.kind, saves));
    if found.is_empty() {
        return Err(Trouble::Empty);
    }
    if let Some(wish) = settings::ADAPTER.value() {
        let names: Vec<&str> =
            found.iter().map(|found| found.info.description.name.as_str()).collect();
        let first = chosen(&wish, &names).ok_or_else(|| {
            let known = names.iter().enumerate().map(|(i, name)| format!("{i} ({name})"));
            Trouble::Setting(wish.clone(), known.collect::<Vec<_>>().join(", "))
        })?;
        found[..=first].rotate_right(1);
    }
    found.truncate(Device::GPUS.into());
    Ok(found)
}

/// The place of a kind in the order of adapters.
fn rank(kind: &str, saves_power: bool) -> u8 {
    match kind {
        "discrete" => u8::from(saves_power),
        "integrated" => u8::from(!saves_power),
        "virtual" => 2,
        "other" => 3,
        _ => 4,
    }
}

/// The adapter of a wish: a number, or a part of a name in any case.
fn chosen(wish: &str, names: &[&str]) -> Option<usize> {
    let number = wish.parse().ok().filter(|number| *number < names.len());
    let wish = wish.to_lowercase();
    number.or_else(|| names.iter().position(|name| name.to_lowercase().contains(&wish)))
}

fn describe(adapter: &wgpu::Adapter, about: wgpu::AdapterInfo) -> Info {
    let (limits, features) = (adapter.limits(), adapter.features());
    // Subgroups of other sizes than powers of two are on no device.
    let has_subgroups = features.contains(wgpu::Features::SUBGROUP)
        && about.subgroup_min_size as usize >= LANES
        && about.subgroup_max_size as usize <= WORKGROUP;
    let kind = match about.device_type {
        wgpu::DeviceType::DiscreteGpu => "discrete",
        wgpu::DeviceType::IntegratedGpu => "integrated",
        wgpu::DeviceType::VirtualGpu => "virtual",
        wgpu::DeviceType::Cpu => "software",
        wgpu::DeviceType::Other => "other",
    };
    let description = Description {
        name: about.name,
        backend: about.backend.to_str().into(),
        kind,
        driver: [about.driver, about.driver_info].join(" ").trim().into(),
        limits: figures(&limits),
        features: features.iter_names().map(|(name, _)| name.to_lowercase()).collect(),
    };
    Info { description, limits, features, has_subgroups }
}

/// Limits that say what compute shaders can have.
fn figures(limits: &wgpu::Limits) -> Vec<(&'static str, u64)> {
    macro_rules! pairs {
        ($($name:ident)+) => { vec![$((stringify!($name), limits.$name.into())),+] };
    }
    pairs!(
        max_buffer_size
        max_storage_buffer_binding_size
        max_uniform_buffer_binding_size
        max_storage_buffers_per_shader_stage
        max_uniform_buffers_per_shader_stage
        max_bind_groups
        max_bindings_per_bind_group
        max_dynamic_storage_buffers_per_pipeline_layout
        max_dynamic_uniform_buffers_per_pipeline_layout
        max_compute_invocations_per_workgroup
        max_compute_workgroup_size_x
        max_compute_workgroup_size_y
        max_compute_workgroup_size_z
        max_compute_workgroup_storage_size
        max_compute_workgroups_per_dimension
        max_immediate_size
        min_storage_buffer_offset_alignment
        min_uniform_buffer_offset_alignment
    )
}

/// The result of work inside a driver, unless it panics.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// The result of a future, if it has one at once, which all have outside browsers.
pub fn block_on<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_a_number_or_a_part_of_a_name() {
        let names = ["NVIDIA RTX 4090", "Intel Iris", "llvmpipe (LLVM 15)"];
        let cases = [("0", Some(0)), ("2", Some(2)), ("4090", Some(0)), ("iRiS", Some(1))];
        for (wish, want) in cases.into_iter().chain([("15", Some(2)), ("amd", None), ("3", None)]) {
            assert_eq!(chosen(wish, &names), want, "{wish}");
        }
    }

    #[test]
    fn kinds_have_an_order_that_power_turns_round() {
        let mut kinds = ["software", "other", "virtual", "integrated", "discrete"];
        kinds.sort_by_key(|kind| rank(kind, false));
        assert_eq!(kinds, ["discrete", "integrated", "virtual", "other", "software"]);
        kinds.sort_by_key(|kind| rank(kind, true));
        assert_eq!(kinds[..2], ["integrated", "discrete"]);
    }
}
