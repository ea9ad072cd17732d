//! Printed formulas are accepted by naga, and read as they should.

use super::super::*;
use super::*;

type F = Code<f32>;

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

#[test]
fn functions_of_one_number_are_valid() {
    let functions: &[(&str, fn(F) -> F)] = &[
        ("acos", acos),
        ("acosh", acosh),
        ("asin", asin),
        ("asinh", asinh),
        ("atan", atan),
        ("atanh", atanh),
        ("cbrt", cbrt),
        ("cos", cos),
        ("cosh", cosh),
        ("erf", erf),
        ("erfc", erfc),
        ("erfinv", erfinv),
        ("exp", exp),
        ("exp2", exp2),
        ("expm1", expm1),
        ("log", log),
        ("log10", log10),
        ("log1p", log1p),
        ("log2", log2),
        ("log_sigmoid", log_sigmoid),
        ("rsqrt", rsqrt),
        ("sigmoid", sigmoid),
        ("sin", sin),
        ("sinh", sinh),
        ("softplus", softplus),
        ("tan", tan),
        ("tanh", tanh),
        ("sqrt", Float::sqrt),
        ("floor", Float::floor),
        ("ceil", Float::ceil),
        ("trunc", Float::trunc),
        ("round", Float::round),
        ("sign", Scalar::sign),
        ("abs", Scalar::abs),
        ("neg", Neg::neg),
    ];
    for (name, f) in functions {
        check(name, 1, WgslType::F32, |v| f(v[0].typed()).into());
    }
}

#[test]
fn functions_of_two_numbers_are_valid() {
    let functions: &[(&str, fn(F, F) -> F)] = &[
        ("atan2", atan2),
        ("hypot", hypot),
        ("logaddexp", logaddexp),
        ("pow", pow),
        ("fmod", fmod),
        ("remainder", remainder),
        ("floor_divide", floor_divide),
        ("maximum", Scalar::maximum),
        ("minimum", Scalar::minimum),
        ("div", Div::div),
    ];
    for (name, f) in functions {
        check(name, 2, WgslType::F32, |v| f(v[0].typed(), v[1].typed()).into());
    }
}

/// Every operation on one integer type.
fn integer<T: Word>()
where
    Code<T>: Int<Mask = Code<bool>>,
{
    let functions: &[(&str, fn(Code<T>, Code<T>) -> Code<T>)] = &[
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
