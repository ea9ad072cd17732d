//! What is known of this machine's processor.

use std::env::consts::ARCH;

use crate::device::Description;
use crate::simd::{self, Isa};
use crate::threads;

/// Its name, the instruction set in use, those it could use, and how many threads work on a job.
pub fn describe() -> Description {
    let levels = Isa::ALL.into_iter().filter(|isa| isa.is_available());
    Description {
        name: name().unwrap_or_else(|| ARCH.into()),
        backend: format!("{ARCH} {}", simd::isa().name()),
        kind: "cpu",
        driver: concat!("wengert ", env!("CARGO_PKG_VERSION")).into(),
        limits: vec![("threads", threads::num_threads() as u64)],
        features: levels.map(|isa| isa.name().into()).collect(),
    }
}

/// The name that the processor says itself.
#[cfg(target_arch = "x86_64")]
fn name() -> Option<String> {
    use std::arch::x86_64::__cpuid;
    const FIRST: u32 = 0x8000_0002;
    const LAST: u32 = 0x8000_0004;
    if __cpuid(0x8000_0000).eax < LAST {
        return None;
    }
    let parts = (FIRST..=LAST).map(__cpuid);
    let bytes: Vec<u8> = parts
        .flat_map(|part| [part.eax, part.ebx, part.ecx, part.edx])
        .flat_map(u32::to_le_bytes)
        .take_while(|&byte| byte != 0)
        .collect();
    let text = String::from_utf8_lossy(&bytes).trim().to_string();
    (!text.is_empty()).then_some(text)
}

/// The name that the processor says itself.
#[cfg(not(target_arch = "x86_64"))]
fn name() -> Option<String> {
    None
}
