//! Bitwise ops on integers (and, where that makes sense, on truth values).

elementwise! {
    /// Bits set in both.
    Method bitwise_and(a, b) -> Same { Int: a & b, Bool: a & b }
    domain [-9.0, 9.0], [-9.0, 9.0];
    vjp(g) { a: zero, b: zero }

    /// Bits set in either.
    Method bitwise_or(a, b) -> Same { Int: a | b, Bool: a | b }
    domain [-9.0, 9.0], [-9.0, 9.0];
    vjp(g) { a: zero, b: zero }

    /// Bits set in exactly one.
    Method bitwise_xor(a, b) -> Same { Int: a ^ b, Bool: (a & !b) | (!a & b) }
    domain [-9.0, 9.0], [-9.0, 9.0];
    vjp(g) { a: zero, b: zero }

    /// Every bit flipped.
    Method bitwise_invert(x) -> Same { Int: !x, Bool: !x }
    also(bitwise_not, invert)
    domain [-9.0, 9.0];
    vjp(g) { x: zero }

    /// Bits moved towards the high end; by the width or more gives 0.
    Method bitwise_left_shift(a, b) -> Same { Int: a.shift_left(b) }
    also(left_shift)
    domain [-9.0, 9.0], [0.0, 9.0];
    vjp(g) { a: zero, b: zero }

    /// Bits moved towards the low end, keeping the sign; by the width or more gives 0 (or -1).
    Method bitwise_right_shift(a, b) -> Same { Int: a.shift_right(b) }
    also(right_shift)
    domain [-9.0, 9.0], [0.0, 9.0];
    vjp(g) { a: zero, b: zero }
}
