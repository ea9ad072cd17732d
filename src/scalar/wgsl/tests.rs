//! Printed formulas are accepted by naga, read as they should, and give what native numbers give.

use super::super::fused::Apart;
use super::super::*;
use super::*;
use std::collections::HashMap;

type F = Code<f32>;
type Unary<T> = fn(T) -> T;
type Binary<T> = fn(T, T) -> T;

/// Whether naga accepts a formula inside a compute shader.
fn check(name: &str, inputs: usize, ty: WgslType, formula: impl FnOnce(&[Value]) -> Value) {
    let names = ["a", "b", "c"];
    let inputs: Vec<_> = names[..inputs].iter().map(|n| (*n, ty)).collect();
    let mut out = ty;
    let (body, result) = print(&inputs, |v| {
        let value = formula(v);
        out = value.ty();
        value
    });
    let loads: String =
        inputs.iter().map(|(n, _)| format!("let {n} = data[i + len_{n}];\n")).collect();
    let lengths: String =
        inputs.iter().map(|(n, _)| format!("const len_{n}: u32 = 1u;\n")).collect();
    let (ty, store) = (ty.name(), if out == WgslType::Bool { "u32" } else { out.name() });
    let source = format!(
        "@group(0) @binding(0) var<storage, read> data: array<{ty}>;
         @group(0) @binding(1) var<storage, read_write> out: array<{store}>;
         {lengths}
         @compute @workgroup_size(64)
         fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
             let i = id.x;\n{loads}{body}out[i] = {store}({result});
         }}"
    );
    let module = naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|e| panic!("{name}: {}\n{source}", e.emit_to_string(&source)));
    use naga::valid::{Capabilities, ValidationFlags, Validator};
    Validator::new(ValidationFlags::all(), Capabilities::empty())
        .validate(&module)
        .unwrap_or_else(|e| panic!("{name}: {}\n{source}", e.emit_to_string(&source)));
}

/// Native numbers whose products are not fused, as those of WGSL are not.
type Native = Apart<f32>;

/// Every function of one number: printed, and native.
const UNARY: &[(&str, Unary<F>, Unary<Native>)] = &[
    ("acos", acos, acos),
    ("acosh", acosh, acosh),
    ("asin", asin, asin),
    ("asinh", asinh, asinh),
    ("atan", atan, atan),
    ("atanh", atanh, atanh),
    ("cbrt", cbrt, cbrt),
    ("cos", cos, cos),
    ("cosh", cosh, cosh),
    ("erf", erf, erf),
    ("erfc", erfc, erfc),
    ("erfinv", erfinv, erfinv),
    ("exp", exp, exp),
    ("exp2", exp2, exp2),
    ("expm1", expm1, expm1),
    ("log", log, log),
    ("log10", log10, log10),
    ("log1p", log1p, log1p),
    ("log2", log2, log2),
    ("log_sigmoid", log_sigmoid, log_sigmoid),
    ("rsqrt", rsqrt, rsqrt),
    ("sigmoid", sigmoid, sigmoid),
    ("sin", sin, sin),
    ("sinh", sinh, sinh),
    ("softplus", softplus, softplus),
    ("tan", tan, tan),
    ("tanh", tanh, tanh),
    ("sqrt", Float::sqrt, Float::sqrt),
    ("floor", Float::floor, Float::floor),
    ("ceil", Float::ceil, Float::ceil),
    ("trunc", Float::trunc, Float::trunc),
    ("round", Float::round, Float::round),
    ("sign", Scalar::sign, Scalar::sign),
    ("abs", Scalar::abs, Scalar::abs),
    ("neg", Neg::neg, Neg::neg),
];

#[test]
fn functions_of_one_number_are_valid() {
    for (name, f, _) in UNARY {
        check(name, 1, WgslType::F32, |v| f(v[0].typed()).into());
    }
}

/// Every function of two numbers: printed, and native.
const BINARY: &[(&str, Binary<F>, Binary<Native>)] = &[
    ("atan2", atan2, atan2),
    ("hypot", hypot, hypot),
    ("logaddexp", logaddexp, logaddexp),
    ("pow", pow, pow),
    ("fmod", fmod, fmod),
    ("remainder", remainder, remainder),
    ("floor_divide", floor_divide, floor_divide),
    ("maximum", Scalar::maximum, Scalar::maximum),
    ("minimum", Scalar::minimum, Scalar::minimum),
    ("div", Div::div, Div::div),
];

