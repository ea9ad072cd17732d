//! The error bounds, proven over dense samples in binary32 and a reference table in binary64, and
//! the special values.

use super::*;
use std::num::Wrapping;

/// The bound of a function.
fn bound(name: &str) -> Bound {
    *BOUNDS.iter().find(|b| b.name == name).unwrap_or_else(|| panic!("{name} has no bound"))
}

/// The error of `got` in ULP of binary32 at `exact`; 0 where both are the same special value.
fn error32(got: f32, exact: f64) -> f64 {
    let nearest = exact as f32;
    if nearest.is_nan() || got.is_nan() {
        return if nearest.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if got == nearest && (got == 0.0 || got.is_infinite()) {
        return if got.is_sign_negative() == exact.is_sign_negative() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    // An infinity counts as the number after the largest.
    let widen = |v: f64| v.clamp(-(2f64.powi(128)), 2f64.powi(128));
    let exponent = (exact.abs().log2().floor() as i32).clamp(-126, 127);
    (widen(got as f64) - widen(exact)).abs() / 2f64.powi(exponent - 23)
}

/// Samples of binary32: every 9973rd bit pattern, and every region where formulas change.
fn samples32() -> Vec<f32> {
    let mut xs: Vec<f32> = (0..=u32::MAX).step_by(9973).map(f32::from_bits).collect();
    for scale in [1.0, 3.0, 11.0, 110.0, 1.0e5] {
        xs.extend((0..80_000).map(|i| ((i as f64 / 40_000.0 - 1.0) * scale) as f32));
    }
    use std::f32::consts::{FRAC_1_SQRT_2, PI, SQRT_2};
    for center in [0.25f32, 0.4, 0.41421356, 0.5, FRAC_1_SQRT_2, 1.0, SQRT_2, 2.0, PI, 10.1, 87.0] {
        let bits = center.to_bits();
        let around = (bits - 2000..bits + 2000).map(f32::from_bits);
        xs.extend(around.flat_map(|x| [x, -x]));
    }
    xs.extend([0.0, -0.0, f32::INFINITY, -f32::INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE]);
    xs
}

/// Checks a function of one argument where `domain` holds.
fn check32(name: &str, f: fn(f32) -> f32, exact: fn(f64) -> f64, domain: fn(f32) -> bool) {
    let (mut worst, mut at) = (0.0, 0.0);
    for x in samples32().into_iter().filter(|x| domain(*x)) {
        let error = error32(f(x), exact(x as f64));
        if error > worst {
            (worst, at) = (error, x);
        }
    }
    println!("{name:12} {worst:.3} ULP at {at:e}");
    let limit = bound(name).single;
    assert!(worst <= limit, "{name}: {worst} ULP at {at:e}, stated {limit}: {}", f(at));
}

fn anywhere(_: f32) -> bool {
    true
}

/// Checks a function of two arguments over pairs that `pairs` makes of 32 random bits each.
fn check32_pairs(
    name: &str,
    f: fn(f32, f32) -> f32,
    exact: fn(f64, f64) -> f64,
    pairs: fn(u32, u32) -> (f32, f32),
) {
    let (mut worst, mut at) = (0.0, (0.0, 0.0));
    let mut state = 1u64;
    for _ in 0..400_000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (x, y) = pairs((state >> 32) as u32, (state >> 8) as u32);
        let error = error32(f(x, y), exact(x as f64, y as f64));
        if error > worst {
            (worst, at) = (error, (x, y));
        }
    }
    println!("{name:12} {worst:.3} ULP at {at:?}");
    let limit = bound(name).single;
    assert!(worst <= limit, "{name}: {worst} ULP at {at:?}, stated {limit}");
}

/// A number in ±`scale`.
fn spread(bits: u32, scale: f32) -> f32 {
    (bits as i32 as f32 / 2147483648.0) * scale
}

#[test]
fn functions_of_two_numbers_hold_their_bounds() {
    let any = |a, b| (f32::from_bits(a), f32::from_bits(b));
    let near = |a, b| (spread(a, 4.0), spread(b, 4.0));
    check32_pairs("pow", pow, f64::powf, any);
    check32_pairs("pow", pow, f64::powf, |a, b| (spread(a, 20.0).abs(), spread(b, 30.0)));
    check32_pairs("pow", pow, f64::powf, |a, b| (1.0 + spread(a, 0.5), spread(b, 200.0)));
    check32_pairs("pow", pow, f64::powf, |a, b| (spread(a, 9.0), spread(b, 20.0).round()));
    check32_pairs("atan2", atan2, f64::atan2, any);
    check32_pairs("atan2", atan2, f64::atan2, near);
    check32_pairs("hypot", hypot, f64::hypot, any);
    check32_pairs("hypot", hypot, f64::hypot, near);
    // Counted in places of the largest number involved, so against a shifted sum.
    let shifted = |a: f32, b: f32| logaddexp(a.abs(), b.abs());
    check32_pairs(
        "logaddexp",
        shifted,
        |a, b| logaddexp(a.abs(), b.abs()),
        |a, b| (spread(a, 30.0), spread(b, 30.0)),
    );
}

#[test]
fn exponentials_hold_their_bounds() {
    check32("exp", exp, f64::exp, anywhere);
    check32("exp2", exp2, f64::exp2, anywhere);
    check32("expm1", expm1, f64::exp_m1, anywhere);
    check32("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp()), anywhere);
    let softplus64 = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    check32("softplus", softplus, softplus64, |x| !x.is_nan());
    check32(
        "log_sigmoid",
        log_sigmoid,
        |x| -(-x).max(0.0) - (-x.abs()).exp().ln_1p(),
        |x| !x.is_nan(),
    );
}

#[test]
fn the_short_exponential_has_the_same_bits_where_results_are_normal() {
    for i in 0..20_000 {
        let x = f64::from(i) * 0.00871 - 87.0;
        assert_eq!(exp_normal(x as f32).to_bits(), exp(x as f32).to_bits());
        assert_eq!(exp_normal(8.0 * x).to_bits(), exp(8.0 * x).to_bits());
    }
    assert!(exp_normal(f32::NAN).is_nan() && exp_normal(f64::NAN).is_nan());
}

#[test]
fn logarithms_hold_their_bounds() {
    check32("log", log, f64::ln, anywhere);
    check32("log1p", log1p, f64::ln_1p, anywhere);
    check32("log2", log2, f64::log2, anywhere);
    check32("log10", log10, f64::log10, anywhere);
}

#[test]
fn trigonometric_functions_hold_their_bounds() {
    let near = |x: f32| !x.is_finite() || x.abs() <= 1.0e9;
    check32("sin", sin, f64::sin, near);
    check32("cos", cos, f64::cos, near);
    check32("tan", tan, f64::tan, near);
    check32("asin", asin, f64::asin, anywhere);
    check32("acos", acos, f64::acos, anywhere);
    check32("atan", atan, f64::atan, anywhere);
}

#[test]
fn hyperbolic_functions_hold_their_bounds() {
    check32("sinh", sinh, f64::sinh, anywhere);
    check32("cosh", cosh, f64::cosh, anywhere);
    check32("tanh", tanh, f64::tanh, anywhere);
    check32("asinh", asinh, f64::asinh, anywhere);
    check32("acosh", acosh, f64::acosh, anywhere);
    check32("atanh", atanh, f64::atanh, anywhere);
}

// The binary64 forms, which the reference table proves, stand in where std has no function.
#[test]
fn other_functions_hold_their_bounds() {
    check32("rsqrt", rsqrt, |x| 1.0 / x.sqrt(), anywhere);
    check32("cbrt", cbrt, f64::cbrt, anywhere);
    check32("erf", erf, erf::<f64>, anywhere);
    check32("erfc", erfc, erfc::<f64>, anywhere);
    check32("erfinv", erfinv, erfinv::<f64>, anywhere);
}

#[test]
fn activations_hold_their_bounds_in_far_tails() {
    check32("silu", silu, silu::<f64>, anywhere);
    check32("gelu", gelu, gelu::<f64>, anywhere);
    check32("gelu_tanh", gelu_tanh, gelu_tanh::<f64>, anywhere);
    // Slopes are 0 somewhere in [−1.5, 0]: there they are counted in places of ½.
    type Slope = (&'static str, Unary<f32>, Unary<f64>);
    let slopes: [Slope; 3] = [
        ("silu_slope", silu_slope, silu_slope),
        ("gelu_slope", gelu_slope, gelu_slope),
        ("gelu_tanh_slope", gelu_tanh_slope, gelu_tanh_slope),
    ];
    for (name, single, double) in slopes {
        check32(name, single, double, |x| !(-1.5..=0.0).contains(&x));
        for x in samples32().into_iter().filter(|x| (-1.5..=0.0).contains(x)) {
            let error = (single(x) as f64 - double(x as f64)).abs() * 2f64.powi(24);
            assert!(error <= bound(name).single, "{name}({x:e}): {error} ULP of one half");
        }
    }
}

/// The error of `got` in ULP of binary64 at a value whose nearest number is `nearest` and which
/// lies `rest` ULP above it.
fn error64(got: f64, nearest: f64, rest: f64) -> f64 {
    // Bits in the order of the numbers, so that differences count places.
    let place = |x: f64| {
        let bits = x.to_bits() as i64;
        if bits < 0 { i64::MIN.wrapping_sub(bits) } else { bits }
    };
    ((place(got) as i128 - place(nearest) as i128) as f64 - rest).abs()
}

/// The value of a function by name.
fn call64(name: &str, x: &[f64]) -> f64 {
    let unary: fn(f64) -> f64 = match name {
        "acos" => acos,
        "acosh" => acosh,
        "asin" => asin,
        "asinh" => asinh,
        "atan" => atan,
        "atan2" => return atan2(x[0], x[1]),
        "atanh" => atanh,
        "cbrt" => cbrt,
        "cos" => cos,
        "cosh" => cosh,
        "erf" => erf,
        "erfc" => erfc,
        "erfinv" => erfinv,
        "exp" => exp,
        "exp2" => exp2,
        "expm1" => expm1,
        "gelu" => gelu,
        "gelu_slope" => gelu_slope,
        "gelu_tanh" => gelu_tanh,
        "gelu_tanh_slope" => gelu_tanh_slope,
        "hypot" => return hypot(x[0], x[1]),
        "log" => log,
        "log10" => log10,
        "log1p" => log1p,
        "log2" => log2,
        "log_sigmoid" => log_sigmoid,
        "logaddexp" => return logaddexp(x[0], x[1]),
        "pow" => return pow(x[0], x[1]),
        "rsqrt" => rsqrt,
        "sigmoid" => sigmoid,
        "silu" => silu,
        "silu_slope" => silu_slope,
        "sin" => sin,
        "sinh" => sinh,
        "softplus" => softplus,
        "tan" => tan,
        "tanh" => tanh,
        _ => panic!("{name} is not a function"),
    };
    unary(x[0])
}

#[test]
fn double_precision_holds_its_bounds() {
    let mut worst: Vec<(f64, String)> = vec![(-1.0, String::new()); BOUNDS.len()];
    for line in include_str!("reference_f64.txt").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |s: &str| f64::from_bits(u64::from_str_radix(s, 16).unwrap());
        let (name, rest) = (fields[0], fields.last().unwrap().parse::<f64>().unwrap() / 1000.0);
        let arguments: Vec<f64> = fields[1..fields.len() - 2].iter().map(|s| number(s)).collect();
        let (nearest, got) = (number(fields[fields.len() - 2]), call64(name, &arguments));
        let mut error = error64(got, nearest, rest);
        if name == "logaddexp" {
            // Counted in places of the largest number involved.
            let largest = arguments[0].abs().max(arguments[1].abs()).max(nearest.abs());
            let ulp = |x: f64| 2f64.powi(x.abs().log2().floor() as i32 - 52);
            error *= ulp(nearest) / ulp(largest);
        }
        if name.ends_with("_slope") && arguments[0] >= -1.5 {
            // Counted in places of ½ near its zero.
            error *= 2f64.powi((nearest.abs().log2().floor() as i32 + 1).min(0));
        }
        let at = BOUNDS.iter().position(|b| b.name == name).expect(name);
        if error > worst[at].0 {
            worst[at] = (error, format!("{arguments:?} gave {got:e}, nearest {nearest:e}"));
        }
    }
    for (b, (error, at)) in BOUNDS.iter().zip(&worst) {
        println!("{:12} {error:.3} ULP at {at}", b.name);
    }
    for (b, (error, at)) in BOUNDS.iter().zip(&worst) {
        assert!(*error >= 0.0, "{}: no reference", b.name);
        assert!(*error <= b.double, "{}: {error} ULP at {at}, stated {}", b.name, b.double);
    }
}

/// Whether two results are the same special value, or near each other.
fn agree(a: f64, b: f64) -> bool {
    if a.is_nan() || b.is_nan() {
        return a.is_nan() && b.is_nan();
    }
    let same_sign = a.is_sign_negative() == b.is_sign_negative();
    let near = (a - b).abs() <= 1e-6 * b.abs();
    same_sign && (a == b || (near && a.is_finite() && b.is_finite()))
}

/// Zeros, infinities, NaN, the ends of the range, and points where functions are exact.
const SPECIAL: [f64; 26] = {
    let inf = f64::INFINITY;
    let (max, min) = (f32::MAX as f64, f32::MIN_POSITIVE as f64);
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        3.0,
        -3.0,
        0.5,
        -0.5,
        2.5,
        -2.5,
        inf,
        -inf,
        f64::NAN,
        max,
        -max,
        min,
        -min,
        1e-45,
        -1e-45,
        16777215.0,
        -16777215.0,
        16777216.0,
        1e10,
        -1e10,
    ]
};

type Unary<T> = fn(T) -> T;
type Binary<T> = fn(T, T) -> T;
/// A function's name, both its widths, and std's.
type Case<'a, Double, Single> = (&'a str, Double, Single, Double);

