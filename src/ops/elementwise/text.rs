//! Elementwise formulas as WGSL.

use super::Instance;
use crate::scalar::wgsl::{self, Code, Value, WgslType, Word};
use crate::tile::{Map1, Map2, Map3};

/// A formula over operands `a`, `b`, `c`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Lines that name what lies between
    pub body: String,
    /// The expression of the result
    pub result: String,
    /// The type of the result
    pub ty: WgslType,
}

fn print(inputs: &[(&str, WgslType)], formula: impl FnOnce(&[Value]) -> Value) -> Instance {
    let mut ty = WgslType::Bool;
    let (body, result) = wgsl::print(inputs, |values| {
        let y = formula(values);
        ty = y.ty();
        y
    });
    Instance::Text(Text { body, result, ty })
}

/// The text of a formula of one operand.
pub fn print1<F: Map1<Code<T>>, T: Word>() -> Instance
where
    F::Out: Into<Value>,
{
    print(&[("a", T::TYPE)], |v| F::map(v[0].typed()).into())
}

/// The text of a formula of two operands.
pub fn print2<F: Map2<Code<T>, Code<T>>, T: Word>() -> Instance
where
    F::Out: Into<Value>,
{
    print(&[("a", T::TYPE), ("b", T::TYPE)], |v| F::map(v[0].typed(), v[1].typed()).into())
}

/// The text of a formula of a condition and two operands.
pub fn print3<F: Map3<Code<bool>, Code<T>, Code<T>>, T: Word>() -> Instance
where
    F::Out: Into<Value>,
{
    let inputs = [("a", WgslType::Bool), ("b", T::TYPE), ("c", T::TYPE)];
    print(&inputs, |v| F::map(v[0].typed(), v[1].typed(), v[2].typed()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Class;
    use crate::ops::elementwise::{Elementwise, ResultRule, tables};

    const TYPES: [(Class, WgslType); 4] = [
        (Class::Float, WgslType::F32),
        (Class::Int, WgslType::I32),
        (Class::Int, WgslType::U32),
        (Class::Bool, WgslType::Bool),
    ];

    fn function(op: &Elementwise, ty: WgslType, text: &Text) -> String {
        let operand = |i| if op.is_condition(i) { WgslType::Bool } else { ty };
        let operands: Vec<String> = ["a", "b", "c"][..op.params.len()]
            .iter()
            .enumerate()
            .map(|(i, name)| format!("{name}: {}", operand(i).name()))
            .collect();
        let (operands, out) = (operands.join(", "), text.ty.name());
        format!("fn f({operands}) -> {out} {{\n{}return {};\n}}\n", text.body, text.result)
    }

    #[test]
    fn every_op_prints_for_every_type_it_takes_and_naga_accepts_the_text() {
        use naga::valid::{Capabilities, ValidationFlags, Validator};
        for op in tables() {
            for (class, ty) in TYPES {
                let text = op.text(ty);
                assert_eq!(text.is_some(), op.classes.contains(class), "{} {ty:?}", op.name);
                let Some(text) = text else { continue };
                let out = if op.result == ResultRule::Bool { WgslType::Bool } else { ty };
                assert_eq!(text.ty, out, "{} {ty:?}", op.name);
                let source = function(op, ty, &text);
                let module = naga::front::wgsl::parse_str(&source)
                    .unwrap_or_else(|e| panic!("{}: {}", op.name, e.emit_to_string(&source)));
                Validator::new(ValidationFlags::all(), Capabilities::empty())
                    .validate(&module)
                    .unwrap_or_else(|e| panic!("{}: {}", op.name, e.emit_to_string(&source)));
            }
        }
    }
}
