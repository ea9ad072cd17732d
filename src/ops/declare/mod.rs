//! Declarations: parameters, attributes, and the `composite!` macro.
//!
//! A declaration is plain data beside one ordinary Rust function. Everything a user meets
//! (function, method, signature, stub, docstring, argument checks) is derived from the parameters;
//! a parameter kind is a type that knows its Python form, so a declaration cannot disagree with its
//! body.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use smallvec::{SmallVec, smallvec};

use super::batch::BatchRule;
use super::emit::{Arg, Emit, Expr};
use super::op::{self, Op};
use super::origin;
use super::rule::{Cotangents, Rule, none_of};
use crate::dtype::Class;
use crate::shape::Axes as AxisList;
use crate::site::{Origin, Within};

mod attribute;
#[macro_use]
mod composite;
mod kernel;
mod kinds;

pub use attribute::{Attr, attribute_of, number, operands_of, parse_default};
pub use kernel::{Cell, Family, Kernel, Pass};
pub use kinds::*;

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
    /// `bool | None`
    MaybeBool,
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
    /// `int | tuple[int, ...]`, or `"same"` or `"valid"`
    Padding,
    /// Any text
    Text,
    /// A device or `None`
    MaybeDevice,
    /// A random key (uint32 tensor of shape (2,)); `None` draws one from the global generator
    Key,
}

impl ParamKind {
    /// Whether tensors or numbers stand for it among the operands. (A key does too, but is drawn
    /// where none is given.)
    pub const fn takes_operands(&self) -> bool {
        matches!(
            self,
            ParamKind::Tensor(_)
                | ParamKind::MaybeTensor(_)
                | ParamKind::Tensors
                | ParamKind::Number
                | ParamKind::MaybeNumber
        )
    }
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

/// What says that PyTorch's function of the same name gives something else for its own argument
/// names: then those are refused, instead of giving what nobody expects.
#[derive(Clone, Copy, Debug)]
pub struct Unlike {
    /// What differs, and what to write
    pub text: &'static str,
    /// The argument that makes both the same
    pub unless: Option<&'static str>,
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
        &self.operands[operands_of(self.attributes, i)]
    }

    /// Which operand a parameter is, if it is one.
    pub fn operand_of(&self, param: usize) -> Option<usize> {
        operands_of(self.attributes, param).next()
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

/// In which dtypes mixed precision (`autocast`) calls an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// In those of its operands
    Follow,
    /// In the narrow dtype: products, whose sums are wider than their operands
    Narrow,
    /// In float32 where an operand is narrower: what takes exponentials, squares or means of many
    Wide,
}

/// How many results a function has, for signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// One tensor
    One,
    /// So many
    Exactly(usize),
    /// A fixed or data-independent number of tensors, as a list
    Many,
}

/// Whether a composite is inline. One with any count of results has to be: a node says how many it
/// has.
pub const fn inlined(inline: bool, returns: Returns) -> bool {
    assert!(inline || !matches!(returns, Returns::Many), "what returns Many is inline");
    inline
}

/// Whether a composite shows its first parameter otherwise. One that does has no other operand, lies
/// where that does, and has one result.
pub const fn shows(views: bool, params: &[Param], returns: Returns) -> bool {
    let mut i = 0;
    while views && i < params.len() {
        let kind = params[i].kind;
        let is_operand =
            kind.takes_operands() || matches!(kind, ParamKind::Key | ParamKind::MaybeDevice);
        assert!(is_operand == (i == 0), "the first parameter of a view alone is an operand");
        i += 1;
    }
    assert!(!views || matches!(returns, Returns::One), "a view is one result");
    views
}

/// The formulas of a composite's gradient: rule operands, the call's arguments, the operands
/// wanted.
pub type Rules = for<'e> fn(&Rule<'_, 'e>, &Arguments<'_, 'e>, &[bool]) -> Cotangents<'e>;

/// A composite's gradient.
#[derive(Clone, Copy)]
pub struct Vjp {
    /// The cotangents of the operands wanted
    pub rules: Rules,
    /// Bit `i`: a gradient flows to parameter `i`
    flows: u64,
}

