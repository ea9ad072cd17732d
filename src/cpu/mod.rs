//! CPU kernels.

pub mod moves;
pub mod nest;
