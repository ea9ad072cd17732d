//! Compute shaders: what steps of plans are on a device that runs WGSL.
//!
//! A shader is the text of one structure: the ops, the dtypes, which operands lie without gaps, and
//! which of them share memory. Sizes, strides and numbers are not part of the text; they come in
//! one uniform buffer, so that new sizes compile nothing. Elements lie on the device as they lie in
//! host memory, so that a transfer is a copy.
//!
//! An invocation computes four elements that follow each other. Four elements of any dtype fill
//! whole words, so that no two invocations write the same word, and operands without gaps are read
//! as vectors. Memory is a multiple of 32 bytes long: the last invocation may write beyond the last
//! element.
//!
//! All ranges are bound as writable, and equal ranges once: WebGPU refuses a buffer that is bound
//! to one dispatch in two ways.

#[cfg(feature = "gpu")]
pub mod adapter;
pub mod attention;
mod conv;
mod create;
mod door;
pub mod element;
mod epilogue;
mod frame;
pub mod group;
pub mod guard;
mod indexing;
pub mod kernel;
mod lanes;
pub mod moves;
pub mod op;
mod product;
pub mod program;
mod reduce;
pub mod rows;
#[cfg(feature = "gpu")]
pub mod run;
mod scan;
pub mod shader;
mod sort;
pub mod step;
pub mod target;
mod terms;
#[cfg(test)]
mod tests;
mod transpose;

pub use door::*;
