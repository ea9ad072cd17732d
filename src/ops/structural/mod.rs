//! Structural ops: what each of the closed set is, said once.
//!
//! A [`StructuralDef`] says everything about an op that holds whoever runs it: its name, operands and
//! attributes, its type rule, cost, gradient, tangent and batch, what data can refuse, which results
//! are views. Text, verification, cost, passes, planning and targets ask the definition; only kernels
//! stand elsewhere, one for each executor. The table at the end of this file binds the variants of
//! [`Op`] to their definitions: a variant without one does not compile, and neither does a definition
//! that leaves something open.

use super::attributes::{ArgReduction, ConvRole, Cumulation, Reduction};
use super::batch::Batched;
use super::elementwise::Elementwise;
use super::emit::Expr;
use super::jvp::{Forward, Tangent};
use super::op::{Call, Op, OperandType, Type};
use super::probe::Mask;
use super::rule::Rule;
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::{Dim, Shape};

/// Binds the attributes of the op that a definition is of.
macro_rules! of {
    ($op:expr, $pattern:pat) => {
        let $pattern = $op else { unreachable!("an op of another definition") };
    };
}

pub mod cost;
mod creation;
#[cfg(feature = "example-op")]
pub mod example;
pub mod fields;
mod forms;
mod indexing;
mod movement;
mod ordering;
mod product;
mod reduction;
mod view;
mod window;

pub use cost::Cost;
pub use fields::{Field, Fields};
pub use forms::whole;
pub use movement::inverse;
pub use view::sliced;
pub use window::windowed;

