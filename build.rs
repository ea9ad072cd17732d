//! `WENGERT_ONE_ISA=1` compiles kernels for the base instruction set alone: the same bits, slower,
//! built in a fraction of the time. For daily work on what is not a kernel.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(one_isa)");
    println!("cargo::rerun-if-env-changed=WENGERT_ONE_ISA");
    if std::env::var("WENGERT_ONE_ISA").is_ok_and(|value| value == "1") {
        println!("cargo::rustc-cfg=one_isa");
    }
}