#[test]
fn special_values_of_one_argument() {
    // In both widths; std's functions follow IEEE 754.
    let functions: &[Case<Unary<f64>, Unary<f32>>] = &[
        ("acos", acos, acos, f64::acos),
        ("acosh", acosh, acosh, f64::acosh),
        ("asin", asin, asin, f64::asin),
        ("asinh", asinh, asinh, f64::asinh),
        ("atan", atan, atan, f64::atan),
        ("atanh", atanh, atanh, f64::atanh),
        ("cbrt", cbrt, cbrt, f64::cbrt),
        ("cosh", cosh, cosh, f64::cosh),
        ("exp", exp, exp, f64::exp),
        ("exp2", exp2, exp2, f64::exp2),
        ("expm1", expm1, expm1, f64::exp_m1),
        ("log", log, log, f64::ln),
        ("log10", log10, log10, f64::log10),
        ("log1p", log1p, log1p, f64::ln_1p),
        ("log2", log2, log2, f64::log2),
        ("sinh", sinh, sinh, f64::sinh),
        ("tanh", tanh, tanh, f64::tanh),
        ("floor", Float::floor, Float::floor, f64::floor),
        ("ceil", Float::ceil, Float::ceil, f64::ceil),
        ("trunc", Float::trunc, Float::trunc, f64::trunc),
        ("round", Float::round, Float::round, f64::round_ties_even),
    ];
    for (name, double, single, exact) in functions {
        for x in SPECIAL {
            let y = exact(x);
            assert!(agree(double(x), y), "{name}({x:e}) = {:e}, not {y:e}", double(x));
            let (x, y) = (x as f32, exact(x as f32 as f64) as f32);
            assert!(agree(single(x) as f64, y as f64), "{name}({x:e}) = {}, not {y}", single(x));
        }
    }
}

