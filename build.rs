//! `WENGERT_ONE_ISA=1` compiles kernels for the base instruction set alone: the same bits, slower,
//! built in a fraction of the time. For daily work on what is not a kernel.
//!
//! `WENGERT_SANITIZE=1` makes a build for the address sanitizer (`make sanitize`): every buffer comes
//! from the system allocator and goes back there, and the bytes behind what was asked for are
//! poisoned.

fn main() {
    for (variable, cfg) in [("WENGERT_ONE_ISA", "one_isa"), ("WENGERT_SANITIZE", "sanitized")] {
        println!("cargo::rustc-check-cfg=cfg({cfg})");
        println!("cargo::rerun-if-env-changed={variable}");
        if std::env::var(variable).is_ok_and(|value| value == "1") {
            println!("cargo::rustc-cfg={cfg}");
        }
    }
}
