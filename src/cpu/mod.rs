//! CPU kernels.

pub mod contract;
pub mod convert;
mod gemm;
pub mod moves;
pub mod nest;
#[cfg(test)]
mod testing;
pub mod program;
