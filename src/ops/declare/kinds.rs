//! The kinds of parameters: how an argument reads inside a body, and how it is written.

use smallvec::{SmallVec, smallvec};

use super::{Arguments, Attr, Classes, ParamKind};
use crate::dtype::DType;
use crate::error;
use crate::ops::emit::{Arg, Expr, throw};
use crate::shape::Extent;
use crate::small::small;

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
        throw(error::wrong_dtype(op, "x", dtype, classes.describe()));
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

/// A floating tensor, or a number of any kind, which takes the dtype of the other operands.
pub struct FloatOrNumber;
impl Kind for FloatOrNumber {
    const FORM: ParamKind = ParamKind::Tensor(Classes::FLOAT);
    type Value<'e> = Expr<'e>;
    fn read<'e>(op: &str, call: &Arguments<'_, 'e>, i: usize) -> Expr<'e> {
        let x = Expr::new(call.cx, call.operands_of(i)[0]);
        if !x.is_number() {
            check_class(op, x, Classes::FLOAT);
        }
        x
    }
    fn write(value: Expr<'_>, operands: &mut SmallVec<[Arg; 4]>) -> Attr {
        FloatTensor::write(value, operands)
    }
}

/// An integer tensor, or an int alone, which may be a size.
pub struct IntTensorOrSize;
impl Kind for IntTensorOrSize {
    const FORM: ParamKind = ParamKind::Tensor(Classes::INT);
    type Value<'e> = Expr<'e>;
    fn read<'e>(op: &str, call: &Arguments<'_, 'e>, i: usize) -> Expr<'e> {
        let x = Expr::new(call.cx, call.operands_of(i)[0]);
        if x.size_behind().is_none() {
            check_class(op, x, Classes::INT);
        }
        x
    }
    fn write(value: Expr<'_>, operands: &mut SmallVec<[Arg; 4]>) -> Attr {
        IntTensor::write(value, operands)
    }
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

/// Ints of a call that may be sizes.
pub type Extents = SmallVec<[Extent; 6]>;

/// An int alone, or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whole {
    /// `int`
    One(Extent),
    /// `tuple[int, ...]`
    Many(Extents),
}

impl Whole {
    fn attr(self) -> Attr {
        match self {
            Whole::One(n) => n.into(),
            Whole::Many(v) => Attr::of_extents(&v),
        }
    }
}

/// The padding of a convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Padded {
    /// So many elements on both sides of each axis
    By(SmallVec<[i64; 6]>),
    /// `"same"` or `"valid"`
    Word(String),
}

impl Padded {
    fn attr(self) -> Attr {
        match self {
            Padded::By(n) => Attr::Ints(n),
            Padded::Word(word) => Attr::Text(word.into()),
        }
    }
}

fn padded(attr: &Attr) -> Option<Padded> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "whatever is no word is for `ints` to judge")]
    match attr {
        Attr::Text(word) => Some(Padded::Word(word.to_string())),
        others => ints(others).map(Padded::By),
    }
}

/// An int as a number: a size that is an expression is asked for its value now, on which the trace
/// then relies.
fn int(attr: &Attr) -> Option<i64> {
    extent(attr).map(Extent::now)
}

/// An int, which may be a size.
fn extent(attr: &Attr) -> Option<Extent> {
    match attr {
        Attr::Int(n) => Some(Extent::Number(*n)),
        Attr::Size(dim) => Some(Extent::Size(*dim)),
        Attr::None
        | Attr::Bool(_)
        | Attr::Float(_)
        | Attr::Ints(_)
        | Attr::Sizes(_)
        | Attr::DType(_)
        | Attr::Text(_)
        | Attr::Operands(_)
        | Attr::Operand => None,
    }
}

/// Ints as numbers.
pub fn numbers(list: &[Extent]) -> SmallVec<[i64; 6]> {
    list.iter().map(|n| n.now()).collect()
}

