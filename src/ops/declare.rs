//! Declarations: parameters, attributes, and the `composite!` macro.
//!
//! A declaration is plain data beside one ordinary Rust function. Everything a user meets (function,
//! method, signature, stub, docstring, argument checks) is derived from the parameters; a parameter
//! kind is a type that knows its Python form, so a declaration cannot disagree with its body.

use std::hash::{Hash, Hasher};
use std::sync::atomic::AtomicBool;

use smallvec::{SmallVec, smallvec};

use super::emit::{Arg, Emit, Expr, throw};
use super::op::{self, Op};
use super::rule::Rule;
use crate::dtype::{Class, DType, Scalar};
use crate::error;
use crate::shape::{Axes as AxisList, Dim};

/// Which classes of dtypes an operand may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classes(u8);

impl Classes {
    /// Floats
    pub const FLOAT: Classes = Classes(0b100);
    /// Integers
    pub const INT: Classes = Classes(0b010);
    /// Bool
    pub const BOOL: Classes = Classes(0b001);
    /// Integers and floats
    pub const NUMERIC: Classes = Classes(0b110);
    /// Everything
    pub const ANY: Classes = Classes(0b111);
    /// Nothing, to build on
    pub const NONE: Classes = Classes(0);

    /// Both.
    pub const fn or(self, other: Classes) -> Classes {
        Classes(self.0 | other.0)
    }

    /// Whether a class is one of these.
    pub const fn contains(self, class: Class) -> bool {
        let bit = match class {
            Class::Bool => Classes::BOOL.0,
            Class::Int => Classes::INT.0,
            Class::Float => Classes::FLOAT.0,
        };
        self.0 & bit != 0
    }

    /// For messages: `floating`, `an integer or bool`.
    pub const fn describe(self) -> &'static str {
        match self.0 {
            0b100 => "floating",
            0b010 => "an integer",
            0b001 => "bool",
            0b110 => "numeric",
            0b011 => "an integer or bool",
            0b101 => "floating or bool",
            _ => "any dtype",
        }
    }
}

/// The Python form of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParamKind {
    /// A tensor (arrays and numbers convert)
    Tensor(Classes),
    /// A tensor or `None`
    MaybeTensor(Classes),
    /// A sequence of tensors
    Tensors,
    /// `bool`
    Bool,
    /// `int`
    Int,
    /// `int | None`
    MaybeInt,
    /// `float`
    Float,
    /// `float | None`
    MaybeFloat,
    /// A Python number
    Number,
    /// A Python number or `None`
    MaybeNumber,
    /// `int | tuple[int, ...] | None`
    Ints,
    /// An int, ints, or pairs of ints or of lists of ints; nested ones arrive flattened, in order
    Pairs,
    /// A shape: an int, a tuple, or, as the last positional parameter, several ints
    Shape,
    /// A dtype
    DType,
    /// A dtype or `None`
    MaybeDType,
    /// One of some words
    Word(&'static [&'static str]),
    /// Any text
    Text,
    /// A device or `None`
    MaybeDevice,
    /// A random key (uint32 tensor of shape (2,)); `None` draws one from the global generator
    Key,
}

/// One declared parameter.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// The name
    pub name: &'static str,
    /// The Python form
    pub kind: ParamKind,
    /// The default as Python source; `None` where the argument is required
    pub default: Option<&'static str>,
    /// Whether it can only be passed by name
    pub keyword_only: bool,
}

/// A parsed argument.
#[derive(Clone, Debug)]
pub enum Attr {
    /// Absent
    None,
    /// `bool`
    Bool(bool),
    /// `int`
    Int(i64),
    /// `float`
    Float(f64),
    /// Several ints
    Ints(SmallVec<[i64; 6]>),
    /// A dtype
    DType(DType),
    /// A word
    Text(Box<str>),
    /// The next `n` operands: structure only, the values are runtime operands
    Operands(u32),
    /// The next operand
    Operand,
}

impl Attr {
    /// How many operands this stands for.
    pub fn width(&self) -> usize {
        match self {
            Attr::Operand => 1,
            Attr::Operands(n) => *n as usize,
            _ => 0,
        }
    }

    /// Visits every size that is an expression: ints hold its code.
    pub fn each_dim(&mut self, f: &mut impl FnMut(&mut Dim)) {
        let mut visit = |n: &mut i64| {
            let mut dim = Dim::from_i64(*n);
            if dim.known().is_none() {
                f(&mut dim);
                *n = dim.to_i64();
            }
        };
        match self {
            Attr::Int(n) => visit(n),
            Attr::Ints(list) => list.iter_mut().for_each(visit),
            Attr::None
            | Attr::Bool(_)
            | Attr::Float(_)
            | Attr::DType(_)
            | Attr::Text(_)
            | Attr::Operands(_)
            | Attr::Operand => {}
        }
    }

