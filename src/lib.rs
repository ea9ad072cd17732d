//! wengert: a tensor engine whose tape, graphs and backward passes are lists of the same steps.
//!
//! The modules stand bottom-up: each names only modules above it in this list (a test enforces it).

pub mod cache;
pub mod error;
pub mod fork;
pub mod module_scope;
pub mod settings;
pub mod site;
pub mod small;
pub mod watch;

pub mod dtype;
pub mod shape;

pub mod layout;

pub mod device;

pub mod memory;
pub mod simd;
pub mod threads;

pub mod array;

pub mod scalar;

pub mod tile;

#[macro_use]
pub mod ops;

pub mod graph;
pub mod passes;

pub mod target;

pub mod schedule;

pub mod executor;

pub mod cpu;
pub mod gpu;
pub mod reference;

pub mod engine;

#[cfg(feature = "python")]
mod py;