impl Vjp {
    /// The gradient with these formulas: of `zero` none flows. Every tensor among the parameters
    /// has one.
    pub const fn new(params: &[Param], texts: &[(&str, &str)], rules: Rules) -> Vjp {
        let (mut flows, mut i) = (0, 0);
        while i < params.len() {
            let kind = params[i].kind;
            assert!(!matches!(kind, ParamKind::Tensors), "a formula is of one operand");
            let is_tensor =
                matches!(kind, ParamKind::Tensor(_) | ParamKind::MaybeTensor(_) | ParamKind::Key);
            let (mut rule, mut k) = (None, 0);
            while k < texts.len() {
                if same(texts[k].0, params[i].name) {
                    rule = Some(texts[k].1);
                }
                k += 1;
            }
            match rule {
                Some(text) if !same(text, "zero") => flows |= 1 << i,
                Some(_) => {}
                None => assert!(!is_tensor, "vjp has a formula, or zero, for every tensor"),
            }
            i += 1;
        }
        Vjp { rules, flows }
    }

    /// Whether a gradient flows to a parameter.
    pub fn reaches(&self, param: usize) -> bool {
        self.flows & 1 << param != 0
    }
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// The position of a parameter.
pub const fn position(params: &[Param], name: &str) -> usize {
    let mut i = 0;
    while !same(params[i].name, name) {
        i += 1;
    }
    i
}

/// The position of a parameter, if there is one of the name.
pub const fn find(params: &[Param], name: &str) -> Option<usize> {
    let mut i = 0;
    while i < params.len() {
        if same(params[i].name, name) {
            return Some(i);
        }
        i += 1;
    }
    None
}

/// What the values of an index operand address, for refusals to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexes {
    /// Nothing that data could miss
    Nothing,
    /// The axis that a parameter names
    Axis(&'static str),
    /// The first axis, perhaps of what is flattened
    First,
    /// Classes
    Classes,
    /// Classes, of which negative ones are moved below every index
    Labels,
}

/// Calls without a plan that pays, after which a formula is not planned any more if none has one.
const WITHOUT: u32 = 16;

/// Whether plans of a formula pay, as far as calls have shown.
pub struct Verdict {
    without: AtomicU32,
    pays: AtomicBool,
}

impl Verdict {
    const fn new() -> Verdict {
        Verdict { without: AtomicU32::new(0), pays: AtomicBool::new(false) }
    }