#[test]
fn special_values_of_two_arguments() {
    let functions: &[Case<Binary<f64>, Binary<f32>>] = &[
        ("pow", pow, pow, f64::powf),
        ("atan2", atan2, atan2, f64::atan2),
        ("hypot", hypot, hypot, f64::hypot),
        ("fmod", fmod, fmod, |x, y| x % y),
    ];
    for (name, double, single, exact) in functions {
        for (x, y) in SPECIAL.iter().flat_map(|x| SPECIAL.map(|y| (*x, y))) {
            let (got, z) = (double(x, y), exact(x, y));
            assert!(agree(got, z), "{name}({x:e}, {y:e}) = {got:e}, not {z:e}");
            let (x, y) = (x as f32, y as f32);
            let (got, z) = (single(x, y), exact(x as f64, y as f64) as f32);
            assert!(agree(got as f64, z as f64), "{name}({x:e}, {y:e}) = {got:e}, not {z:e}");
        }
    }
}

#[test]
fn angles_without_end_have_no_sine() {
    for x in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        for f in [sin::<f64>, cos, tan] {
            assert!(f(x).is_nan());
        }
        for f in [sin::<f32>, cos, tan] {
            assert!(f(x as f32).is_nan());
        }
    }
    for x in [1e12f64, 1e18, 1e38, 1e300] {
        assert!(sin(x).abs() <= 1.0 && cos(-x).abs() <= 1.0);
        assert!(sin(x.min(1e38) as f32).abs() <= 1.0);
    }
}

