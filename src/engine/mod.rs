//! Tensors as values: the tape, eager execution, the backward sweep, indexing, random state,
//! traces.

pub mod autocast;
pub mod backward;
pub mod call;
pub mod check;
pub mod compile;
pub mod config;
pub mod context;
pub mod control;
pub mod definition;
pub mod eager;
pub mod executors;
pub mod export;
pub mod frozen;
pub mod index;
pub mod interpret;
pub mod observe;
pub mod oracle;
pub mod pending;
pub mod picture;
pub mod program;
pub mod random;
pub mod site;
pub mod tape;
pub mod trace;
pub mod transfer;

#[cfg(test)]
mod tests;
