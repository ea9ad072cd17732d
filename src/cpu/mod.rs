//! CPU kernels.

pub mod contract;
pub mod convert;
pub mod copy;
mod gemm;
pub mod moves;
pub mod nest;
pub mod program;
#[cfg(test)]
mod testing;
