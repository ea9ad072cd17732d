//! Formulas with fused products have the bits of those without.

use super::*;

/// Bit patterns that cover every exponent, more densely where formulas change.
fn samples() -> Vec<f64> {
    let mut xs: Vec<f64> =
        (0..=u32::MAX).step_by(30_011).map(|bits| f64::from(f32::from_bits(bits))).collect();
    let mut state = 7u64;
    for _ in 0..60_000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let unit = (state >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0;
        xs.extend([f64::from_bits(state), unit, 9.0 * unit, 300.0 * unit, 1.0 + unit * 1e-3]);
    }
    let edges = [0.0, 1.0, f64::MAX, f64::MIN_POSITIVE, 5e-324, f64::from(f32::MAX), 1e-45];
    xs.extend(edges.into_iter().chain([f64::INFINITY, f64::NAN]).flat_map(|x| [x, -x]));
    xs
}

/// Compares every sample through a function of native and of fused numbers.
macro_rules! same {
    ($float:ident: $($name:ident),*) => {$(
        for x in samples() {
            let x = x as $float;
            let (want, got) = ($name(x), $name(Fused(x)).0);
            let are_nan = want.is_nan() && got.is_nan();
            assert!(
                are_nan || want.to_bits() == got.to_bits(),
                "{}({x:e}): {got:e}, wanted {want:e}", stringify!($name)
            );
        }
    )*};
}

#[test]
fn functions_of_one_number_do_not_show_fused_products() {
    same!(f32: acos, acosh, asin, asinh, atan, atanh, cbrt, cos, cosh, erf, erfc, erfinv, exp, exp2);
    same!(f32: expm1, gelu, gelu_slope, gelu_tanh, gelu_tanh_slope, log, log10, log1p, log2);
    same!(f32: log_sigmoid, sigmoid, silu, silu_slope, sin, sinh, softplus, tan, tanh);
    same!(f32: exp_normal, gelu_tanh_often, sigmoid_often, silu_often);
    same!(f64: acos, acosh, asin, asinh, atan, atanh, cbrt, cos, cosh, erf, erfc, erfinv, exp, exp2);
    same!(f64: expm1, gelu, gelu_slope, gelu_tanh, gelu_tanh_slope, log, log10, log1p, log2);
    same!(f64: log_sigmoid, sigmoid, silu, silu_slope, sin, sinh, softplus, tan, tanh);
}

#[test]
fn functions_of_two_numbers_do_not_show_fused_products() {
    let xs = samples();
    let others = xs.iter().rev().chain(&xs).skip(xs.len() / 3);
    for (&x, &y) in xs.iter().zip(others) {
        let pairs = [(x, y), (x, y * 1e-3), (x.abs(), y), (y, 2.0), (x, 0.5 * x)];
        for (x, y) in pairs {
            macro_rules! same {
                ($float:ident: $name:ident) => {{
                    let (x, y) = (x as $float, y as $float);
                    let (want, got) = ($name(x, y), $name(Fused(x), Fused(y)).0);
                    let are_nan = want.is_nan() && got.is_nan();
                    assert!(
                        are_nan || want.to_bits() == got.to_bits(),
                        "{}({x:e}, {y:e}): {got:e}, wanted {want:e}",
                        stringify!($name)
                    );
                }};
            }
            same!(f32: pow);
            same!(f64: pow);
            same!(f32: hypot);
            same!(f64: hypot);
            same!(f32: atan2);
            same!(f64: atan2);
            same!(f32: logaddexp);
            same!(f64: logaddexp);
        }
    }
}

#[test]
fn the_rest_of_a_product_is_what_a_fused_multiply_add_finds() {
    let xs = samples();
    for (&x, &y) in xs.iter().zip(xs.iter().skip(17)) {
        let (hi, lo) = (x * y, x.mul_add(y, -(x * y)));
        let splits = [x, y].iter().all(|x| x.abs() < 1e300);
        if splits && (lo.is_normal() || lo == 0.0) && hi.abs() > 1e-280 && hi.is_finite() {
            assert_eq!(pair::lost(x, y, hi).to_bits(), lo.to_bits(), "{x:e} · {y:e}");
        }
        let (x, y) = (x as f32, y as f32);
        let (hi, lo) = (x * y, x.mul_add(y, -(x * y)));
        if (lo.is_normal() || lo == 0.0) && hi.abs() > 1e-25 && hi.is_finite() {
            let splits = [x, y].iter().all(|x| x.abs() > 1e-25);
            assert!(!splits || pair::lost(x, y, hi).to_bits() == lo.to_bits(), "{x:e} · {y:e}");
        }
    }
}

#[test]
fn a_fused_product_is_rounded_once_without_the_instruction() {
    let check = |x: f32, y: f32, z: f32| {
        let (want, got) = (x.mul_add(y, z), Float::multiply_add(x, y, z));
        let are_nan = want.is_nan() && got.is_nan();
        assert!(are_nan || want.to_bits() == got.to_bits(), "{x:e} · {y:e} + {z:e}: {got:e}");
    };
    let xs: Vec<f32> = samples().into_iter().map(|x| x as f32).collect();
    for (i, &x) in xs.iter().enumerate() {
        let [y, z] = [17, 4242].map(|k| xs[(i + k) % xs.len()]);
        check(x, y, z);
        // Sums that are halfway between two numbers, but for what is far below; and that vanish.
        let tie = x.abs() * 2f32.powi(-24);
        for z in [-x * y, x * 2f32.powi(12), tie, tie * 1.0000001, 1e-45, -1e-45] {
            check(x, y, z);
            check(1.0 + y.abs().min(1.0) * 2f32.powi(-23), 1.0 + 2f32.powi(-23), z);
            check(tie, 1.0000001, x);
            check(-tie, 0.99999994, x);
        }
    }
}

#[test]
fn short_formulas_have_the_bits_of_the_full_ones_but_for_rare_numbers() {
    for x in samples() {
        macro_rules! same {
            ($float:ident: $($often:ident $full:ident $rare:ident),*) => {$({
                let x = x as $float;
                let (want, got) = ($full(x), $often(x));
                let are_nan = want.is_nan() && got.is_nan();
                let same = are_nan || want.to_bits() == got.to_bits();
                assert!($rare(x) || same, "{}({x:e}): {got:e}, {want:e}", stringify!($often));
            })*};
        }
        same!(f32: exp_often exp exp_is_rare, sigmoid_often sigmoid exp_is_rare);
        same!(f32: silu_often silu exp_is_rare, gelu_tanh_often gelu_tanh gelu_tanh_is_rare);
        same!(f64: exp_often exp exp_is_rare, sigmoid_often sigmoid exp_is_rare);
        same!(f64: silu_often silu exp_is_rare, gelu_tanh_often gelu_tanh gelu_tanh_is_rare);
    }
}
