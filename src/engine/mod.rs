//! Tensors as values: the tape, eager execution, the backward sweep, indexing, random state.

pub mod apply;
pub mod backward;
pub mod eager;
pub mod index;
pub mod plans;
pub mod random;
pub mod site;
pub mod tape;

#[cfg(test)]
mod tests;