    /// Whether an int in it is a size that is an expression.
    pub fn has_size(&self) -> bool {
        let is_size = |n: &i64| Dim::from_i64(*n).known().is_none();
        match self {
            Attr::Int(n) => is_size(n),
            Attr::Ints(list) => list.iter().any(is_size),
            Attr::None
            | Attr::Bool(_)
            | Attr::Float(_)
            | Attr::DType(_)
            | Attr::Text(_)
            | Attr::Operands(_)
            | Attr::Operand => false,
        }
    }

    /// Floats compare and hash by their bits, so that attributes can key plans.
    fn key(&self) -> (u8, u64) {
        match self {
            Attr::None => (0, 0),
            Attr::Bool(b) => (1, u64::from(*b)),
            Attr::Int(i) => (2, *i as u64),
            Attr::Float(x) => (3, x.to_bits()),
            Attr::Ints(_) => (4, 0),
            Attr::DType(d) => (5, *d as u64),
            Attr::Text(_) => (6, 0),
            Attr::Operands(n) => (7, u64::from(*n)),
            Attr::Operand => (8, 0),
        }
    }
}

impl PartialEq for Attr {
    fn eq(&self, other: &Attr) -> bool {
        match (self, other) {
            (Attr::Ints(a), Attr::Ints(b)) => a == b,
            (Attr::Text(a), Attr::Text(b)) => a == b,
            _ => self.key() == other.key(),
        }
    }
}
impl Eq for Attr {}
impl Hash for Attr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
        match self {
            Attr::Ints(v) => v.hash(state),
            Attr::Text(s) => s.hash(state),
            _ => {}
        }
    }
}

/// The arguments of one call: attributes by parameter, and the operands they refer to in order.
pub struct Arguments<'a, 'e> {
    /// Where the formula's nodes go
    pub cx: &'e dyn Emit,
    /// One attribute per parameter
    pub attributes: &'a [Attr],
    /// The operands
    pub operands: &'a [Arg],
}

impl<'a> Arguments<'a, '_> {
    /// The operands of parameter `i`.
    fn operands_of(&self, i: usize) -> &'a [Arg] {
        let start: usize = self.attributes[..i].iter().map(Attr::width).sum();
        &self.operands[start..start + self.attributes[i].width()]
    }
}

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
    Int = ParamKind::Int, i64, Attr::Int(n) => *n; v => Attr::Int(v);
    /// `int | None`
    MaybeInt = ParamKind::MaybeInt, Option<i64>, Attr::Int(n) => Some(*n), Attr::None => None;
        v => v.map_or(Attr::None, Attr::Int);
    /// `float`
    Float = ParamKind::Float, f64, Attr::Float(x) => *x, Attr::Int(n) => *n as f64; v => Attr::Float(v);
    /// `float | None`
    MaybeFloat = ParamKind::MaybeFloat, Option<f64>,
        Attr::Float(x) => Some(*x), Attr::Int(n) => Some(*n as f64), Attr::None => None;
        v => v.map_or(Attr::None, Attr::Float);
    /// Axes: `int | tuple[int, ...] | None`
    Axes = ParamKind::Ints, Option<SmallVec<[i64; 6]>>,
        Attr::Ints(v) => Some(v.clone()), Attr::Int(n) => Some(smallvec![*n]), Attr::None => None;
        v => v.map_or(Attr::None, Attr::Ints);
    /// `int | tuple[int, ...]`; a single int stays alone
    Ints = ParamKind::Ints, SmallVec<[i64; 6]>, Attr::Ints(v) => v.clone(), Attr::Int(n) => smallvec![*n];
        v => Attr::Ints(v);
    /// `int | tuple[int, ...]` where the two mean different things
    Counts = ParamKind::Ints, Whole,
        Attr::Ints(v) => Whole::Many(v.clone()), Attr::Int(n) => Whole::One(*n); v => v.attr();
    /// An int, ints, or pairs, flattened
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

/// What a body gives back.
pub type Outputs<'e> = SmallVec<[Expr<'e>; 1]>;

