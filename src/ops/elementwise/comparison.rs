//! Comparisons, tests and logic. None has a gradient.

elementwise! {
    /// Whether two elements are equal; NaN equals nothing.
    Method equal(a, b) -> Bool { Numeric: a.eq(b), Bool: !((a & !b) | (!a & b)) }
    also(eq)
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) { a: zero, b: zero }

    /// Whether two elements differ; NaN differs from everything.
    Method not_equal(a, b) -> Bool { Numeric: a.ne(b), Bool: (a & !b) | (!a & b) }
    also(ne)
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) { a: zero, b: zero }

    /// Whether the first is less than the second.
    Method less(a, b) -> Bool { Numeric: a.lt(b), Bool: !a & b }
    also(lt)
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) { a: zero, b: zero }

    /// Whether the first is at most the second.
    Method less_equal(a, b) -> Bool { Numeric: a.le(b), Bool: !a | b }
    also(le)
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) { a: zero, b: zero }

    /// Whether the first is greater than the second.
    Method greater(a, b) -> Bool { Numeric: a.gt(b), Bool: a & !b }
    also(gt)
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) { a: zero, b: zero }

    /// Whether the first is at least the second.
    Method greater_equal(a, b) -> Bool { Numeric: a.ge(b), Bool: a | !b }
    also(ge)
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) { a: zero, b: zero }

    /// Whether each element is NaN. Integers never are.
    Method isnan(x) -> Bool { Float: x.is_nan(), Int: x.ne(x) }
    domain [-3.0, 3.0];
    vjp(g) { x: zero }

    /// Whether each element is infinite. Integers never are.
    Method isinf(x) -> Bool { Float: x.is_infinite(), Int: x.ne(x) }
    domain [-3.0, 3.0];
    vjp(g) { x: zero }

    /// Whether each element is neither NaN nor infinite.
    Method isfinite(x) -> Bool { Float: !(x.is_nan() | x.is_infinite()), Int: x.eq(x) }
    domain [-3.0, 3.0];
    vjp(g) { x: zero }

    /// Whether the sign bit of each element is set (of -0.0 too).
    Function signbit(x) -> Bool { Float: S::lit(1.0).copysign(x).lt(S::lit(0.0)) }
    domain [-3.0, 3.0];
    vjp(g) { x: zero }

    /// Both.
    Method logical_and(a, b) -> Same { Bool: a & b }
    domain [0.0, 1.0], [0.0, 1.0];
    vjp(g) { a: zero, b: zero }

    /// Either or both.
    Method logical_or(a, b) -> Same { Bool: a | b }
    domain [0.0, 1.0], [0.0, 1.0];
    vjp(g) { a: zero, b: zero }

    /// Exactly one of the two.
    Method logical_xor(a, b) -> Same { Bool: (a & !b) | (!a & b) }
    domain [0.0, 1.0], [0.0, 1.0];
    vjp(g) { a: zero, b: zero }

    /// The opposite of each truth value.
    Method logical_not(x) -> Same { Bool: !x }
    domain [0.0, 1.0];
    vjp(g) { x: zero }
}
