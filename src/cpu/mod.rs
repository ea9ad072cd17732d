//! CPU kernels.

pub mod about;
pub mod attention;
mod caches;
pub mod calls;
pub mod contract;
pub mod conv;
pub mod convert;
pub mod copy;
pub mod create;
mod dense;
mod depth;
mod depthwise;
mod direct;
pub mod element;
mod execute;
mod few;
mod gemm;
pub mod indexing;
mod innermost;
#[cfg(all(target_arch = "x86_64", unix))]
mod jit;
#[cfg(not(all(target_arch = "x86_64", unix)))]
#[path = "jit/none.rs"]
mod jit;
pub mod moves;
pub mod nest;
pub mod norm;
mod pool;
mod product;
pub mod program;
mod recurrent;
pub mod reduce;
mod rows;
mod run;
#[cfg(test)]
mod samples;
pub mod scan;
mod softmax;
pub mod sort;
mod sweep;
#[cfg(test)]
pub(crate) mod testing;
pub use contract::Factor;
pub use create::threefry;
pub use depth::depth;
pub use execute::*;
pub use few::Few;
pub use gemm::{Epilogue, Extras, Packed};
pub use product::{Feed, Prelude, Sequel, is_product, packed, product_into, reads};
pub mod target;
pub mod window;