/// One or several results.
pub trait IntoOutputs<'e> {
    /// The results in order.
    fn into_outputs(self) -> Outputs<'e>;
}
impl<'e> IntoOutputs<'e> for Expr<'e> {
    fn into_outputs(self) -> Outputs<'e> {
        smallvec![self]
    }
}
impl<'e> IntoOutputs<'e> for (Expr<'e>, Expr<'e>) {
    fn into_outputs(self) -> Outputs<'e> {
        smallvec![self.0, self.1]
    }
}
impl<'e> IntoOutputs<'e> for (Expr<'e>, Expr<'e>, Expr<'e>) {
    fn into_outputs(self) -> Outputs<'e> {
        smallvec![self.0, self.1, self.2]
    }
}
impl<'e> IntoOutputs<'e> for Vec<Expr<'e>> {
    fn into_outputs(self) -> Outputs<'e> {
        self.into()
    }
}

/// How many results a function has, for signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// One tensor
    One,
    /// A fixed or data-independent number of tensors, as a list
    Many,
}

/// A gradient rule of a composite: rule operands, the call's arguments, the parameter asked for.
pub type VjpRule = for<'e> fn(&Rule<'_, 'e>, &Arguments<'_, 'e>, usize) -> Option<Expr<'e>>;

/// A composite of the table: a formula over other ops.
pub struct Composite {
    /// The name in Python
    pub name: &'static str,
    /// The Python module below `wengert`; empty is the top
    pub namespace: &'static str,
    /// The docstring
    pub doc: &'static str,
    /// The parameters
    pub params: &'static [Param],
    /// Whether it is a method of `Tensor` too
    pub method: bool,
    /// How many results it has
    pub returns: Returns,
    /// The formula
    pub body: for<'e> fn(&Arguments<'_, 'e>) -> Outputs<'e>,
    /// A gradient of its own, for the operands of a parameter; `None` says zero, on purpose
    pub vjp: Option<VjpRule>,
    /// The parameters that `vjp` covers
    pub covered: &'static [&'static str],
    /// Found out at run time: no two elementwise nodes of the body can run as one, so that a plan of
    /// it never pays
    pub plain: &'static AtomicBool,
}

impl Composite {
    /// Runs the formula, or emits one node where the emission keeps this composite whole.
    pub fn call<'e>(&'static self, call: &Arguments<'_, 'e>) -> Outputs<'e> {
        if self.vjp.is_some() && call.cx.keeps(self) {
            let op = Op::Call(op::Call { composite: self, attributes: call.attributes.into() });
            let id = call.cx.emit(op, call.operands);
            return smallvec![Expr::new(call.cx, Arg::Node(id))];
        }
        (self.body)(call)
    }
}

/// The axes of a reduction, sorted.
pub fn sorted(mut axes: AxisList) -> AxisList {
    axes.sort_unstable();
    axes
}

/// A default, read from its Python source.
pub fn parse_default(source: &str) -> Attr {
    match source {
        "None" => Attr::None,
        "True" => Attr::Bool(true),
        "False" => Attr::Bool(false),
        _ if source.starts_with('"') => Attr::Text(source.trim_matches('"').into()),
        _ if source.starts_with('(') => {
            let inner = source.trim_matches(['(', ')']);
            let items = inner.split(',').filter_map(|item| item.trim().parse().ok());
            Attr::Ints(items.collect())
        }
        _ => source.parse().map(Attr::Int).unwrap_or_else(|_| {
            Attr::Float(
                source
                    .parse()
                    .unwrap_or_else(|_| unreachable!("default {source} is no Python literal")),
            )
        }),
    }
}

/// The number a default or argument stands for, where the parameter is a runtime number.
pub fn number(attr: &Attr) -> Option<Scalar> {
    match attr {
        Attr::Bool(b) => Some(Scalar::Bool(*b)),
        Attr::Int(n) => Some(Scalar::Int(*n)),
        Attr::Float(x) => Some(Scalar::Float(*x)),
        _ => None,
    }
}