/// The definition of a structural op.
pub struct StructuralDef {
    /// The name in messages, prints and pictures; ops of one definition share it
    pub name: &'static str,
    /// What sort of op it is
    pub class: Class,
    /// The least and the largest count of operands
    pub operands: (usize, Option<usize>),
    /// An op whose attributes say nothing yet
    pub blank: fn() -> Op,
    /// Its attributes, in the order of the text
    pub fields: fn(&mut Op) -> Fields<'_>,
    /// Whether the attributes are such that type rules can work with them
    pub in_range: fn(&Op) -> bool,
    /// Whether axes and slices lie inside the operands, which the type rule takes for granted
    pub fits: fn(&Op, &[OperandType<'_>]) -> bool,
    /// Whether operands of these types, with a result of this one, are what kernels take for granted.
    /// Sizes that are not known are left to the day they are
    pub expects: fn(&Op, &[OperandType<'_>], &Type) -> bool,
    /// The type of the result, or why the operands are refused
    pub infer: fn(&Op, &[OperandType<'_>]) -> Result<Type>,
    /// What it costs, computed alone
    pub cost: fn(&Op, &cost::Work<'_>) -> Cost,
    /// Whether it does much arithmetic for each element, so that nothing computes it twice lightly
    pub is_expensive: bool,
    /// Whether values of the operands can make it fail
    pub refuses: bool,
    /// The layout of the result where that is the first operand seen otherwise; none where the op
    /// computes something
    pub view: fn(&Op, DType, &Layout) -> Option<Layout>,
    /// Over which operands' memory the result may be written
    pub in_place: InPlace,
    /// How near results of different executors come
    pub agreement: Agreement,
    /// Along which leading axes it can be computed block by block, with the same bits
    pub blocks: Blocks,
    /// Whether a gradient can flow from the result to an operand
    pub differentiable: fn(&Op, usize) -> bool,
    /// Which values the rule of operand `wrt` reads, given the count of operands: what a tape must keep
    pub residuals: fn(&Op, count: usize, wrt: usize) -> Mask,
    /// The cotangent of an operand, in its shape
    pub vjp: for<'e> fn(&Op, &Rule<'_, 'e>, usize) -> Option<Expr<'e>>,
    /// The tangent of the result
    pub tangent: Rate,
    /// The op on a count of examples at once, not all of whose operands are shared; the type is that of
    /// one example's result
    pub batch: for<'e> fn(&Op, &[Batched<'e>], Dim, &Type) -> Expr<'e>,
}

/// Sorts of structural ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Each element from the one at its place
    Elementwise,
    /// The operand seen otherwise, without work where its layout allows that
    View,
    /// Elements put elsewhere, as the attributes say
    Movement,
    /// Elements along axes joined
    Reduction,
    /// Sums of products
    Product,
    /// Elements chosen by values
    Selection,
    /// Values made of attributes
    Creation,
}

/// Which operands' memory a result of their type may be written over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    /// None
    Nowhere,
    /// The first operand's
    First,
    /// That of any: an element is read only where it is written
    Any,
}

/// How near results of different executors come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// There is one right answer, to the bit
    Bits,
    /// Of floats, zeros of either sign are one number
    Values,
    /// The order of sums and products of floats is the executor's; `reference::bounds` says how near
    /// they come
    Order,
}

/// Along which axes an op can be computed block by block.
#[derive(Clone, Copy)]
pub enum Blocks {
    /// Along none
    Never,
    /// As an elementwise op: along all, over operands that broadcast
    Spread,
    /// Along so many leading axes of the result, given the shapes of the first operand and the result;
    /// they are leading axes of every operand too. Sizes of the result among the attributes become
    /// those of a block
    Leading(fn(&Op, &Shape, &Shape) -> usize),
    /// Along these axes of an operand, those of a batch
    Batch(for<'o> fn(&'o Op, usize) -> &'o [usize]),
}

/// The tangent of a result, from those of the operands.
#[derive(Clone, Copy)]
pub enum Rate {
    /// Zero
    Zero,
    /// The op is linear in the first operand: the op of its tangent, on the others as they are
    First,
    /// It is linear in the first two together, of which the second may be a number
    FirstTwo,
    /// It is linear in all together
    All,
    /// It is linear in each of its two
    Each,
    /// The transpose of the gradient rule
    Transposed,
    /// A formula
    Formula(for<'e> fn(&Op, &Forward<'_, 'e>) -> Tangent<'e>),
}

/// Which kind of op one is.
#[derive(Clone, Copy)]
pub enum OpKind<'a> {
    /// Elementwise
    Map(&'static Elementwise),
    /// A call of a composite
    Call(&'a Call),
    /// Structural
    Structural(&'static StructuralDef),
}

/// Every definition.
pub fn defs() -> &'static [&'static StructuralDef] {
    DEFS
}

/// Exactly so many operands.
const fn exactly(count: usize) -> (usize, Option<usize>) {
    (count, Some(count))
}

/// Attributes that cannot be out of range.
fn any(_: &Op) -> bool {
    true
}

/// Attributes that speak of no axis of an operand.
fn fits_all(_: &Op, _: &[OperandType<'_>]) -> bool {
    true
}

/// Operands that the type rule has looked at.
fn expects_nothing(_: &Op, _: &[OperandType<'_>], _: &Type) -> bool {
    true
}

/// A result that is computed.
fn computed(_: &Op, _: DType, _: &Layout) -> Option<Layout> {
    None
}

fn never(_: &Op, _: usize) -> bool {
    false
}

fn always(_: &Op, _: usize) -> bool {
    true
}

fn first_only(_: &Op, i: usize) -> bool {
    i == 0
}

/// A rule that reads the cotangent only.
fn reads_nothing(_: &Op, _: usize, _: usize) -> Mask {
    0
}

/// A rule that reads the first operand.
fn reads_first(_: &Op, _: usize, _: usize) -> Mask {
    1
}

fn no_gradient<'e>(_: &Op, _: &Rule<'_, 'e>, _: usize) -> Option<Expr<'e>> {
    None
}

/// The op on all examples, whose attributes are those for one.
fn batch_as_it_is<'e>(op: &Op, args: &[Batched<'e>], _: Dim, _: &Type) -> Expr<'e> {
    args[0].x.emit(op.clone())
}

/// The shape of an operand that is a tensor.
fn shape<'a>(args: &[OperandType<'a>], i: usize) -> Option<&'a Shape> {
    match args.get(i) {
        Some(OperandType::Tensor(_, shape)) => Some(*shape),
        Some(OperandType::Scalar(_)) | None => None,
    }
}