#[test]
fn limits_of_other_functions() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    type Limits<'a> = (&'a str, fn(f64) -> f64, &'a [(f64, f64)]);
    let cases: &[Limits] = &[
        ("erf", erf, &[(0.0, 0.0), (-0.0, -0.0), (inf, 1.0), (-inf, -1.0), (nan, nan)]),
        ("erfc", erfc, &[(0.0, 1.0), (inf, 0.0), (-inf, 2.0), (30.0, 0.0), (nan, nan)]),
        ("erfinv", erfinv, &[(-0.0, -0.0), (1.0, inf), (-1.0, -inf), (1.5, nan), (nan, nan)]),
        ("rsqrt", rsqrt, &[(0.0, inf), (inf, 0.0), (-1.0, nan), (4.0, 0.5), (nan, nan)]),
        ("silu", silu, &[(-0.0, -0.0), (inf, inf), (-inf, -0.0), (1e300, 1e300), (nan, nan)]),
        ("gelu", gelu, &[(-0.0, -0.0), (inf, inf), (-inf, -0.0), (1e300, 1e300), (nan, nan)]),
        ("gelu_slope", gelu_slope, &[(-0.0, 0.5), (inf, 1.0), (-inf, -0.0), (nan, nan)]),
        ("silu_slope", silu_slope, &[(-0.0, 0.5), (inf, 1.0), (-inf, -0.0), (nan, nan)]),
        ("gelu_tanh_slope", gelu_tanh_slope, &[(0.0, 0.5), (inf, 1.0), (-inf, -0.0), (nan, nan)]),
        ("gelu_tanh", gelu_tanh, &[(-0.0, -0.0), (inf, inf), (-inf, -0.0), (nan, nan)]),
        ("sigmoid", sigmoid, &[(0.0, 0.5), (inf, 1.0), (-inf, 0.0), (nan, nan)]),
        ("softplus", softplus, &[(inf, inf), (-inf, 0.0), (800.0, 800.0), (nan, nan)]),
        ("log_sigmoid", log_sigmoid, &[(inf, -0.0), (-inf, -inf), (-800.0, -800.0), (nan, nan)]),
    ];
    for (name, f, table) in cases {
        for (x, y) in *table {
            assert!(agree(f(*x), *y), "{name}({x}) = {}, not {y}", f(*x));
        }
    }
    let pairs = [(inf, -inf, inf), (-inf, -inf, -inf), (inf, inf, inf), (nan, 1.0, nan)];
    for (a, b, y) in pairs {
        assert!(agree(logaddexp(a, b), y) && agree(logaddexp(b, a), y), "logaddexp({a}, {b})");
    }
}

