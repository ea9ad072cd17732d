//! The kinds of parameters: how an argument reads inside a body, and how it is written.

use smallvec::{SmallVec, smallvec};

use super::{Arguments, Attr, Classes, ParamKind};
use crate::dtype::{Class, DType};
use crate::error;
use crate::ops::emit::{Arg, Expr, throw};
use crate::shape::Dim;

/// A parameter kind: how its argument reads inside the body.
pub trait Kind {
    /// The Python form
    const FORM: ParamKind;
    /// What the body works with
    type Value<'e>;
    /// Reads argument `i` of a call of `op`.
    fn read<'e>(op: &str, call: &Arguments<'_, 'e>, i: usize) -> Self::Value<'e>;
    /// The reverse: pushes the operands, gives the attribute.
    fn write(value: Self::Value<'_>, operands: &mut SmallVec<[Arg; 4]>) -> Attr;
}

fn check_class(op: &str, x: Expr<'_>, classes: Classes) {
    let dtype = x.dtype();
    if !classes.contains(dtype.class()) {
        let want = classes.describe();
        throw(match dtype.class() {
            Class::Float => error::not_taken(op, dtype, "x", want),
            _ => error::bad_dtype(op, "x", dtype, want),
        });
    }
}

macro_rules! tensor_kinds {
    ($($(#[doc = $doc:literal])* $name:ident $maybe:ident $classes:ident;)*) => {$(
        $(#[doc = $doc])*
        pub struct $name;
        impl Kind for $name {
            const FORM: ParamKind = ParamKind::Tensor(Classes::$classes);
            type Value<'e> = Expr<'e>;
            fn read<'e>(op: &str, call: &Arguments<'_, 'e>, i: usize) -> Expr<'e> {
                let x = Expr::new(call.cx, call.operands_of(i)[0]);
                check_class(op, x, Classes::$classes);
                x
            }
            fn write(value: Expr<'_>, operands: &mut SmallVec<[Arg; 4]>) -> Attr {
                operands.push(value.arg());
                Attr::Operand
            }
        }
        /// The same, or `None`.
        pub struct $maybe;
        impl Kind for $maybe {
            const FORM: ParamKind = ParamKind::MaybeTensor(Classes::$classes);
            type Value<'e> = Option<Expr<'e>>;
            fn read<'e>(op: &str, call: &Arguments<'_, 'e>, i: usize) -> Option<Expr<'e>> {
                let x = Expr::new(call.cx, *call.operands_of(i).first()?);
                check_class(op, x, Classes::$classes);
                Some(x)
            }
            fn write(value: Option<Expr<'_>>, operands: &mut SmallVec<[Arg; 4]>) -> Attr {
                let Some(x) = value else { return Attr::None };
                operands.push(x.arg());
                Attr::Operand
            }
        }
    )*};
}
tensor_kinds! {
    /// A tensor of any dtype
    Tensor MaybeTensor ANY;
    /// A floating tensor
    FloatTensor MaybeFloatTensor FLOAT;
    /// A numeric tensor
    NumericTensor MaybeNumericTensor NUMERIC;
    /// An integer tensor
    IntTensor MaybeIntTensor INT;
    /// A bool tensor
    BoolTensor MaybeBoolTensor BOOL;
}

/// A sequence of tensors.
pub struct Tensors;
impl Kind for Tensors {
    const FORM: ParamKind = ParamKind::Tensors;
    type Value<'e> = Vec<Expr<'e>>;
    fn read<'e>(_: &str, call: &Arguments<'_, 'e>, i: usize) -> Vec<Expr<'e>> {
        call.operands_of(i).iter().map(|&arg| Expr::new(call.cx, arg)).collect()
    }
    fn write(value: Vec<Expr<'_>>, operands: &mut SmallVec<[Arg; 4]>) -> Attr {
        operands.extend(value.iter().map(|x| x.arg()));
        Attr::Operands(value.len() as u32)
    }
}

/// An int alone, or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whole {
    /// `int`
    One(i64),
    /// `tuple[int, ...]`
    Many(SmallVec<[i64; 6]>),
}

impl Whole {
    fn attr(self) -> Attr {
        match self {
            Whole::One(n) => Attr::Int(n),
            Whole::Many(v) => Attr::Ints(v),
        }
    }
}

/// An int of a user's as a number: a size that is an expression is asked for its value now, which the
/// trace then relies on.
fn plain(n: i64) -> i64 {
    let dim = Dim::given(n);
    match n < 0 || dim.known().is_some() {
        true => n,
        false => dim.value() as i64,
    }
}

fn all_plain(ints: &[i64]) -> SmallVec<[i64; 6]> {
    ints.iter().map(|&n| plain(n)).collect()
}

macro_rules! plain_kinds {
    ($($(#[doc = $doc:literal])* $name:ident = $form:expr, $value:ty,
       $($pattern:pat => $read:expr),+; $v:ident => $write:expr;)*) => {$(
        $(#[doc = $doc])*
        pub struct $name;
        impl Kind for $name {
            const FORM: ParamKind = $form;
            type Value<'e> = $value;
            fn read<'e>(op: &str, call: &Arguments<'_, 'e>, i: usize) -> $value {
                match &call.attributes[i] {
                    $($pattern => $read,)+
                    other => throw(error::bad_type(op, format!("argument {i}"), format!("{other:?}"))),
                }
            }
            fn write($v: $value, _: &mut SmallVec<[Arg; 4]>) -> Attr {
                $write
            }
        }
    )*};
}
plain_kinds! {
    /// `bool`
    Bool = ParamKind::Bool, bool, Attr::Bool(b) => *b; v => Attr::Bool(v);
    /// `int`
    Int = ParamKind::Int, i64, Attr::Int(n) => plain(*n); v => Attr::Int(v);
    /// `int | None`
    MaybeInt = ParamKind::MaybeInt, Option<i64>, Attr::Int(n) => Some(plain(*n)), Attr::None => None;
        v => v.map_or(Attr::None, Attr::Int);
    /// An int that is a size: it may be the code of an expression
    Size = ParamKind::Int, i64, Attr::Int(n) => *n; v => Attr::Int(v);
    /// The same, or `None`
    MaybeSize = ParamKind::MaybeInt, Option<i64>, Attr::Int(n) => Some(*n), Attr::None => None;
        v => v.map_or(Attr::None, Attr::Int);
    /// `float`
    Float = ParamKind::Float, f64, Attr::Float(x) => *x, Attr::Int(n) => *n as f64; v => Attr::Float(v);
    /// `float | None`
    MaybeFloat = ParamKind::MaybeFloat, Option<f64>,
        Attr::Float(x) => Some(*x), Attr::Int(n) => Some(*n as f64), Attr::None => None;
        v => v.map_or(Attr::None, Attr::Float);
    /// Axes: `int | tuple[int, ...] | None`
    Axes = ParamKind::Ints, Option<SmallVec<[i64; 6]>>,
        Attr::Ints(v) => Some(all_plain(v)), Attr::Int(n) => Some(smallvec![plain(*n)]),
        Attr::None => None;
        v => v.map_or(Attr::None, Attr::Ints);
    /// `int | tuple[int, ...]`; a single int stays alone
    Ints = ParamKind::Ints, SmallVec<[i64; 6]>,
        Attr::Ints(v) => all_plain(v), Attr::Int(n) => smallvec![plain(*n)]; v => Attr::Ints(v);
    /// The same of sizes, or `None`
    MaybeSizes = ParamKind::Ints, Option<SmallVec<[i64; 6]>>,
        Attr::Ints(v) => Some(v.clone()), Attr::Int(n) => Some(smallvec![*n]), Attr::None => None;
        v => v.map_or(Attr::None, Attr::Ints);
    /// `int | tuple[int, ...]` that are sizes: they may be codes of expressions
    Sizes = ParamKind::Ints, SmallVec<[i64; 6]>, Attr::Ints(v) => v.clone(), Attr::Int(n) => smallvec![*n];
        v => Attr::Ints(v);
    /// `int | tuple[int, ...]` where the two mean different things; codes as they are
    Counts = ParamKind::Ints, Whole,
        Attr::Ints(v) => Whole::Many(v.clone()), Attr::Int(n) => Whole::One(*n); v => v.attr();
    /// An int, ints, or pairs, flattened; codes of sizes as they are
    Pairs = ParamKind::Pairs, Whole,
        Attr::Ints(v) => Whole::Many(v.clone()), Attr::Int(n) => Whole::One(*n); v => v.attr();
    /// A shape, as given (−1 is the body's business)
    Shape = ParamKind::Shape, SmallVec<[i64; 6]>, Attr::Ints(v) => v.clone(), Attr::Int(n) => smallvec![*n];
        v => Attr::Ints(v);
    /// A dtype
    Dtype = ParamKind::DType, DType, Attr::DType(d) => *d; v => Attr::DType(v);
    /// A dtype or `None`
    MaybeDtype = ParamKind::MaybeDType, Option<DType>, Attr::DType(d) => Some(*d), Attr::None => None;
        v => v.map_or(Attr::None, Attr::DType);
    /// How a loss is reduced
    LossReduction = ParamKind::Word(&["mean", "sum", "none"]), String, Attr::Text(s) => s.to_string();
        v => Attr::Text(v.into());
    /// Which form of GELU
    GeluForm = ParamKind::Word(&["none", "tanh"]), String, Attr::Text(s) => s.to_string();
        v => Attr::Text(v.into());
    /// Text
    Text = ParamKind::Text, String, Attr::Text(s) => s.to_string(); v => Attr::Text(v.into());
}

/// A device or `None`. The border has checked it; this build computes on the CPU.
pub struct MaybeDevice;
impl Kind for MaybeDevice {
    const FORM: ParamKind = ParamKind::MaybeDevice;
    type Value<'e> = ();
    fn read<'e>(_: &str, _: &Arguments<'_, 'e>, _: usize) {}
    fn write((): (), _: &mut SmallVec<[Arg; 4]>) -> Attr {
        Attr::None
    }
}

/// A random key: a uint32 tensor of shape (2,). Where a user passes none, the border draws one.
pub struct Key;
impl Kind for Key {
    const FORM: ParamKind = ParamKind::Key;
    type Value<'e> = Expr<'e>;
    fn read<'e>(_: &str, call: &Arguments<'_, 'e>, i: usize) -> Expr<'e> {
        Expr::new(call.cx, call.operands_of(i)[0])
    }
    fn write(value: Expr<'_>, operands: &mut SmallVec<[Arg; 4]>) -> Attr {
        operands.push(value.arg());
        Attr::Operand
    }
}

/// A Python number, kept as it came: a runtime operand.
pub struct Number;
impl Kind for Number {
    const FORM: ParamKind = ParamKind::Number;
    type Value<'e> = Expr<'e>;
    fn read<'e>(_: &str, call: &Arguments<'_, 'e>, i: usize) -> Expr<'e> {
        Expr::new(call.cx, call.operands_of(i)[0])
    }
    fn write(value: Expr<'_>, operands: &mut SmallVec<[Arg; 4]>) -> Attr {
        operands.push(value.arg());
        Attr::Operand
    }
}

/// A Python number or `None`.
pub struct MaybeNumber;
impl Kind for MaybeNumber {
    const FORM: ParamKind = ParamKind::MaybeNumber;
    type Value<'e> = Option<Expr<'e>>;
    fn read<'e>(_: &str, call: &Arguments<'_, 'e>, i: usize) -> Option<Expr<'e>> {
        call.operands_of(i).first().map(|&arg| Expr::new(call.cx, arg))
    }
    fn write(value: Option<Expr<'_>>, operands: &mut SmallVec<[Arg; 4]>) -> Attr {
        let Some(x) = value else { return Attr::None };
        operands.push(x.arg());
        Attr::Operand
    }
}