/// Ints as numbers; one int is a list of one.
pub fn ints(attr: &Attr) -> Option<SmallVec<[i64; 6]>> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "`int` and `extent` list the others")]
    match attr {
        Attr::Ints(list) => Some(list.clone()),
        Attr::Sizes(list) => Some(numbers(list)),
        one => int(one).map(|n| smallvec![n]),
    }
}

/// Numbers as ints that may be sizes. A short list is written as a whole, not pushed.
fn of_numbers(list: &[i64]) -> Extents {
    let mut items = [Extent::Number(0); 6];
    if list.len() > items.len() {
        return list.iter().map(|&n| n.into()).collect();
    }
    items.iter_mut().zip(list).for_each(|(item, &n)| *item = n.into());
    SmallVec::from_buf_and_len(items, list.len())
}

/// Ints that may be sizes; one int is a list of one.
fn extents(attr: &Attr) -> Option<Extents> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "`int` and `extent` list the others")]
    match attr {
        Attr::Ints(list) => Some(of_numbers(list)),
        Attr::Sizes(list) => Some(small(list.iter().copied())),
        one => extent(one).map(|n| smallvec![n]),
    }
}

fn whole(attr: &Attr) -> Option<Whole> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "`int` and `extent` list the others")]
    match attr {
        Attr::Ints(_) | Attr::Sizes(_) => extents(attr).map(Whole::Many),
        one => extent(one).map(Whole::One),
    }
}

macro_rules! plain_kinds {
    ($($(#[doc = $doc:literal])* $name:ident = $form:expr, $value:ty,
       $attr:ident => $read:expr; $v:ident => $write:expr;)*) => {$(
        $(#[doc = $doc])*
        pub struct $name;
        impl Kind for $name {
            const FORM: ParamKind = $form;
            type Value<'e> = $value;
            fn read<'e>(op: &str, call: &Arguments<'_, 'e>, i: usize) -> $value {
                let $attr = &call.attributes[i];
                $read.unwrap_or_else(|| {
                    throw(error::bad_type(op, format!("argument {i}"), format!("{:?}", $attr)))
                })
            }
            fn write($v: $value, _: &mut SmallVec<[Arg; 4]>) -> Attr {
                $write
            }
        }
    )*};
}

/// `None`, or something read.
fn maybe<T>(attr: &Attr, read: fn(&Attr) -> Option<T>) -> Option<Option<T>> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "whatever is given is for `read` to judge")]
    match attr {
        Attr::None => Some(None),
        given => read(given).map(Some),
    }
}

fn truth(attr: &Attr) -> Option<bool> {
    if let Attr::Bool(b) = attr { Some(*b) } else { None }
}

fn float(attr: &Attr) -> Option<f64> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "`int` lists the others")]
    match attr {
        Attr::Float(x) => Some(*x),
        one => int(one).map(|n| n as f64),
    }
}

fn dtype(attr: &Attr) -> Option<DType> {
    if let Attr::DType(d) = attr { Some(*d) } else { None }
}

fn text(attr: &Attr) -> Option<String> {
    if let Attr::Text(s) = attr { Some(s.to_string()) } else { None }
}