/// The rank of an operand; a number has no axes.
fn rank(args: &[OperandType<'_>], i: usize) -> usize {
    shape(args, i).map_or(0, Shape::rank)
}

/// Whether axes differ and lie below a rank.
fn inside(axes: &[usize], rank: usize) -> bool {
    let mut seen = axes.to_vec();
    seen.sort_unstable();
    seen.dedup();
    seen.len() == axes.len() && axes.iter().all(|&axis| axis < rank)
}

/// The shape of the first operand and its dtype.
fn tensor<'a>(op: &Op, args: &[OperandType<'a>], i: usize) -> Result<(DType, &'a Shape)> {
    args[i].tensor(op.name())
}

/// A result of the first operand's type.
fn same_type(op: &Op, args: &[OperandType<'_>]) -> Result<Type> {
    let (dtype, shape) = tensor(op, args, 0)?;
    Ok(Type::new(dtype, shape.clone()))
}

macro_rules! table {
    ($($(#[$when:meta])* $pattern:pat => $def:path,)*) => {
        impl Op {
            /// Which kind of op this is, with its definition.
            pub fn kind(&self) -> OpKind<'_> {
                match self {
                    Op::Map(def) => OpKind::Map(def),
                    Op::Call(call) => OpKind::Call(call),
                    $($(#[$when])* $pattern => OpKind::Structural(&$def),)*
                }
            }
        }

        static DEFS: &[&StructuralDef] = &[$($(#[$when])* &$def,)*];
    };
}

table! {
    Op::Cast(_) => view::CAST,
    Op::Reshape(_) => view::RESHAPE,
    Op::Permute(_) => view::PERMUTE,
    Op::Broadcast(_) => view::BROADCAST,
    Op::Slice(_) => view::SLICE,
    Op::Pad(..) => movement::PAD,
    Op::SetItem(_) => movement::SETITEM,
    Op::Concat(_) => movement::CONCAT,
    Op::Gather => indexing::GATHER,
    Op::Scatter(_) => indexing::SCATTER,
    Op::Reduce(Reduction::Sum, _) => reduction::SUM,
    Op::Reduce(Reduction::Prod, _) => reduction::PROD,
    Op::Reduce(Reduction::Max, _) => reduction::MAX,
    Op::Reduce(Reduction::Min, _) => reduction::MIN,
    Op::Reduce(Reduction::Any, _) => reduction::ANY,
    Op::Reduce(Reduction::All, _) => reduction::ALL,
    Op::ArgReduce(ArgReduction::Max, _) => reduction::ARGMAX,
    Op::ArgReduce(ArgReduction::Min, _) => reduction::ARGMIN,
    Op::Cumulate { kind: Cumulation::Sum, .. } => reduction::CUMULATIVE_SUM,
    Op::Cumulate { kind: Cumulation::Prod, .. } => reduction::CUMULATIVE_PROD,
    Op::Cumulate { kind: Cumulation::Max, .. } => reduction::CUMULATIVE_MAX,
    Op::Cumulate { kind: Cumulation::Min, .. } => reduction::CUMULATIVE_MIN,
    Op::Contract(_) => product::MATMUL,
    Op::Conv(ConvRole::Output, _) => product::CONV,
    Op::Conv(ConvRole::Input, _) => product::CONV_INPUT,
    Op::Conv(ConvRole::Weight, _) => product::CONV_WEIGHT,
    Op::Windows(_) => window::WINDOWS,
    Op::Fold(..) => window::FOLD,
    Op::Sort { .. } => ordering::SORT,
    Op::ArgSort { .. } => ordering::ARGSORT,
    Op::TopK { .. } => ordering::TOPK,
    Op::Full(_) => creation::FULL,
    Op::Iota(..) => creation::IOTA,
    Op::RandomBits(_) => creation::RANDOM_BITS,
    #[cfg(feature = "example-op")]
    Op::Increments(_) => example::INCREMENTS,
}
