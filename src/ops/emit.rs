//! `Emit` and `Expr`: the language in which rules and composites are written.
//!
//! A rule is a formula over [`Expr`]s. The [`Emit`] behind them decides what running it means: the
//! eager engine computes (and records), a graph appends nodes, a probe notes which operands are
//! read.
//!
//! An emission that fails unwinds with its [`error::Error`] (by `resume_unwind`, which prints no
//! message and runs no panic hook) to the nearest [`catch`], which returns the error. So formulas
//! read as mathematics, and every error still arrives as a value.

use std::ops::{Add, Div, Mul, Neg, Sub};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::declare::Composite;
use super::number::Number;
use super::op::{Op, Type};
use super::scan::{self, Scan};
use crate::dtype::{DType, Numeric, Scalar};
use crate::error::{self, Result};
use crate::shape::{Axes, Dim, Shape, normalize_axis};

/// A value made during one emission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u32);

/// An operand: a value or a weak scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// A value
    Node(Id),
    /// A number, known now or told at run time
    Number(Numeric),
}

/// The receiver of a formula's nodes.
pub trait Emit {
    /// Adds a node. Unwinds with the error where the operands are refused.
    fn emit(&self, op: Op, args: &[Arg]) -> Id;
    /// Result `k` of the op that made a value; result 0 is the value itself.
    fn result(&self, id: Id, k: usize) -> Id;
    /// Runs a scan; its results.
    fn scan(&self, scan: &Scan<'_>) -> scan::Results;
    /// The type of a value.
    fn ty(&self, id: Id) -> Type;
    /// The dtype of a value.
    fn dtype(&self, id: Id) -> DType {
        self.ty(id).dtype
    }
    /// The number of axes of a value.
    fn rank(&self, id: Id) -> usize {
        self.ty(id).shape.rank()
    }
    /// The size of an axis of a value, if it has so many.
    fn size(&self, id: Id, axis: usize) -> Option<Dim> {
        self.ty(id).shape.dims().get(axis).copied()
    }
    /// Whether a call of a composite that is not declared `inline` stays one node here.
    fn keeps(&self, composite: &'static Composite) -> bool;
    /// The integer that a value of int64 without axes is, where its data are here. A formula that
    /// asks is declared `inline`, so that it runs where they may be.
    fn integer(&self, _: Id) -> Option<i64> {
        None
    }
    /// Says that a gradient of this value may be row-sparse. Only eager code, which has gradients
    /// that are no nodes, makes use of it.
    fn allow_rows(&self, _: Id) {}
    /// The value of a number if it is known, otherwise its place in the table of numbers.
    fn number(&self, number: Number) -> Numeric;
    /// The size that a number of this emission is the value of, if it is one.
    fn size_behind(&self, _: Numeric) -> Option<Dim> {
        None
    }
    /// Whether the device that computes this has float64. A formula that asks is declared `inline`,
    /// so that it runs where the device is known.
    fn has_float64(&self) -> bool {
        true
    }
    /// Whether this becomes a program of shaders, which have no float64 whatever the device here has.
    /// What is known now is computed here. The same as above holds of formulas that ask.
    fn is_exported(&self) -> bool {
        false
    }
    /// Called when a formula looks at the value of a number that is told at run time, instead of
    /// passing it on: the nodes it emits may then depend on the value. Returns the value if it is
    /// known here; if it is not, the emitted nodes are not used.
    fn looks_at(&self, _: u32) -> Option<Scalar> {
        None
    }
}

/// Unwinds out of the running formula with an error.
pub use crate::error::throw;

/// Runs a formula and returns an error thrown inside as a value; a panic becomes an internal error.
pub fn catch<T>(f: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).map_err(error::unwound)
}

/// Unwraps results inside a formula.
pub trait OrThrow<T> {
    /// The value; unwinds out of the formula where it is an error.
    fn or_throw(self) -> T;
}

impl<T> OrThrow<T> for Result<T> {
    fn or_throw(self) -> T {
        self.unwrap_or_else(|error| throw(error))
    }
}

/// An operand inside a formula.
#[derive(Clone, Copy)]
pub struct Expr<'e> {
    cx: &'e dyn Emit,
    arg: Arg,
}

impl<'e> Expr<'e> {
    /// Wraps an operand of an emission.
    pub fn new(cx: &'e dyn Emit, arg: Arg) -> Expr<'e> {
        Expr { cx, arg }
    }

    /// A number in this formula.
    pub fn scalar(self, value: impl Into<Numeric>) -> Expr<'e> {
        Expr { cx: self.cx, arg: Arg::Number(value.into()) }
    }

