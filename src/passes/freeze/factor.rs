//! Constant factors and summands, and arithmetic on constants.

use smallvec::SmallVec;

use super::operand;
use crate::array::{Array, Operand};
use crate::dtype::{DType, Scalar};
use crate::graph::{Kind, Node};
use crate::ops::attributes::{Contraction, ConvRole, ConvSpec, Reduction};
use crate::ops::elementwise::{Elementwise, arithmetic, comparison};
use crate::ops::emit::Arg;
use crate::ops::op::{Op, Type};
use crate::passes::Evaluator;
use crate::passes::constant_folding::first;
use crate::passes::simplify::filling;
use crate::shape::{Dim, Shape};

/// A constant by which a value is multiplied: one number, or one for each index of an axis.
pub struct Factor {
    /// The axis of the value; `None` where there is one number
    pub axis: Option<usize>,
    /// The numbers: without axes, or along one axis
    pub values: Array,
}

/// Results of at most so many elements are computed whatever they come of.
const SMALL: usize = 1 << 14;
/// Larger ones have at most this many times the elements of their operands.
const GROWTH: usize = 2;

/// What computes constants. A computation that fails gives `None`, and what asked for it is left.
#[derive(Clone, Copy)]
pub struct Calculator<'e>(pub &'e dyn Evaluator);

