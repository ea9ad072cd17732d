//! The error bounds, proven over dense samples in binary32 and a reference table in binary64, and
//! the special values.

use super::*;

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
    for center in [0.25f32, 0.4, 0.41421356, 0.5, 0.70710678, 1.0, 1.4142135, 2.0, 3.1415927, 10.1]
    {
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