#[test]
fn float_division_follows_the_standard() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    // x, divisor, ⌊x/divisor⌋, remainder: the values of Python's `//` and `%`; those of IEEE
    // division where Python refuses, and of `//` where an operand is infinite.
    let cases = [
        (7.0, 3.0, 2.0, 1.0),
        (-7.0, 3.0, -3.0, 2.0),
        (7.0, -3.0, -3.0, -2.0),
        (-7.0, -3.0, 2.0, -1.0),
        (6.0, -3.0, -2.0, -0.0),
        (-0.0, 3.0, -0.0, 0.0),
        (1.0, 0.1, 9.0, 0.09999999999999995),
        (-1.0, inf, -0.0, inf),
        (1.0, -inf, -0.0, -inf),
        (1.0, inf, 0.0, 1.0),
        (1e300, 7.0, 1.4285714285714286e299, 1e300 % 7.0),
        (1.0, 0.0, inf, nan),
        (-1.0, 0.0, -inf, nan),
        (0.0, 0.0, nan, nan),
        (inf, 2.0, inf, nan),
        (inf, -2.0, -inf, nan),
        (inf, inf, nan, nan),
        (nan, 2.0, nan, nan),
    ];
    for (x, d, quotient, rest) in cases {
        let (q, r) = (floor_divide(x, d), remainder(x, d));
        assert!(agree(q, quotient), "{x} // {d} = {q}, not {quotient}");
        assert!(agree(r, rest), "{x} % {d} = {r}, not {rest}");
    }
}

