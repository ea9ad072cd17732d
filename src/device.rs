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
}

impl Device {
    /// All devices of this build.
    pub const ALL: [Device; 2] = [Device::Cpu, Device::Reference];

    /// The name in Python and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Device::Cpu => "cpu",
            Device::Reference => "reference",
        }
    }

    /// The device of a name.
    pub fn named(name: &str) -> Option<Device> {
        Device::ALL.into_iter().find(|device| device.name() == name)
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