    /// The emission this belongs to.
    pub fn cx(self) -> &'e dyn Emit {
        self.cx
    }

    /// The operand.
    pub fn arg(self) -> Arg {
        self.arg
    }

    /// The size that this number is, if it is one that is given at run time.
    pub fn size_behind(self) -> Option<Dim> {
        match self.arg {
            Arg::Number(value) => self.cx.size_behind(value),
            Arg::Node(_) => None,
        }
    }

    /// The integer that this operand is, where its data are here.
    pub fn integer(self) -> Option<i64> {
        match self.arg {
            Arg::Node(id) => self.cx.integer(id),
            Arg::Number(_) => None,
        }
    }

    /// Says that a gradient of this operand may be row-sparse.
    pub fn allow_rows(self) {
        if let Arg::Node(id) = self.arg {
            self.cx.allow_rows(id);
        }
    }

    /// Whether this is a number.
    pub fn is_number(self) -> bool {
        matches!(self.arg, Arg::Number(_))
    }

    /// The number, if this is one, for formulas that depend on its value.
    pub fn as_scalar(self) -> Option<Scalar> {
        match self.arg {
            Arg::Number(Numeric::Known(value)) => Some(value),
            // The emitted nodes are not used, so any float will do.
            Arg::Number(Numeric::Told(i)) => {
                Some(self.cx.looks_at(i).unwrap_or(Scalar::Float(f64::NAN)))
            }
            Arg::Node(_) => None,
        }
    }

    /// The dtype; a number has the default dtype of its class.
    pub fn dtype(self) -> DType {
        match self.arg {
            Arg::Node(id) => self.cx.dtype(id),
            Arg::Number(value) => value.default_dtype(),
        }
    }

    /// The shape; a number has no axes.
    pub fn shape(self) -> Shape {
        match self.arg {
            Arg::Node(id) => self.cx.ty(id).shape,
            Arg::Number(_) => Shape::scalar(),
        }
    }

    /// The number of axes.
    pub fn rank(self) -> usize {
        match self.arg {
            Arg::Node(id) => self.cx.rank(id),
            Arg::Number(_) => 0,
        }
    }

    /// The size of an axis. It may not exist where a text calls a formula with other ranks than the
    /// formula is called with here.
    pub fn size(self, axis: usize) -> Dim {
        let size = match self.arg {
            Arg::Node(id) => self.cx.size(id, axis),
            Arg::Number(_) => None,
        };
        let none = || throw(error::bad_axis("size", axis as i64, self.rank()));
        size.unwrap_or_else(none)
    }

    /// The operand as a tensor; a number becomes a tensor of its class's default dtype.
    pub fn tensor(self) -> Expr<'e> {
        match self.arg {
            Arg::Node(_) => self,
            Arg::Number(_) => self.full(self.dtype(), Shape::scalar()),
        }
    }

    /// The node of the operand; a number becomes a tensor first.
    pub fn node(self) -> Id {
        match self.tensor().arg {
            Arg::Node(id) => id,
            Arg::Number(_) => unreachable!("a tensor is a node"),
        }
    }

    /// Adds a node with this as its only operand.
    pub fn emit(self, op: Op) -> Expr<'e> {
        let x = self.tensor();
        x.emit_with(op, &[x.arg])
    }

    /// Adds a node.
    pub fn emit_with(self, op: Op, args: &[Arg]) -> Expr<'e> {
        Expr { cx: self.cx, arg: Arg::Node(self.cx.emit(op, args)) }
    }

    /// The same values in another dtype; no node where the dtype is the same.
    pub fn cast(self, dtype: DType) -> Expr<'e> {
        match self.arg {
            Arg::Node(_) if self.dtype() == dtype => self,
            Arg::Node(_) => self.emit(Op::Cast(dtype)),
            Arg::Number(_) => self.full(dtype, Shape::scalar()),
        }
    }

    /// An array filled with this scalar, in a dtype and shape.
    pub fn full(self, dtype: DType, shape: Shape) -> Expr<'e> {
        self.emit_with(Op::Full(Type::new(dtype, shape)), &[self.arg])
    }

    /// Zeros of this operand's type.
    pub fn zeros_like(self) -> Expr<'e> {
        self.scalar(0.0).full(self.dtype(), self.shape())
    }

    /// Another shape with the same elements in C order.
    pub fn reshape(self, shape: Shape) -> Expr<'e> {
        if self.shape().same(&shape) { self.tensor() } else { self.emit(Op::Reshape(shape)) }
    }

    /// Axes in another order.
    pub fn permute(self, axes: Axes) -> Expr<'e> {
        let identity = axes.iter().enumerate().all(|(i, &axis)| i == axis);
        if identity { self.tensor() } else { self.emit(Op::Permute(axes)) }
    }

    /// The last two axes exchanged.
    pub fn transpose(self) -> Expr<'e> {
        let n = self.rank();
        let mut axes: Axes = (0..n).collect();
        axes.swap(n - 2, n - 1);
        self.permute(axes)
    }

    /// The operand broadcast to a shape.
    pub fn broadcast(self, shape: Shape) -> Expr<'e> {
        if self.shape().same(&shape) { self.tensor() } else { self.emit(Op::Broadcast(shape)) }
    }

    /// A new axis of size 1 before axis `at`.
    pub fn unsqueeze(self, at: usize) -> Expr<'e> {
        let mut shape = self.shape();
        shape.dims_mut().insert(at, Dim::ONE);
        self.reshape(shape)
    }

    /// One axis, counted from either end.
    pub fn axis(self, axis: i64, op: &str) -> usize {
        normalize_axis(axis, self.rank(), op).or_throw()
    }
}

impl Neg for Expr<'_> {
    type Output = Self;
    fn neg(self) -> Self {
        self.negative()
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident),*) => {$(
        impl<'e> $trait for Expr<'e> {
            type Output = Expr<'e>;
            fn $method(self, b: Expr<'e>) -> Expr<'e> {
                self.$op(b)
            }
        }
        impl<'e> $trait<f64> for Expr<'e> {
            type Output = Expr<'e>;
            fn $method(self, b: f64) -> Expr<'e> {
                self.$op(self.scalar(b))
            }
        }
        impl<'e> $trait<Expr<'e>> for f64 {
            type Output = Expr<'e>;
            fn $method(self, b: Expr<'e>) -> Expr<'e> {
                b.scalar(self).$op(b)
            }
        }
    )*};
}
operators!(Add add add, Sub sub subtract, Mul mul multiply, Div div quotient);