    /// Takes note of whether a plan was found that pays.
    pub fn note(&self, pays: bool) {
        match pays {
            true => self.pays.store(true, Ordering::Relaxed),
            false => _ = self.without.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Takes note that no plan of it pays.
    pub fn never(&self) {
        self.without.store(WITHOUT, Ordering::Relaxed);
    }

    /// Whether a plan may still pay.
    #[inline]
    pub fn is_worth_planning(&self) -> bool {
        self.without.load(Ordering::Relaxed) < WITHOUT || self.pays.load(Ordering::Relaxed)
    }
}

/// Whether plans of a composite's formulas pay.
pub struct Payoff {
    /// Of the body
    pub body: Verdict,
    /// Of the gradient
    pub gradient: Verdict,
}

impl Payoff {
    /// Nothing is known yet.
    pub const fn unknown() -> Payoff {
        Payoff { body: Verdict::new(), gradient: Verdict::new() }
    }
}

/// A composite of the table: a formula over other ops.
pub struct Composite {
    /// The name in Python
    pub name: &'static str,
    /// The Python module below `wengert`; empty is the top; what formulas alone call is `hidden`
    pub namespace: &'static str,
    /// Other names of it
    pub synonyms: &'static [&'static str],
    /// The docstring
    pub doc: &'static str,
    /// The parameters
    pub params: &'static [Param],
    /// Why PyTorch's names of parameters are refused, where they are
    pub unlike: Option<Unlike>,
    /// Whether it is a method of `Tensor` too
    pub method: bool,
    /// How many results it has
    pub returns: Returns,
    /// How many values it saves for its gradient: results behind those that a user is given
    pub saved: usize,
    /// Whether a call is the ops that it emits, instead of one node
    pub inline: bool,
    /// Whether it shows the elements of its first parameter, its only operand, otherwise: eager code
    /// makes no values for what its formula has in between
    pub views: bool,
    /// The formula
    pub(in crate::ops) body: for<'e> fn(&Arguments<'_, 'e>) -> Outputs<'e>,
    /// A gradient of its own
    pub(in crate::ops) vjp: Option<Vjp>,
    /// In which dtypes mixed precision calls it
    pub precision: Precision,
    /// The kernel that computes it, in executors that have this
    pub kernel: Option<Kernel>,
    /// How a call on many examples stays a call; without it, their formulas run side by side
    pub(in crate::ops) batch: Option<BatchRule>,
    /// The parameter that says whether the result is a leaf that wants a gradient
    pub requires_grad: Option<usize>,
    /// What its indices address
    pub indexes: Indexes,
    /// Found out at run time: whether plans of its formulas pay
    pub payoff: &'static Payoff,
    /// Its number among all composites, from 1 on; 0 before somebody asked
    pub(in crate::ops) number: &'static AtomicU32,
}

impl Composite {
    /// Runs the formula, or emits one node where the emission keeps this composite whole. Behind
    /// what a user is given stand the values that are saved for the gradient.
    #[inline]
    pub fn call<'e>(&'static self, call: &Arguments<'_, 'e>) -> Outputs<'e> {
        if self.stays() && call.cx.keeps(self) {
            let op = Op::Call(op::Call { composite: self, attributes: call.attributes.into() });
            let count = op.results();
            let id = call.cx.emit(op, call.operands);
            let result = |k| Expr::new(call.cx, Arg::Node(call.cx.result(id, k)));
            return (0..count).map(result).collect();
        }
        self.formula(call)
    }

    /// Runs the formula. Its nodes are part of this call, or of the one around.
    pub fn formula<'e>(&'static self, call: &Arguments<'_, 'e>) -> Outputs<'e> {
        let _within = self.enter(call);
        (self.body)(call)
    }

    /// Whether a call of it is one node, of the tape and in a trace, until it is planned.
    pub fn stays(&self) -> bool {
        !self.inline
    }

    /// Whether users call it, and not only gradients of others.
    pub fn is_public(&self) -> bool {
        self.namespace != "hidden"
    }

    /// The most results that a user is given.
    pub fn given(&self) -> usize {
        match self.returns {
            Returns::One => 1,
            Returns::Exactly(n) => n,
            Returns::Many => usize::MAX,
        }
    }

    /// How many results a call has: those that a user is given, and the saved ones.
    pub fn results(&self) -> usize {
        match self.returns {
            Returns::One => 1 + self.saved,
            Returns::Exactly(n) => n + self.saved,
            Returns::Many => unreachable!("`inlined` holds for every declaration"),
        }
    }

    /// Whether it has a gradient of its own; that of others is derived from the formula.
    pub fn has_vjp(&self) -> bool {
        self.vjp.is_some()
    }

    /// The cotangents of the operands wanted, by the gradient of its own. Nodes are part of this
    /// call, or of the one around.
    pub fn cotangents<'e>(
        &'static self,
        rule: &Rule<'_, 'e>,
        call: &Arguments<'_, 'e>,
        wanted: &[bool],
    ) -> Cotangents<'e> {
        let Some(vjp) = self.vjp else { return none_of(wanted) };
        let _within = self.enter(call);
        (vjp.rules)(rule, call, wanted)
    }

    /// Makes what is emitted part of this call, or of the one around, while the guard lives.
    pub fn enter(&'static self, call: &Arguments<'_, '_>) -> Within {
        Origin::enter_with(|| origin::of(self, call))
    }
}

/// How many values a composite saves whose gradient names so many results behind the first.
pub const fn saved(named: usize, returns: Returns) -> usize {
    match returns {
        Returns::One | Returns::Many => named,
        Returns::Exactly(n) => (named + 1).saturating_sub(n),
    }
}

/// The axes of a reduction, sorted.
pub fn sorted(mut axes: AxisList) -> AxisList {
    axes.sort_unstable();
    axes
}