#[test]
fn functions_of_two_numbers_are_valid() {
    for (name, f, _) in BINARY {
        check(name, 2, WgslType::F32, |v| f(v[0].typed(), v[1].typed()).into());
    }
}

/// Every operation on one integer type.
fn integer<T: Word>()
where
    Code<T>: Int<Mask = Code<bool>>,
{
    let functions: &[(&str, Binary<Code<T>>)] = &[
        ("add", Add::add),
        ("mul", Mul::mul),
        ("sub_neg", |a, b| -(a - b)),
        ("bits", |a, b| (a & b) | !(a ^ b)),
        ("shift_left", Int::shift_left),
        ("shift_right", Int::shift_right),
        ("floor_divide", Int::floor_divide),
        ("remainder", Int::remainder),
        ("maximum", |a, b| a.maximum(b).minimum(a.abs()) + b.sign()),
        ("literals", |a, _| a + -Code::<T>::whole(7) + Code::<T>::whole(i32::MIN as i64)),
    ];
    for (name, f) in functions {
        check(name, 2, T::TYPE, |v| f(v[0].typed(), v[1].typed()).into());
    }
    check("ne", 2, T::TYPE, |v| v[0].typed::<T>().ne(v[1].typed()).into());
}

#[test]
fn integers_are_valid() {
    integer::<i32>();
    integer::<u32>();
}

#[test]
fn text_is_one_line_an_operation() {
    let (body, result) = print(&[("x", WgslType::F32)], |v| {
        let x: F = v[0].typed();
        (x * x - F::lit(-0.25)).into()
    });
    assert_eq!(body, "let v0 = x * x;\nlet v1 = v0 - (-0.25f);\n");
    assert_eq!(result, "v1");
}

#[test]
fn special_literals_are_not_constant_expressions() {
    let (body, result) = print(&[], |_| F::nan().into());
    assert_eq!(body, "let v0 = 2143289344i;\nlet v1 = bitcast<f32>(v0);\n");
    assert_eq!(result, "v1");
    for special in [f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e-40] {
        let (body, _) = print(&[], |_| F::lit(special).into());
        assert!(body.contains("bitcast"), "{special}: {body}");
    }
}

/// A value while printed lines are run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Run {
    F(f32),
    I(i32),
    U(u32),
    B(bool),
}

use Run::{B, F as Number, I, U};

/// The value of a name or a literal.
fn atom(names: &HashMap<String, Run>, text: &str) -> Run {
    let text = text.trim_start_matches('(').trim_end_matches(')');
    if let Some(value) = names.get(text) {
        return *value;
    }
    let (digits, suffix) = text.split_at(text.len() - 1);
    match suffix {
        "f" => Number(digits.parse().unwrap()),
        "i" => I(digits.parse().unwrap()),
        "u" => U(digits.parse().unwrap()),
        _ => I(text.trim_start_matches("i32(").parse().unwrap()),
    }
}

/// `a operator b`
fn infix(a: Run, operator: &str, b: Run) -> Run {
    match (a, operator, b) {
        (Number(a), "+", Number(b)) => Number(a + b),
        (Number(a), "-", Number(b)) => Number(a - b),
        (Number(a), "*", Number(b)) => Number(a * b),
        (Number(a), "/", Number(b)) => Number(a / b),
        (Number(a), "<", Number(b)) => B(a < b),
        (Number(a), "<=", Number(b)) => B(a <= b),
        (Number(a), "==", Number(b)) => B(a == b),
        (I(a), "+", I(b)) => I(a.wrapping_add(b)),
        (I(a), "-", I(b)) => I(a.wrapping_sub(b)),
        (I(a), "&", I(b)) => I(a & b),
        (I(a), "|", I(b)) => I(a | b),
        (I(a), "<", I(b)) => B(a < b),
        (I(a), "==", I(b)) => B(a == b),
        (I(a), "<<", U(b)) => I(a << b),
        (I(a), ">>", U(b)) => I(a >> b),
        (U(a), "&", U(b)) => U(a & b),
        (U(a), "<", U(b)) => B(a < b),
        (B(a), "&", B(b)) => B(a & b),
        (B(a), "|", B(b)) => B(a | b),
        (B(a), "!=", B(b)) => B(a != b),
        other => panic!("{other:?}"),
    }
}