impl Calculator<'_> {
    /// A constant operand in a dtype, if it is one: its elements before they are broadcast.
    pub fn constant(self, nodes: &[Node], arg: Arg, dtype: DType) -> Option<Array> {
        let Some(node) = operand(nodes, arg) else {
            let Arg::Number(value) = arg else { return None };
            return self.number(value.known()?, dtype);
        };
        match &node.kind {
            Kind::Constant(array) => Some(array.clone()),
            Kind::Op(Op::Full(_)) => self.number(filling(node)?.known()?, node.ty.dtype),
            Kind::Op(Op::Broadcast(_)) => match operand(nodes, node.args[0])?.kind {
                Kind::Constant(ref array) => Some(array.clone()),
                Kind::Input
                | Kind::Op(_)
                | Kind::ControlFlow(_)
                | Kind::Result(_)
                | Kind::Effect(_)
                | Kind::Barrier => None,
            },
            Kind::Input
            | Kind::Op(_)
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier => None,
        }
    }

    /// The constant weights of a product, if they are constant: all elements.
    pub fn weights(self, nodes: &[Node], arg: Arg) -> Option<Array> {
        let node = operand(nodes, arg)?;
        match &node.kind {
            Kind::Constant(array) => Some(array.clone()),
            Kind::Op(op @ Op::Full(_)) => {
                let value = filling(node)?.known()?;
                self.0.evaluate(op, &[Operand::Scalar(value)]).ok()
            }
            Kind::Input
            | Kind::Op(_)
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier => None,
        }
    }

    fn number(self, value: Scalar, dtype: DType) -> Option<Array> {
        let ty = Type::new(dtype, Shape::scalar());
        self.0.evaluate(&Op::Full(ty), &[Operand::Scalar(value)]).ok()
    }

    /// A constant operand of an elementwise op as a factor of a value of type `ty`, if it is finite
    /// and differs along one axis at most.
    pub fn factor(self, constant: Array, ty: &Type) -> Option<Factor> {
        if constant.dtype != ty.dtype || !self.is_finite(&constant) {
            return None;
        }
        let lead = ty.shape.rank().checked_sub(constant.shape().rank())?;
        let sizes = constant.shape().dims();
        let mut long = sizes.iter().enumerate().filter(|(_, n)| n.known() != Some(1));
        let (axis, size) = (long.next(), long.next());
        let Some((at, &n)) = axis else {
            let values = self.reshaped(&constant, &Shape::scalar())?;
            return Some(Factor { axis: None, values });
        };
        // The sizes are compared without asking, so that nothing is assumed of open ones.
        if size.is_some() || ty.shape[lead + at].known() != n.known() {
            return None;
        }
        let values = self.reshaped(&constant, &Shape::from_dims(&[n]))?;
        Some(Factor { axis: Some(lead + at), values })
    }

    /// Whether all elements are finite.
    pub fn is_finite(self, x: &Array) -> bool {
        let all = || {
            let op = Op::Map(&comparison::isfinite);
            let each = self.0.evaluate(&op, &[Operand::Array(x)]).ok()?;
            let axes = (0..each.shape().rank()).collect();
            let all = Op::Reduce(Reduction::All, axes);
            first(&self.0.evaluate(&all, &[Operand::Array(&each)]).ok()?)
        };
        all() == Some(Scalar::Bool(true))
    }

    fn reshaped(self, x: &Array, shape: &Shape) -> Option<Array> {
        self.0.evaluate(&Op::Reshape(shape.clone()), &[Operand::Array(x)]).ok()
    }

    /// An elementwise op on constants, which broadcast; `None` where the result would be much larger
    /// than they are.
    pub fn map(self, def: &'static Elementwise, args: &[&Array]) -> Option<Array> {
        let rank = args.iter().map(|x| x.shape().rank()).max().unwrap_or(0);
        let along = |axis: usize| {
            let size = |x: &&Array| {
                let at = (axis + x.shape().rank()).checked_sub(rank);
                at.map_or(1, |at| x.shape()[at].value())
            };
            args.iter().map(size).max().unwrap_or(1)
        };
        let count = (0..rank).map(along).fold(1, usize::saturating_mul);
        let given: usize = args.iter().map(|x| x.count()).sum();
        if count > SMALL.max(given.saturating_mul(GROWTH)) {
            return None;
        }
        let args: SmallVec<[Operand<'_>; 2]> = args.iter().map(|&x| Operand::Array(x)).collect();
        self.0.evaluate(&Op::Map(def), &args).ok()
    }

    /// One over a factor, if that is finite.
    pub fn inverse(self, factor: &Factor) -> Option<Factor> {
        let values = self.map(&arithmetic::reciprocal, &[&factor.values])?;
        self.is_finite(&values).then_some(Factor { axis: factor.axis, values })
    }

    /// A factor laid along its axis, to be multiplied with a value of this rank.
    pub fn placed(self, factor: &Factor, rank: usize) -> Option<Array> {
        let Some(axis) = factor.axis else { return Some(factor.values.clone()) };
        // Axes in front of it are left out, since operands are aligned at their ends.
        let mut shape = Shape::from_dims(&[factor.values.shape()[0]]);
        shape.dims_mut().extend((axis + 1..rank).map(|_| Dim::ONE));
        self.reshaped(&factor.values, &shape)
    }

    /// Weights times a factor along axis `axis` of them; `None` where the result is not finite.
    fn scaled(self, w: &Array, factor: &Factor, axis: Option<usize>) -> Option<Array> {
        let along = Factor { axis, values: factor.values.clone() };
        let by = self.placed(&along, w.shape().rank())?;
        self.map(&arithmetic::multiply, &[w, &by]).filter(|w| self.is_finite(w))
    }

    /// The weights, operand `k` of a product, such that its result is scaled. The weights of a batch
    /// are scaled with it.
    pub fn behind_product(
        self,
        spec: &Contraction,
        k: usize,
        [a, b]: [usize; 2],
        w: &Array,
        factor: &Factor,
    ) -> Option<Array> {
        let Some(axis) = factor.axis else { return self.scaled(w, factor, None) };
        let free = |rank: usize, batch: &[usize], contract: &[usize]| -> SmallVec<[usize; 6]> {
            (0..rank).filter(|i| !batch.contains(i) && !contract.contains(i)).collect()
        };
        let batches = spec.a_batch.len();
        let left = free(a, &spec.a_batch, &spec.a_contract);
        let right = free(b, &spec.b_batch, &spec.b_contract);
        let (batch, own, first) = match k {
            0 => (&spec.a_batch, left, batches),
            _ => (&spec.b_batch, right, batches + left.len()),
        };
        let own = match axis < batches {
            true => batch[axis],
            false => *own.get(axis.checked_sub(first)?)?,
        };
        self.scaled(w, factor, Some(own))
    }

    /// The weights, operand `k` of a product, such that its other operand need not be scaled.
    pub fn before_product(
        self,
        spec: &Contraction,
        k: usize,
        w: &Array,
        factor: &Factor,
    ) -> Option<Array> {
        let Some(axis) = factor.axis else { return self.scaled(w, factor, None) };
        let (own, others) = match k {
            0 => (
                [&spec.a_batch[..], &spec.a_contract].concat(),
                [&spec.b_batch[..], &spec.b_contract].concat(),
            ),
            _ => (
                [&spec.b_batch[..], &spec.b_contract].concat(),
                [&spec.a_batch[..], &spec.a_contract].concat(),
            ),
        };
        let at = others.iter().position(|&other| other == axis)?;
        self.scaled(w, factor, Some(own[at]))
    }

    /// The weights of a convolution, or of its transpose, such that its result is scaled, or
    /// (`before`) that its operand need not be.
    pub fn around_convolution(
        self,
        role: ConvRole,
        spec: &ConvSpec,
        w: &Array,
        factor: &Factor,
        before: bool,
    ) -> Option<Array> {
        match factor.axis {
            None => return self.scaled(w, factor, None),
            Some(1) => {}
            Some(_) => return None,
        }
        // Weights are (outputs, inputs of a group, …) as the convolution sees them.
        let by_output = match role {
            ConvRole::Output => !before,
            ConvRole::Input => before,
            ConvRole::Weight => return None,
        };
        if by_output {
            return self.scaled(w, factor, Some(0));
        }
        let (shape, groups) = (w.shape().clone(), Dim::new(spec.groups));
        let (outputs, inputs) = (shape[0].known()?, shape[1]);
        let mut apart = Shape::from_dims(&[groups, Dim::new(outputs / spec.groups)]);
        apart.dims_mut().extend(shape.dims()[1..].iter().copied());
        let mut by = Shape::from_dims(&[groups, Dim::ONE, inputs]);
        by.dims_mut().extend((2..shape.rank()).map(|_| Dim::ONE));
        let (w, by) = (self.reshaped(w, &apart)?, self.reshaped(&factor.values, &by)?);
        let scaled = self.map(&arithmetic::multiply, &[&w, &by]).filter(|w| self.is_finite(w))?;
        self.reshaped(&scaled, &shape)
    }
}
