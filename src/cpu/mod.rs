//! CPU kernels.

pub mod convert;
pub mod moves;
pub mod nest;
