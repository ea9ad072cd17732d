//! Trigonometric and hyperbolic functions and their inverses. Angles are in radians.

use crate::scalar;

elementwise! {
    /// Sine of each element.
    Method sin(x) -> Same { Float: scalar::sin(x) => except(x.is_far(), scalar::sin_far(x)) }
    domain [-4.0, 4.0];
    vjp(g) { x: (g * x.cos()) }

    /// Cosine of each element.
    Method cos(x) -> Same { Float: scalar::cos(x) => except(x.is_far(), scalar::cos_far(x)) }
    domain [-4.0, 4.0];
    vjp(g) { x: (-(g * x.sin())) }

    /// Tangent of each element.
    Method tan(x) -> Same { Float: scalar::tan(x) => except(x.is_far(), scalar::tan_far(x)) }
    domain [-1.2, 1.2];
    vjp(g, y) { x: (g * (1.0 + y * y)) }

    /// Inverse sine, in [-π/2, π/2]; NaN outside [-1, 1].
    Method asin(x) -> Same { Float: scalar::asin(x) }
    also(arcsin)
    domain [-0.9, 0.9];
    vjp(g) { x: (g * (1.0 - x * x).rsqrt()) }

    /// Inverse cosine, in [0, π]; NaN outside [-1, 1].
    Method acos(x) -> Same { Float: scalar::acos(x) }
    also(arccos)
    domain [-0.9, 0.9];
    vjp(g) { x: (-(g * (1.0 - x * x).rsqrt())) }

    /// Inverse tangent, in [-π/2, π/2].
    Method atan(x) -> Same { Float: scalar::atan(x) }
    also(arctan)
    domain [-4.0, 4.0];
    vjp(g) { x: (g / (1.0 + x * x)) }

    /// The angle of the point with ordinate `a` and abscissa `b`, in [-π, π].
    Function atan2(a, b) -> Same { Float: scalar::atan2(a, b) }
    also(arctan2)
    domain [0.3, 3.0], [0.3, 3.0];
    vjp(g) { a: (g * b / (a * a + b * b)), b: (-(g * a / (a * a + b * b))) }

    /// Hyperbolic sine of each element.
    Method sinh(x) -> Same { Float: scalar::sinh(x) }
    domain [-3.0, 3.0];
    vjp(g) { x: (g * x.cosh()) }

    /// Hyperbolic cosine of each element.
    Method cosh(x) -> Same { Float: scalar::cosh(x) }
    domain [-3.0, 3.0];
    vjp(g) { x: (g * x.sinh()) }

    /// Hyperbolic tangent of each element.
    Method tanh(x) -> Same { Float: scalar::tanh(x) }
    domain [-3.0, 3.0];
    vjp(g, y) { x: (g * (1.0 - y * y)) }

    /// Inverse hyperbolic sine of each element.
    Method asinh(x) -> Same { Float: scalar::asinh(x) }
    also(arcsinh)
    domain [-3.0, 3.0];
    vjp(g) { x: (g * (1.0 + x * x).rsqrt()) }

    /// Inverse hyperbolic cosine; NaN below 1.
    Method acosh(x) -> Same { Float: scalar::acosh(x) }
    also(arccosh)
    domain [1.3, 4.0];
    vjp(g) { x: (g * (x * x - 1.0).rsqrt()) }

    /// Inverse hyperbolic tangent; ±inf at ±1, NaN outside.
    Method atanh(x) -> Same { Float: scalar::atanh(x) }
    also(arctanh)
    domain [-0.9, 0.9];
    vjp(g) { x: (g / (1.0 - x * x)) }
}
