//! Devices that run compute shaders: memory, the queue, ops and plans.
//!
//! An op records the dispatches of its kernel and returns; a thread of the device's own submits
//! what has gathered and waits for it. What data refuses is found then ([`work`]).

pub mod cache;
pub mod device;
mod executor;
mod flow;
mod fusion;
mod guard;
mod key;
mod memory;
mod pipeline;
mod plan;
mod queue;
mod staging;
mod submit;
mod times;
mod work;
