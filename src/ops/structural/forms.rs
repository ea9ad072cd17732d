//! Short forms of structural ops for formulas.

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::ops::attributes::*;
use crate::ops::declare::sorted;
use crate::ops::emit::{Arg, Expr};
use crate::ops::op::{Op, SliceAxis, Type};
use crate::shape::{Dim, Shape};
use crate::small::small;

impl<'e> Expr<'e> {
    /// A reduction over axes, which disappear.
    pub fn reduce(self, kind: Reduction, axes: &[usize]) -> Expr<'e> {
        if axes.is_empty() && !matches!(kind, Reduction::Any | Reduction::All) {
            return self.tensor();
        }
        self.emit(Op::Reduce(kind, sorted(axes.into())))
    }

    /// Puts reduced axes back with size 1.
    pub fn restore(self, axes: &[usize]) -> Expr<'e> {
        let mut shape = self.shape();
        for &axis in sorted(axes.into()).iter() {
            shape.dims_mut().insert(axis, Dim::ONE);
        }
        self.reshape(shape)
    }

    /// A reduction that keeps its axes with size 1.
    pub fn reduce_keep(self, kind: Reduction, axes: &[usize]) -> Expr<'e> {
        self.reduce(kind, axes).restore(axes)
    }

    /// Sums over the axes along which broadcasting a value of `shape` repeated it.
    pub fn sum_to(self, shape: &Shape) -> Expr<'e> {
        if self.shape().same(shape) {
            return self;
        }
        let axes = shape.repeated_axes(&self.shape());
        let sum = self.reduce(Reduction::Sum, &axes);
        // Two equal sizes may be two different expressions.
        if sum.shape().equals(shape) { sum } else { sum.reshape(shape.clone()) }
    }

    /// A running reduction.
    pub fn cumulate(self, kind: Cumulation, axis: usize, reverse: bool) -> Expr<'e> {
        self.emit(Op::Cumulate { kind, axis, reverse })
    }

    /// A strided slice of every axis; no node where it takes everything.
    pub fn slice(self, at: Box<[SliceAxis]>) -> Expr<'e> {
        let shape = self.shape();
        if at.iter().zip(shape.dims()).all(|(a, d)| a.is_whole(*d)) {
            self
        } else {
            self.emit(Op::Slice(at))
        }
    }

    /// `size` elements from `start` along one axis.
    pub fn narrow(self, axis: usize, start: impl Into<Dim>, size: Dim) -> Expr<'e> {
        let mut at = whole(&self.shape());
        at[axis] = SliceAxis { start: start.into(), step: 1, size };
        self.slice(at)
    }

    /// An array of `shape` that is zero, except that the slice `at` of it is this value.
    pub fn embed(self, shape: Shape, at: Box<[SliceAxis]>) -> Expr<'e> {
        let x = self.tensor();
        x.emit_with(Op::Pad(shape, at), &[x.arg(), x.scalar(0).arg()])
    }

    /// Operands concatenated along an axis.
    pub fn concat(self, parts: &[Expr<'e>], axis: usize) -> Expr<'e> {
        let args: SmallVec<[Arg; 4]> = small(parts.iter().map(|part| part.tensor().arg()));
        self.emit_with(Op::Concat(axis), &args)
    }

    /// Advanced indexing of the leading axes by int64 arrays.
    pub fn gather(self, indices: &[Expr<'e>]) -> Expr<'e> {
        let args: SmallVec<[Arg; 4]> =
            std::iter::once(self).chain(indices.iter().copied()).map(Expr::arg).collect();
        self.emit_with(Op::Gather, &args)
    }

    /// This array with values written where [`Expr::gather`] would read.
    pub fn scatter(self, mode: ScatterMode, values: Expr<'e>, indices: &[Expr<'e>]) -> Expr<'e> {
        let values = values.cast(self.dtype());
        let args: SmallVec<[Arg; 6]> =
            [self, values].into_iter().chain(indices.iter().copied()).map(Expr::arg).collect();
        self.emit_with(Op::Scatter(mode), &args)
    }

    /// The index along an axis.
    pub fn iota(self, dtype: DType, shape: Shape, axis: usize) -> Expr<'e> {
        self.emit_with(Op::Iota(Type::new(dtype, shape), axis), &[])
    }

    /// One index array for each axis: `self`, an int64 index, for `axis`, and each element's own
    /// position for the others.
    pub fn along(self, axis: usize) -> SmallVec<[Expr<'e>; 4]> {
        let shape = self.shape();
        (0..shape.rank())
            .map(|i| {
                if i == axis {
                    return self;
                }
                let mut line = Shape::of(&vec![1; shape.rank()]);
                line.dims_mut()[i] = shape[i];
                self.iota(DType::I64, line, i)
            })
            .collect()
    }

    /// The place of each index along an axis; `self` has each index once.
    pub fn inverse_order(self, axis: usize) -> Expr<'e> {
        let places = self.iota(DType::I64, self.shape(), axis);
        let empty = self.scalar(0).full(DType::I64, self.shape());
        empty.scatter(ScatterMode::Set, places, &self.along(axis))
    }

    /// `out[…, i, …] = self[…, index[…, i, …], …]` along an axis.
    pub fn take_along(self, index: Expr<'e>, axis: usize) -> Expr<'e> {
        self.gather(&index.along(axis))
    }

    /// A general product.
    pub fn contract(self, other: Expr<'e>, spec: Contraction) -> Expr<'e> {
        self.emit_with(Op::Contract(Box::new(spec)), &[self.arg(), other.arg()])
    }

    /// A convolution, or one of its two transposes, by its role.
    pub fn conv(self, role: ConvRole, other: Expr<'e>, spec: Box<ConvSpec>) -> Expr<'e> {
        self.emit_with(Op::Conv(role, spec), &[self.arg(), other.arg()])
    }
}

/// The slice that takes everything.
pub fn whole(shape: &Shape) -> Box<[SliceAxis]> {
    shape.dims().iter().map(|&size| SliceAxis::all(size)).collect()
}