#[test]
fn extremes_pass_nan_and_signs_are_kept() {
    for (a, b) in SPECIAL.iter().flat_map(|a| SPECIAL.map(|b| (*a, b))) {
        let nan = a.is_nan() || b.is_nan();
        let (high, low) = (Scalar::maximum(a, b), Scalar::minimum(a, b));
        assert!(if nan {
            high.is_nan() && low.is_nan()
        } else {
            high == a.max(b) && low == a.min(b)
        });
    }
    for x in SPECIAL {
        let sign = if x == 0.0 { 0.0 } else { x.signum() };
        assert!(agree(x.sign(), sign), "sign({x})");
    }
}

/// Every operation of one integer type against 128-bit arithmetic.
macro_rules! integer_laws {
    ($name:ident, $int:ident) => {
        #[test]
        fn $name() {
            let (min, max) = ($int::MIN, $int::MAX);
            let half = u32::MAX as $int;
            let near = [
                min,
                min + 1,
                max,
                max - 1,
                max / 2,
                0,
                1,
                2,
                3,
                7,
                31,
                32,
                63,
                64,
                100,
                half,
                half / 2,
                half.wrapping_add(1),
                half.wrapping_add(8),
            ];
            let below = near.map(|v| (0 as $int).wrapping_sub(v));
            let values: Vec<$int> = near.into_iter().chain(below).collect();
            for (a, b) in values.iter().flat_map(|a| values.iter().map(|b| (*a, *b))) {
                let (x, y) = (Wrapping(a), Wrapping(b));
                let (wide_a, wide_b) = (a as i128, b as i128);
                assert_eq!((x * y).0, wide_a.wrapping_mul(wide_b) as $int);
                let (quotient, rest) = match b {
                    0 => (0, 0),
                    _ => {
                        let rest = (wide_a % wide_b + wide_b) % wide_b;
                        ((wide_a - rest) / wide_b, rest)
                    }
                };
                assert_eq!(x.floor_divide(y).0, quotient as $int, "{a} // {b}");
                assert_eq!(x.remainder(y).0, rest as $int, "{a} % {b}");
                let inside = (0..$int::BITS as i128).contains(&wide_b);
                let left = if inside { (wide_a as i128) << wide_b } else { 0 };
                let right = wide_a >> if inside { wide_b } else { 127 };
                assert_eq!(x.shift_left(y).0, left as $int, "{a} << {b}");
                assert_eq!(x.shift_right(y).0, right as $int, "{a} >> {b}");
                assert_eq!((x.maximum(y).0, x.minimum(y).0), (a.max(b), a.min(b)));
            }
            for a in values {
                assert_eq!(Scalar::abs(Wrapping(a)).0, (a as i128).unsigned_abs() as $int);
                assert_eq!(Wrapping(a).sign().0, (a as i128).signum() as $int);
            }
        }
    };
}

integer_laws!(integer_laws_i32, i32);
integer_laws!(integer_laws_i64, i64);
integer_laws!(integer_laws_u32, u32);
integer_laws!(integer_laws_u64, u64);

#[test]
fn documentation_states_the_bounds() {
    let source = concat!(
        include_str!("algebraic.rs"),
        include_str!("exponential.rs"),
        include_str!("hyperbolic.rs"),
        include_str!("logarithm.rs"),
        include_str!("special.rs"),
        include_str!("trigonometric.rs"),
    );
    for b in BOUNDS {
        let (before, _) = source.split_once(&format!("pub fn {}<", b.name)).expect(b.name);
        let doc = before.rsplit("\n\n").next().unwrap().replace("\n///", "");
        let stated = if b.single == b.double {
            format!("Error ≤ {} ULP", b.single)
        } else {
            format!("Error ≤ {} ULP in binary32, {} in binary64", b.single, b.double)
        };
        assert!(doc.contains(&stated), "{}: its documentation should say {stated:?}", b.name);
    }
}
