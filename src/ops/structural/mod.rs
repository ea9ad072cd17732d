//! Structural ops: the definition of each op of the closed set, in one place.
//!
//! A [`StructuralDef`] holds everything about an op that does not depend on the executor: its name,
//! operands and attributes, its type rule, cost, gradient, tangent and batching rule, whether data
//! can make it fail, and which results are views. Text, verification, cost, passes, planning and
//! targets ask the definition; only kernels are elsewhere, one for each executor. The table at the
//! end of this file binds the variants of [`Op`] to their definitions: a variant without a
//! definition does not compile, and neither does a definition with a missing field.

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

/// Binds the attributes of an op that belongs to a definition.
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
    /// The name in messages, prints and pictures; the ops of one definition share it
    pub name: &'static str,
    /// Its class
    pub class: Class,
    /// The least and the largest count of operands
    pub operands: (usize, Option<usize>),
    /// An op of this definition with empty attributes, for the text reader to fill
    pub blank: fn() -> Op,
    /// Its attributes, in the order of the text
    pub fields: fn(&mut Op) -> Fields<'_>,
    /// Whether the attributes are in the ranges that type rules assume
    pub in_range: fn(&Op) -> bool,
    /// Whether axes and slices lie inside the operands, as the type rule assumes
    pub fits: fn(&Op, &[OperandType<'_>]) -> bool,
    /// Whether operands of these types and a result of this type are as kernels assume. A size that
    /// is not known yet passes, and is checked when it is known
    pub expects: fn(&Op, &[OperandType<'_>], &Type) -> bool,
    /// The type of the result, or why the operands are refused
    pub infer: fn(&Op, &[OperandType<'_>]) -> Result<Type>,
    /// Its cost, computed alone
    pub cost: fn(&Op, &cost::Work<'_>) -> Cost,
    /// Whether it does much arithmetic for each element, so that passes avoid computing it twice
    pub is_expensive: bool,
    /// Whether the operands' values can make it fail
    pub refuses: bool,
    /// The layout of the result where the result is a view of the first operand; `None` where the
    /// op computes
    pub view: fn(&Op, DType, &Layout) -> Option<Layout>,
    /// The operands whose memory the result may be written over
    pub in_place: InPlace,
    /// How closely the results of different executors agree
    pub agreement: Agreement,
    /// The leading axes along which it can be computed block by block, with the same bits
    pub blocks: Blocks,
    /// Whether a gradient can flow from the result to an operand
    pub differentiable: fn(&Op, usize) -> bool,
    /// The values that the gradient rule of operand `wrt` reads, given the count of operands: the
    /// tape must save them
    pub residuals: fn(&Op, count: usize, wrt: usize) -> Mask,
    /// The cotangent of an operand, in its shape
    pub vjp: for<'e> fn(&Op, &Rule<'_, 'e>, usize) -> Option<Expr<'e>>,
    /// The tangent of the result
    pub tangent: Rate,
    /// The op on all examples at once, where at least one operand is mapped; the type is that of
    /// one example's result
    pub batch: for<'e> fn(&Op, &[Batched<'e>], Dim, &Type) -> Expr<'e>,
}

/// Classes of structural ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Each element is computed from the one at its place
    Elementwise,
    /// A view of the operand; no work where its layout allows that
    View,
    /// Elements are moved, as the attributes say
    Movement,
    /// Elements along axes are combined
    Reduction,
    /// Sums of products
    Product,
    /// Elements are chosen by values
    Selection,
    /// Values are made of attributes
    Creation,
}

/// The operands whose memory a result of the same type may be written over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    /// None
    Nowhere,
    /// The first operand's
    First,
    /// That of any operand: each element is read only where it is written
    Any,
}

/// How closely the results of different executors agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// There is one right result, bit for bit
    Bits,
    /// Values agree; zeros of floats may differ in sign
    Values,
    /// The executor chooses the order of sums and products of floats; `reference::bounds` bounds
    /// the difference
    Order,
}

/// The axes along which an op can be computed block by block.
#[derive(Clone, Copy)]
pub enum Blocks {
    /// None
    Never,
    /// All, as for an elementwise op, over operands that broadcast
    Spread,
    /// This many leading axes of the result, given the shapes of the first operand and the result.
    /// They are leading axes of every operand too. Sizes of the result among the attributes become
    /// those of a block
    Leading(fn(&Op, &Shape, &Shape) -> usize),
    /// These axes of an operand, the batch axes of a product
    Batch(for<'o> fn(&'o Op, usize) -> &'o [usize]),
}

/// How the tangent of a result follows from the operands' tangents.
#[derive(Clone, Copy)]
pub enum Rate {
    /// Zero
    Zero,
    /// The op is linear in the first operand: its tangent is the op on the first operand's tangent
    /// and the other operands
    First,
    /// The op is linear in the first two operands together; the second may be a number
    FirstTwo,
    /// The op is linear in all operands together
    All,
    /// The op is linear in each of its two operands
    Each,
    /// The transpose of the gradient rule
    Transposed,
    /// A formula
    Formula(for<'e> fn(&Op, &Forward<'_, 'e>) -> Tangent<'e>),
}

/// The kind of an op.
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

/// Exactly `count` operands.
const fn exactly(count: usize) -> (usize, Option<usize>) {
    (count, Some(count))
}

/// For attributes that cannot be out of range.
fn any(_: &Op) -> bool {
    true
}

/// For attributes that name no axis of an operand.
fn fits_all(_: &Op, _: &[OperandType<'_>]) -> bool {
    true
}

/// For operands that the type rule has checked completely.
fn expects_nothing(_: &Op, _: &[OperandType<'_>], _: &Type) -> bool {
    true
}

/// For ops whose result is never a view.
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

/// For a gradient rule that reads the cotangent only.
fn reads_nothing(_: &Op, _: usize, _: usize) -> Mask {
    0
}

/// For a gradient rule that reads the first operand.
fn reads_first(_: &Op, _: usize, _: usize) -> Mask {
    1
}

fn no_gradient<'e>(_: &Op, _: &Rule<'_, 'e>, _: usize) -> Option<Expr<'e>> {
    None
}

/// Batches an op whose attributes do not change: the same op on all examples.
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

/// The dtype and shape of operand `i`, which must be a tensor.
fn tensor<'a>(op: &Op, args: &[OperandType<'a>], i: usize) -> Result<(DType, &'a Shape)> {
    args[i].tensor(op.name())
}

/// The type of the first operand, as the result's type.
fn same_type(op: &Op, args: &[OperandType<'_>]) -> Result<Type> {
    let (dtype, shape) = tensor(op, args, 0)?;
    Ok(Type::new(dtype, shape.clone()))
}

macro_rules! table {
    ($($(#[$when:meta])* $pattern:pat => $def:path,)*) => {
        impl Op {
            /// Which kind of op this is, with its definition.
            #[inline]
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