/// `name(arguments)`
fn call(name: &str, arguments: &[Run]) -> Run {
    match (name, arguments) {
        ("select", [b, a, B(mask)]) => {
            if *mask {
                *a
            } else {
                *b
            }
        }
        ("max", [I(a), I(b)]) => I(*a.max(b)),
        ("min", [I(a), I(b)]) => I(*a.min(b)),
        ("-", [Number(x)]) => Number(-x),
        ("-", [I(x)]) => I(x.wrapping_neg()),
        ("!", [B(x)]) => B(!x),
        ("abs", [Number(x)]) => Number(x.abs()),
        ("floor", [Number(x)]) => Number(x.floor()),
        ("ceil", [Number(x)]) => Number(x.ceil()),
        ("trunc", [Number(x)]) => Number(x.trunc()),
        ("round", [Number(x)]) => Number(x.round_ties_even()),
        ("sqrt", [Number(x)]) => Number(x.sqrt()),
        ("f32", [I(x)]) => Number(*x as f32),
        ("i32", [Number(x)]) => I(*x as i32),
        ("bitcast<f32>", [I(x)]) => Number(f32::from_bits(*x as u32)),
        ("bitcast<i32>", [Number(x)]) => I(x.to_bits() as i32),
        ("bitcast<u32>", [Number(x)]) => U(x.to_bits()),
        other => panic!("{other:?}"),
    }
}

/// Runs printed lines with IEEE arithmetic.
fn run(body: &str, result: &str, inputs: &[f32]) -> f32 {
    let named = ["a", "b"].iter().zip(inputs).map(|(n, x)| (n.to_string(), Number(*x)));
    let mut names: HashMap<String, Run> = named.collect();
    for line in body.lines() {
        let (name, expression) =
            line.strip_prefix("let ").and_then(|l| l.strip_suffix(';')?.split_once(" = ")).unwrap();
        let words: Vec<&str> = expression.split(' ').collect();
        let value = match words[..] {
            [a, operator, b] if !a.ends_with(',') => {
                infix(atom(&names, a), operator, atom(&names, b))
            }
            [single] if !single.contains('(') || single.starts_with('(') => atom(&names, single),
            _ => {
                let (name, arguments) = expression.split_once('(').unwrap();
                let arguments = arguments.strip_suffix(')').unwrap().split(", ");
                let values: Vec<Run> = arguments.map(|a| atom(&names, a)).collect();
                call(name, &values)
            }
        };
        names.insert(name.to_string(), value);
    }
    let Number(value) = atom(&names, result) else { panic!("not a number: {result}") };
    value
}

/// Arguments over the whole range, and near the places where formulas change.
fn samples() -> Vec<f32> {
    let wide = (0..=u32::MAX).step_by(40_000_003).map(f32::from_bits);
    let near = (-400..=400).map(|i| i as f32 / 61.0);
    let special = [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX];
    wide.chain(near).chain(special).collect()
}

/// Whether two results have the same bits, or are NaN.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn printed_functions_of_one_number_give_the_same_bits() {
    for (name, f, native) in UNARY {
        let (body, result) = print(&[("a", WgslType::F32)], |v| f(v[0].typed()).into());
        let reduced = ["sin", "cos", "tan"].contains(name);
        for x in samples().into_iter().filter(|x| !reduced || x.is_nan() || x.abs() <= 1e5) {
            let (got, want) = (run(&body, &result, &[x]), native(Apart(x)).0);
            // Angles are reduced in single precision here and in double precision on the CPU.
            let near = reduced && (got - want).abs() <= 1.5 * f32::EPSILON * want.abs();
            assert!(same(got, want) || near, "{name}({x:e}) = {got:e}, natively {want:e}");
        }
    }
}

#[test]
fn printed_functions_of_two_numbers_give_the_same_bits() {
    let samples: Vec<f32> = samples().into_iter().step_by(13).collect();
    for (name, f, native) in BINARY {
        let inputs = [("a", WgslType::F32), ("b", WgslType::F32)];
        let (body, result) = print(&inputs, |v| f(v[0].typed(), v[1].typed()).into());
        let divides = ["fmod", "remainder", "floor_divide"].contains(name);
        for (x, y) in samples.iter().flat_map(|x| samples.iter().map(|y| (*x, *y))) {
            let inside = (x / y).abs() < 1e18 && y.abs() >= f32::MIN_POSITIVE;
            if divides && !inside && x.is_finite() && y.is_finite() && y != 0.0 {
                continue;
            }
            let (got, want) = (run(&body, &result, &[x, y]), native(Apart(x), Apart(y)).0);
            assert!(same(got, want), "{name}({x:e}, {y:e}) = {got:e}, natively {want:e}");
        }
    }
}
