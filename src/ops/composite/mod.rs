//! Composites: formulas over other ops, one declaration each.

use smallvec::SmallVec;

use super::declare::Composite;
use super::emit::{Arg, Emit, Expr, OrThrow, throw};
use crate::dtype::{DType, Numeric, Scalar};
use crate::error;
use crate::memory::check_room;
use crate::shape::{Dim, Extent, Shape, Tuple};
use crate::small::small;

pub mod arithmetic;
pub mod attention;
pub mod creation;
pub mod cumulative;
pub mod einsum;
pub mod indexing;
pub mod joining;
pub mod laws;
pub mod movement;
pub mod nn_activation;
pub mod nn_conv;
pub mod nn_ctc;
pub mod nn_deviance;
pub mod nn_distance;
pub mod nn_dropout;
pub mod nn_linear;
pub mod nn_loss;
pub mod nn_margin;
pub mod nn_norm;
pub mod nn_pool;
pub mod nn_pool_more;
pub mod nn_rectifier;
pub mod nn_recurrent;
pub mod nn_resize;
pub mod nn_sample;
pub mod nn_window;
pub mod optim;
pub mod ordering;
pub mod padding;
pub mod products;
pub mod random;
mod recurrent;
pub mod reduction;
pub mod sampling;
pub mod scattering;
pub mod special;

/// Every composite, file by file.
pub fn tables() -> impl Iterator<Item = &'static Composite> {
    [
        creation::TABLE,
        arithmetic::TABLE,
        reduction::TABLE,
        cumulative::TABLE,
        ordering::TABLE,
        movement::TABLE,
        joining::TABLE,
        padding::TABLE,
        indexing::TABLE,
        scattering::TABLE,
        products::TABLE,
        einsum::TABLE,
        nn_activation::TABLE,
        nn_rectifier::TABLE,
        nn_linear::TABLE,
        nn_dropout::TABLE,
        nn_norm::TABLE,
        nn_conv::TABLE,
        nn_pool::TABLE,
        nn_pool_more::TABLE,
        nn_window::TABLE,
        nn_resize::TABLE,
        nn_sample::TABLE,
        nn_recurrent::TABLE,
        nn_loss::TABLE,
        nn_deviance::TABLE,
        nn_margin::TABLE,
        nn_distance::TABLE,
        nn_ctc::TABLE,
        random::TABLE,
        sampling::TABLE,
        laws::TABLE,
        special::TABLE,
        optim::TABLE,
        #[cfg(feature = "example-op")]
        super::example::composite::TABLE,
    ]
    .into_iter()
    .flatten()
}

/// A number to start a formula from that has no operand.
fn number<'e>(cx: &'e dyn Emit, value: impl Into<Scalar>) -> Expr<'e> {
    Expr::new(cx, Arg::Number(Numeric::from(value)))
}

/// A shape that a user wrote.
fn shape_of(sizes: &[Extent], op: &str) -> Shape {
    let size = |n: &Extent| n.size(op, "a size").unwrap_or_else(|_| refused_sizes(sizes, op));
    let shape: Shape = sizes.iter().map(size).collect();
    shape.check(op).or_throw();
    shape
}

#[cold]
fn refused_sizes(sizes: &[Extent], op: &str) -> ! {
    match sizes.iter().find(|n| n.is_below(0)) {
        Some(size) => throw(error::negative_size(op, size, Tuple(sizes))),
        None => throw(error::too_large(op, Tuple(sizes))),
    }
}

/// A size that a user wrote, which must not be below `least`.
fn size_of(n: Extent, least: i64, name: &str, op: &str) -> Dim {
    if n.is_below(least) {
        throw(error::bad_value(op, format!("{name} must be at least {least}"), format!("got {n}")));
    }
    n.size(op, name).or_throw()
}

/// A count that a user wrote, which must not be below `least`.
fn count_of(n: impl Into<Extent>, least: i64, name: &str, op: &str) -> usize {
    size_of(n.into(), least, name, op).value()
}

/// What a result takes besides its elements, at the least: value, node or tensor.
const RESULT_BYTES: usize = 256;

/// Refuses more results than memory holds. Whoever gives as many as a user says asks before the
/// first.
fn check_results(n: usize) {
    check_room(n.saturating_mul(RESULT_BYTES)).or_throw();
}

/// Operands in their common dtype. Numbers become tensors and are weak.
fn promoted<'e>(parts: &[Expr<'e>], op: &str) -> SmallVec<[Expr<'e>; 4]> {
    let mut dtype: Option<DType> = None;
    for part in parts.iter().filter(|part| part.as_scalar().is_none()) {
        let own = part.dtype();
        dtype = Some(match dtype {
            None => own,
            Some(so_far) => {
                so_far.promote(own).unwrap_or_else(|| throw(error::no_promotion(op, so_far, own)))
            }
        });
    }
    let weak = parts.iter().filter_map(|part| part.as_scalar()).map(Scalar::class).max();
    let dtype = match (dtype, weak) {
        (Some(dtype), None) => dtype,
        (dtype, Some(class)) => dtype.unwrap_or(DType::Bool).promote_weak(class),
        (None, None) => throw(error::bad_value(op, "expected at least one tensor", "got none")),
    };
    for value in parts.iter().filter_map(|part| part.as_scalar()) {
        if !value.fits(dtype) {
            throw(error::overflow(op, value, dtype));
        }
    }
    small(parts.iter().map(|part| part.cast(dtype)))
}

/// A floating tensor: integers and truth values become float32.
fn floating(x: Expr<'_>) -> Expr<'_> {
    let x = x.tensor();
    if x.dtype().is_float() { x } else { x.cast(DType::F32) }
}

/// Refuses what cannot be repeated to a shape.
fn within(op: &str, from: &Shape, to: &Shape) {
    if !from.broadcasts_to(to) {
        throw(error::bad_shape(op, "shapes are not compatible", format!("{from} to {to}")));
    }
}

/// A number, or a tensor of one element as one without axes.
fn one_number<'e>(x: Expr<'e>, name: &str, op: &str) -> Expr<'e> {
    if x.is_number() || x.rank() == 0 {
        return x;
    }
    if !x.shape().elements().same(Dim::ONE) {
        let what = format!("{name} must have one element");
        throw(error::bad_shape(op, what, format!("got shape {}", x.shape())));
    }
    x.reshape(Shape::scalar())
}
