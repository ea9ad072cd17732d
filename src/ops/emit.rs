//! `Emit` and `Expr`: the language in which rules and composites are written.
//!
//! A rule is a formula over [`Expr`]s. Whoever runs it decides what happens: the eager engine
//! computes (and records), a graph appends nodes, a probe only looks at which operands are used.
//!
//! An emission that fails unwinds with its [`error::Error`] (by `resume_unwind`: no message, no
//! hook) to the nearest [`catch`], which returns it. So formulas read as mathematics and still report
//! every error as a value.

use std::ops::{Add, Div, Mul, Neg, Sub};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::declare::Composite;
use super::number::Number;
use super::op::{Op, Type};
use crate::dtype::{DType, Numeric, Scalar};
use crate::error::{self, Result};
use crate::shape::{Axes, Dim, Shape};

/// A value made during one emission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u32);

/// An operand: a value or a weak scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// A value
    Node(Id),
    /// A number, known or told by a run
    Number(Numeric),
}

/// Where a formula's nodes go.
pub trait Emit {
    /// Adds a node. Unwinds with the error where the operands are refused.
    fn emit(&self, op: Op, args: &[Arg]) -> Id;
    /// A further result of the op that gave a value: 0 is the value itself.
    fn result(&self, id: Id, k: usize) -> Id;
    /// The type of a value.
    fn ty(&self, id: Id) -> Type;
    /// The dtype of a value.
    fn dtype(&self, id: Id) -> DType {
        self.ty(id).dtype
    }
    /// Whether a call of a composite that is not declared `inline` stays one node here.
    fn keeps(&self, composite: &'static Composite) -> bool;
    /// A number, as soon as it is known.
    fn number(&self, number: Number) -> Numeric;
    /// The size that a number of this emission is.
    fn size_behind(&self, _: Numeric) -> Option<Dim> {
        None
    }
    /// A formula looks at a number that a run tells, instead of passing it on: what it emits may depend
    /// on it. Gives the number if it is known at hand; if not, what the formula emits is not used.
    fn looks_at(&self, _: u32) -> Option<Scalar> {
        None
    }
}

/// Leaves the running formula with an error.
pub use crate::error::throw;

/// Runs a formula: an error thrown inside comes back as a value, and so does a defect.
pub fn catch<T>(f: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).map_err(error::unwound)
}

/// Unwraps inside a formula.
pub trait OrThrow<T> {
    /// The value, or leaves the formula with the error.
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

    /// Whether this is a number.
    pub fn is_number(self) -> bool {
        matches!(self.arg, Arg::Number(_))
    }

    /// The number, if this is one, for formulas that depend on its value.
    pub fn as_scalar(self) -> Option<Scalar> {
        match self.arg {
            Arg::Number(Numeric::Known(value)) => Some(value),
            // Any float does for what is not used.
            Arg::Number(Numeric::Told(i)) => {
                Some(self.cx.looks_at(i).unwrap_or(Scalar::Float(f64::NAN)))
            }
            Arg::Node(_) => None,
        }
    }

    /// The dtype; a number alone has its class's default.
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
        self.shape().rank()
    }

    /// The size of an axis.
    pub fn size(self, axis: usize) -> Dim {
        self.shape()[axis]
    }

    /// The node; a number becomes a tensor of its class's default dtype.
    pub fn tensor(self) -> Expr<'e> {
        match self.arg {
            Arg::Node(_) => self,
            Arg::Number(_) => self.full(self.dtype(), Shape::scalar()),
        }
    }

    /// The node; a number becomes one.
    pub fn node(self) -> Id {
        match self.tensor().arg {
            Arg::Node(id) => id,
            Arg::Number(_) => unreachable!("a tensor is a node"),
        }
    }

    /// Adds a node with this operand alone.
    pub fn emit(self, op: Op) -> Expr<'e> {
        let x = self.tensor();
        x.emit_with(op, &[x.arg])
    }

    /// Adds a node.
    pub fn emit_with(self, op: Op, args: &[Arg]) -> Expr<'e> {
        Expr { cx: self.cx, arg: Arg::Node(self.cx.emit(op, args)) }
    }

    /// The same values in another dtype; nothing where it has that dtype.
    pub fn cast(self, dtype: DType) -> Expr<'e> {
        match self.arg {
            Arg::Node(_) if self.dtype() == dtype => self,
            Arg::Node(_) => self.emit(Op::Cast(dtype)),
            Arg::Number(_) => self.full(dtype, Shape::scalar()),
        }
    }

    /// One number everywhere: this scalar in a dtype and shape.
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

    /// Repeated to a shape.
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
        self.shape().axis(axis, op).or_throw()
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