plain_kinds! {
    /// `bool`
    Bool = ParamKind::Bool, bool, v => truth(v); v => Attr::Bool(v);
    /// `bool | None`
    MaybeBool = ParamKind::MaybeBool, Option<bool>, v => maybe(v, truth); v => v.map_or(Attr::None, Attr::Bool);
    /// `int`
    Int = ParamKind::Int, i64, v => int(v); v => Attr::Int(v);
    /// `int | None`
    MaybeInt = ParamKind::MaybeInt, Option<i64>, v => maybe(v, int); v => v.map_or(Attr::None, Attr::Int);
    /// An int that is a size: it may be an expression
    Size = ParamKind::Int, Extent, v => extent(v); v => v.into();
    /// The same, or `None`
    MaybeSize = ParamKind::MaybeInt, Option<Extent>, v => maybe(v, extent); v => v.map_or(Attr::None, Attr::from);
    /// `float`
    Float = ParamKind::Float, f64, v => float(v); v => Attr::Float(v);
    /// `float | None`
    MaybeFloat = ParamKind::MaybeFloat, Option<f64>, v => maybe(v, float); v => v.map_or(Attr::None, Attr::Float);
    /// Axes: `int | tuple[int, ...] | None`
    Axes = ParamKind::Ints, Option<SmallVec<[i64; 6]>>, v => maybe(v, ints); v => v.map_or(Attr::None, Attr::Ints);
    /// `int | tuple[int, ...]`
    Ints = ParamKind::Ints, SmallVec<[i64; 6]>, v => ints(v); v => Attr::Ints(v);
    /// The same of sizes, or `None`
    MaybeSizes = ParamKind::Ints, Option<Extents>, v => maybe(v, extents);
        v => v.map_or(Attr::None, |v| Attr::of_extents(&v));
    /// `int | tuple[int, ...]` that are sizes: they may be expressions
    Sizes = ParamKind::Ints, Extents, v => extents(v); v => Attr::of_extents(&v);
    /// `int | tuple[int, ...]` where the two mean different things
    Counts = ParamKind::Ints, Whole, v => whole(v); v => v.attr();
    /// An int, ints, or pairs, flattened
    Pairs = ParamKind::Pairs, Whole, v => whole(v); v => v.attr();
    /// A shape, as given (−1 is the body's business)
    Shape = ParamKind::Shape, Extents, v => extents(v); v => Attr::of_extents(&v);
    /// A dtype
    Dtype = ParamKind::DType, DType, v => dtype(v); v => Attr::DType(v);
    /// A dtype or `None`
    MaybeDtype = ParamKind::MaybeDType, Option<DType>, v => maybe(v, dtype);
        v => v.map_or(Attr::None, Attr::DType);
    /// How a loss is reduced
    LossReduction = ParamKind::Word(&["mean", "sum", "none"]), String, v => text(v); v => Attr::Text(v.into());
    /// The same for divergences, which have their mean over a batch too
    DivergenceReduction = ParamKind::Word(&["mean", "batchmean", "sum", "none"]), String,
        v => text(v); v => Attr::Text(v.into());
    /// What becomes of values that meet at a place
    ScatterReduction = ParamKind::Word(&["sum", "prod", "max", "min"]), String,
        v => text(v); v => Attr::Text(v.into());
    /// What stands around a tensor
    PadMode = ParamKind::Word(&[
        "constant", "reflect", "symmetric", "edge", "replicate", "wrap", "circular",
    ]), String, v => text(v); v => Attr::Text(v.into());
    /// Which form of GELU
    GeluForm = ParamKind::Word(&["none", "tanh"]), String, v => text(v); v => Attr::Text(v.into());
    /// What a simple recurrent net does to its sums
    Nonlinearity = ParamKind::Word(&["tanh", "relu"]), String, v => text(v); v => Attr::Text(v.into());
    /// How an image is resized
    ResizeMode = ParamKind::Word(&[
        "nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic", "area",
    ]), String, v => text(v); v => Attr::Text(v.into());
    /// How an image is sampled between its elements
    SampleMode = ParamKind::Word(&["bilinear", "nearest", "bicubic"]), String, v => text(v);
        v => Attr::Text(v.into());
    /// What an image is outside
    SamplePadding = ParamKind::Word(&["zeros", "border", "reflection"]), String, v => text(v);
        v => Attr::Text(v.into());
    /// The padding of a convolution: ints, or a word
    Padding = ParamKind::Padding, Padded, v => padded(v); v => v.attr();
    /// Text
    Text = ParamKind::Text, String, v => text(v); v => Attr::Text(v.into());
}

/// A device or `None`. The bindings have checked it; this build computes on the CPU.
pub struct MaybeDevice;
impl Kind for MaybeDevice {
    const FORM: ParamKind = ParamKind::MaybeDevice;
    type Value<'e> = ();
    fn read<'e>(_: &str, _: &Arguments<'_, 'e>, _: usize) {}
    fn write((): (), _: &mut SmallVec<[Arg; 4]>) -> Attr {
        Attr::None
    }
}

/// A random key: a uint32 tensor of shape (2,). Where a user passes none, the bindings draw one.
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
