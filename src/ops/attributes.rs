//! The static parameters of structural ops.

use smallvec::SmallVec;

use crate::shape::{Axes, Dims};

/// One number per spatial axis.
pub type PerAxis = SmallVec<[usize; 3]>;

/// How the elements along reduced axes become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum; an empty one is 0
    Sum,
    /// Product; an empty one is 1
    Prod,
    /// Largest; NaN wins
    Max,
    /// Smallest; NaN wins
    Min,
    /// Logical or (bool only)
    Any,
    /// Logical and (bool only)
    All,
}

/// Which element's position is wanted: the first of equals; NaN wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArgReduction {
    /// The largest
    Max,
    /// The smallest
    Min,
}

/// What runs along an axis in a cumulative op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cumulation {
    /// Running sum
    Sum,
    /// Running product
    Prod,
    /// Running maximum; NaN stays
    Max,
    /// Running minimum; NaN stays
    Min,
}

/// How scattered values meet what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScatterMode {
    /// Replace; of several values for one place the last in index order stays
    Set,
    /// Add, in index order
    Add,
}

/// A general product: `out[batch, free of a, free of b] = Σ a[..] b[..]` over the contracted axes.
///
/// `a_batch[i]` pairs with `b_batch[i]`, `a_contract[i]` with `b_contract[i]`; free axes keep their
/// order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Contraction {
    pub a_batch: Axes,
    pub b_batch: Axes,
    pub a_contract: Axes,
    pub b_contract: Axes,
}

/// Which of the three tensors of a convolution's trilinear form is computed from the other two.
///
/// With `T(x, w, g) = Σ x[n, c, p·stride + k·dilation − low] w[o, c, k] g[n, o, p]`, each role is
/// the derivative of `T` by that tensor, so the three are closed under differentiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvRole {
    /// `(x, w) → g`: the convolution itself
    Output,
    /// `(g, w) → x`: the transposed convolution
    Input,
    /// `(x, g) → w`
    Weight,
}

/// Geometry of a convolution over any number of spatial axes; layouts are N C spatial for `x`,
/// O C/groups spatial for `w`, N O spatial for `g`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvSpec {
    /// Steps between windows
    pub stride: PerAxis,
    /// Zeros before each axis
    pub pad_low: PerAxis,
    /// Zeros after each axis
    pub pad_high: PerAxis,
    /// Steps between the elements of a window
    pub dilation: PerAxis,
    /// Channel groups
    pub groups: usize,
    /// Spatial sizes of `x` (needed by [`ConvRole::Input`])
    pub input: Dims,
    /// Spatial sizes of `w` (needed by [`ConvRole::Weight`])
    pub kernel: Dims,
}

/// Sliding windows over the trailing `size.len()` axes: axis `n` becomes
/// `(n − (size − 1)·dilation − 1) / stride + 1` window positions, and the window's own axes are
/// appended in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WindowSpec {
    /// Elements of a window along each axis
    pub size: PerAxis,
    /// Steps between windows
    pub stride: PerAxis,
    /// Steps between the elements of a window
    pub dilation: PerAxis,
}
