//! The printed form of elementwise formulas.

/// The scalar types of WGSL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum WgslType {
    Bool,
    F32,
    I32,
    U32,
}