/// Declares composites: one Rust function each, the table's entry, and (with `vjp`) a gradient.
///
/// ```text
/// composite! {
///     /// First line of the docstring.
///     nn method softmax(x: FloatTensor, axis: Int = -1; keyword: Bool = False) -> One |cx| {
///         formula
///     }
///     vjp(g, y) { x: formula }
/// }
/// ```
/// The namespace is `top`, `nn`, …; `method` or `function` says whether `Tensor` has it too; `|cx|`
/// names the emission for bodies without a tensor to start from. Tensor parameters that `vjp` leaves
/// out have no gradient.
#[macro_export]
macro_rules! composite {
    (@method method) => { true };
    (@method function) => { false };
    (@space top) => { "" };
    (@space $space:ident) => { stringify!($space) };
    (@default) => { None };
    (@default $default:expr) => { Some(stringify!($default)) };
    (@vjp [$($param:ident: $kind:ident,)*]) => { None };
    (@vjp [$($param:ident: $kind:ident,)*] ($g:ident, $y:ident) $($wrt:ident: $rule:expr),*) => {
        Some({
            #[allow(unused_variables, unused_assignments)]
            fn vjp<'e>(
                rule: &$crate::ops::rule::Rule<'_, 'e>,
                call: &$crate::ops::declare::Arguments<'_, 'e>,
                wrt: usize,
            ) -> Option<$crate::ops::emit::Expr<'e>> {
                use $crate::ops::declare::Kind as _;
                let mut i = 0;
                let mut next = || { i += 1; i - 1 };
                $( let $param = $crate::ops::declare::$kind::read(stringify!($param), call, next()); )*
                let ($g, $y) = (rule.g, rule.y);
                let names: &[&str] = &[$(stringify!($param)),*];
                $( if names[wrt] == stringify!($wrt) { return Some($rule); } )*
                None
            }
            vjp as $crate::ops::declare::VjpRule
        })
    };
    ($(
        $(#[doc = $doc:literal])+
        $space:ident $place:ident $name:ident(
            $($param:ident: $kind:ident $(= $default:expr)?),* $(,)?
            $(; $($kw:ident: $kw_kind:ident $(= $kw_default:expr)?),* $(,)?)?
        ) -> $returns:ident $(|$cx:ident|)? $body:block
        $(vjp($g:ident, $y:ident) { $($wrt:ident: $rule:expr),* $(,)? })?
    )*) => {
        $(
            $(#[doc = $doc])+
            #[allow(clippy::too_many_arguments, dead_code)]
            pub fn $name<'e>(
                cx: &'e dyn $crate::ops::emit::Emit,
                $($param: <$crate::ops::declare::$kind as $crate::ops::declare::Kind>::Value<'e>,)*
                $($($kw: <$crate::ops::declare::$kw_kind as $crate::ops::declare::Kind>::Value<'e>,)*)?
            ) -> $crate::ops::declare::Outputs<'e> {
                use $crate::ops::declare::Kind as _;
                let mut operands = smallvec::SmallVec::new();
                let attributes = [
                    $($crate::ops::declare::$kind::write($param, &mut operands),)*
                    $($($crate::ops::declare::$kw_kind::write($kw, &mut operands),)*)?
                ];
                let call = $crate::ops::declare::Arguments {
                    cx, attributes: &attributes, operands: &operands,
                };
                let found = TABLE.iter().find(|c| c.name == stringify!($name));
                found.map(|c| c.call(&call)).unwrap_or_default()
            }
        )*

        /// The composites declared in this file.
        pub static TABLE: &[$crate::ops::declare::Composite] = &[$({
            #[allow(unused_variables, unused_assignments, unused_mut)]
            fn body<'e>(
                call: &$crate::ops::declare::Arguments<'_, 'e>,
            ) -> $crate::ops::declare::Outputs<'e> {
                use $crate::ops::declare::Kind as _;
                let mut i = 0;
                let mut next = || { i += 1; i - 1 };
                $(let $cx = call.cx;)?
                $( let $param = $crate::ops::declare::$kind::read(stringify!($name), call, next()); )*
                $($(
                    let $kw = $crate::ops::declare::$kw_kind::read(stringify!($name), call, next());
                )*)?
                $crate::ops::declare::IntoOutputs::into_outputs($body)
            }
            $crate::ops::declare::Composite {
                name: stringify!($name),
                namespace: $crate::composite!(@space $space),
                doc: concat!($($doc, "\n"),+),
                params: &[
                    $($crate::ops::declare::Param {
                        name: stringify!($param),
                        kind: <$crate::ops::declare::$kind as $crate::ops::declare::Kind>::FORM,
                        default: $crate::composite!(@default $($default)?),
                        keyword_only: false,
                    },)*
                    $($($crate::ops::declare::Param {
                        name: stringify!($kw),
                        kind: <$crate::ops::declare::$kw_kind as $crate::ops::declare::Kind>::FORM,
                        default: $crate::composite!(@default $($kw_default)?),
                        keyword_only: true,
                    },)*)?
                ],
                method: $crate::composite!(@method $place),
                returns: $crate::ops::declare::Returns::$returns,
                body,
                vjp: $crate::composite!(@vjp
                    [$($param: $kind,)* $($($kw: $kw_kind,)*)?]
                    $(($g, $y) $($wrt: $rule),*)?),
                covered: &[$($(stringify!($wrt)),*)?],
                plain: {
                    use std::sync::atomic::AtomicBool;
                    static PLAIN: AtomicBool = AtomicBool::new(false);
                    &PLAIN
                },
            }
        }),*];
    };
}
