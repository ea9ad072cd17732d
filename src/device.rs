//! Devices: where values lie, and the one that a thread makes new values on.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Where values lie and ops run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// This machine's processor
    Cpu,
    /// Plain loops over memory of their own, for comparison
    Reference,
    /// An adapter that runs compute shaders, by its number: less than [`Device::GPUS`]
    Gpu(u8),
}

/// The names of adapters. The first has two: "gpu:0" is "gpu".
const GPU_NAMES: [&str; Device::GPUS as usize] = [
    "gpu", "gpu:1", "gpu:2", "gpu:3", "gpu:4", "gpu:5", "gpu:6", "gpu:7", "gpu:8", "gpu:9",
    "gpu:10", "gpu:11", "gpu:12", "gpu:13", "gpu:14", "gpu:15",
];

impl Device {
    /// The most adapters that have a name.
    pub const GPUS: u8 = 16;

    /// The devices that every machine has.
    pub const EVERYWHERE: [Device; 2] = [Device::Cpu, Device::Reference];

    /// How many devices have a name.
    pub const COUNT: usize = Device::EVERYWHERE.len() + Device::GPUS as usize;

    /// All devices that have a name, whether or not they exist here, in the order of
    /// [`number`](Device::number).
    pub fn all() -> impl Iterator<Item = Device> {
        Device::EVERYWHERE.into_iter().chain((0..Device::GPUS).map(Device::Gpu))
    }

    /// The place in [`all`](Device::all).
    pub const fn number(self) -> usize {
        match self {
            Device::Cpu => 0,
            Device::Reference => 1,
            Device::Gpu(index) => 2 + index as usize,
        }
    }

    /// The name in Python and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Device::Cpu => "cpu",
            Device::Reference => "reference",
            Device::Gpu(index) => GPU_NAMES[index as usize],
        }
    }

    /// The name without the number of an adapter.
    pub const fn kind(self) -> &'static str {
        match self {
            Device::Cpu => "cpu",
            Device::Reference => "reference",
            Device::Gpu(_) => "gpu",
        }
    }

    /// The number among the devices of this kind.
    pub const fn index(self) -> u8 {
        match self {
            Device::Cpu | Device::Reference => 0,
            Device::Gpu(index) => index,
        }
    }

    /// The device of a name, whether or not it exists here.
    pub fn named(name: &str) -> Option<Device> {
        let name = if name == "gpu:0" { "gpu" } else { name };
        Device::all().find(|device| device.name() == name)
    }

    /// Makes this the device of new values on this thread, as long as the result lives.
    pub fn enter(self) -> Entered {
        Entered(set_current(self))
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What is known of a device.
#[derive(Clone, Debug)]
pub struct Description {
    /// The name that its maker gives it
    pub name: String,
    /// The interface it is reached by
    pub backend: String,
    /// One word: discrete, integrated, virtual, software or other for adapters, else the kind
    pub kind: &'static str,
    /// The driver, with its version
    pub driver: String,
    /// What it has how much of
    pub limits: Vec<(&'static str, u64)>,
    /// What it can do besides
    pub features: Vec<String>,
}

thread_local! {
    static CURRENT: Cell<Device> = const { Cell::new(Device::Cpu) };
}

/// Whether some thread ever made new values elsewhere than on the processor. Until then nobody has
/// to find his thread's device, which is asked for several times in every call.
static IS_CHOSEN: AtomicBool = AtomicBool::new(false);

/// The device of values that this thread makes of no other value.
#[inline]
pub fn current() -> Device {
    if IS_CHOSEN.load(Relaxed) { CURRENT.get() } else { Device::Cpu }
}

/// Sets the device of new values on this thread; gives what it was.
pub fn set_current(device: Device) -> Device {
    if device != Device::Cpu {
        IS_CHOSEN.store(true, Relaxed);
    }
    CURRENT.replace(device)
}

/// A device of new values, until it is dropped.
pub struct Entered(Device);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_names_its_device() {
        for (number, device) in Device::all().enumerate() {
            assert_eq!((Device::named(device.name()), device.number()), (Some(device), number));
        }
        assert_eq!(Device::all().count(), Device::COUNT);
        assert_eq!(Device::named("gpu:0"), Some(Device::Gpu(0)));
        assert_eq!(Device::Gpu(1).to_string(), "gpu:1");
        for name in ["", "GPU", "gpu:", "gpu:00", "gpu:16", "gpu: 1", "gpu:-1", "cpu:0", "cuda"] {
            assert_eq!(Device::named(name), None, "{name}");
        }
    }
}
