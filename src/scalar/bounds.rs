//! The error bounds of the mathematical functions, for tests and documentation.

/// The largest error of a function, in units in the last place of the exact result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The function's name
    pub name: &'static str,
    /// For binary32
    pub single: f64,
    /// For binary64
    pub double: f64,
}

const fn bound(name: &'static str, single: f64, double: f64) -> Bound {
    Bound { name, single, double }
}

/// Every function with a rounding error of its own.
pub const BOUNDS: &[Bound] = &[
    bound("acos", 1.0, 1.0),
    bound("acosh", 2.0, 1.5),
    bound("asin", 1.0, 1.0),
    bound("asinh", 1.5, 1.5),
    bound("atan", 1.5, 1.0),
    bound("atan2", 1.5, 1.5),
    bound("atanh", 1.5, 1.5),
    bound("cbrt", 1.0, 1.0),
    bound("cos", 1.0, 1.0),
    bound("cosh", 1.5, 1.5),
    bound("erf", 1.5, 1.5),
    bound("erfc", 2.0, 1.5),
    bound("erfinv", 2.5, 2.5),
    bound("exp", 1.0, 1.0),
    bound("exp2", 1.0, 1.0),
    bound("expm1", 1.5, 1.0),
    bound("gelu", 2.0, 2.0),
    bound("gelu_slope", 2.0, 2.0),
    bound("gelu_tanh", 3.0, 3.0),
    bound("gelu_tanh_slope", 8.0, 8.0),
    bound("hypot", 1.0, 1.0),
    bound("log", 1.0, 1.0),
    bound("log10", 1.0, 1.0),
    bound("log1p", 1.0, 1.0),
    bound("log2", 1.0, 1.0),
    bound("log_sigmoid", 2.0, 1.5),
    bound("logaddexp", 1.5, 1.0),
    bound("pow", 1.5, 1.0),
    bound("rsqrt", 1.5, 1.5),
    bound("sigmoid", 2.0, 1.5),
    bound("silu", 3.0, 3.0),
    bound("silu_slope", 6.0, 6.0),
    bound("sin", 1.0, 1.0),
    bound("sinh", 2.0, 1.5),
    bound("softplus", 2.0, 1.5),
    bound("tan", 1.5, 1.5),
    bound("tanh", 1.5, 1.5),
];
