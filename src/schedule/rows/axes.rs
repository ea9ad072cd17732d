//! Along which axes a step can be cut into blocks.
//!
//! A step can be cut along leading axes of its result, if a block of them depends on the same block of
//! some operands and on all of the others, and if its elements have the bits that they have in the
//! whole: reductions and products promise that for the axes they keep.

use smallvec::SmallVec;

use super::super::{Operand, Plan, Product, Step, Work};
use crate::layout::Layout;
use crate::ops::op::Op;
use crate::shape::{Dim, Shape};

/// By row axis: the axis of an operand that goes with it; none where all of the operand is read.
pub type Along = SmallVec<[Option<u8>; 4]>;

/// How many leading axes of its results a step can be cut along; 0 where it cannot be cut.
pub fn reach(plan: &Plan, step: &Step) -> usize {
    let Some(result) = shape(plan, step) else { return 0 };
    let operand = |i: usize| operand(plan, step, i);
    let rank = result.rank();
    match &step.work {
        Work::Group(..) | Work::Op(Op::Map(_) | Op::Cast(_) | Op::Broadcast(_)) => {
            let arrays = step.args.iter().filter(|arg| matches!(arg, Operand::Array(_))).count();
            if (0..arrays).all(|i| spreads(&operand(i), result)) { rank } else { 0 }
        }
        Work::Op(op) => match op {
            Op::Reshape(_) => common(&operand(0), result),
            Op::Permute(axes) => prefix(rank, |a| axes[a] == a),
            Op::Slice(at) => prefix(rank, |a| at[a].is_whole(operand(0).dims()[a])),
            Op::Concat(axis) => *axis,
            Op::Reduce(_, axes) => axes.first().copied().unwrap_or(0),
            Op::Contract(spec) => {
                let dtype = plan.slots[step.results[0] as usize].dtype;
                if plan.target.splits_batch(dtype) { spec.a_batch.len() } else { 0 }
            }
            Op::Map(_) | Op::Cast(_) | Op::Broadcast(_) => rank,
            Op::Call(_)
            | Op::Embed(..)
            | Op::Update(_)
            | Op::Gather
            | Op::Scatter(_)
            | Op::ArgReduce(..)
            | Op::Cumulate { .. }
            | Op::Conv(..)
            | Op::Windows(_)
            | Op::Fold(..)
            | Op::Sort { .. }
            | Op::ArgSort { .. }
            | Op::TopK { .. }
            | Op::Fill(_)
            | Op::Iota(..)
            | Op::RandomBits(_) => 0,
        },
        Work::Product(product) => {
            let Op::Contract(spec) = &product.op else { return 0 };
            let arrays = step.args.iter().filter(|arg| matches!(arg, Operand::Array(_))).count();
            let fits = (2..arrays).all(|i| spreads(&operand(i), result));
            if fits { spec.a_batch.len() } else { 0 }
        }
        Work::Rows(_) | Work::Flow(_) | Work::Effect(_) | Work::Alias => 0,
    }
}

/// Which axes of operand `i` go with the first `rows` axes of the result.
pub fn along(plan: &Plan, step: &Step, i: usize, rows: usize) -> Along {
    let own = operand(plan, step, i);
    let spread = || {
        let rank = shape(plan, step).map_or(0, Shape::rank);
        let axis = |a: usize| {
            let axis = (a + own.rank()).checked_sub(rank)?;
            (own.dims()[axis].known() != Some(1)).then_some(axis as u8)
        };
        (0..rows).map(axis).collect()
    };
    #[allow(clippy::wildcard_enum_match_arm, reason = "an op without axes of a batch shares none")]
    let batch = |op: &Op| match op {
        Op::Contract(spec) => {
            let batch = if i == 0 { &spec.a_batch } else { &spec.b_batch };
            batch[..rows].iter().map(|&axis| Some(axis as u8)).collect()
        }
        _ => Along::new(),
    };
    match &step.work {
        Work::Group(..) | Work::Op(Op::Map(_) | Op::Cast(_) | Op::Broadcast(_)) => spread(),
        Work::Product(product) if i < 2 => batch(&product.op),
        Work::Product(_) => spread(),
        Work::Op(op @ Op::Contract(_)) => batch(op),
        Work::Op(_) | Work::Rows(_) | Work::Flow(_) | Work::Effect(_) | Work::Alias => {
            (0..rows).map(|a| Some(a as u8)).collect()
        }
    }
}

/// How many row axes are the operand's own first axes.
pub fn straight(along: &Along, operand: &Shape, result: &Shape) -> usize {
    let goes = |&(a, &axis): &(usize, &Option<u8>)| {
        let own = operand.dims().get(a).is_some_and(|dim| dim.same(result.dims()[a]));
        // An axis of one element stands for itself.
        own && axis.is_none_or(|axis| axis as usize == a)
    };
    along.iter().enumerate().take_while(goes).count()
}

/// The shape of a step's results, if they have one.
pub fn shape<'p>(plan: &'p Plan, step: &Step) -> Option<&'p Shape> {
    let first = &plan.slots[*step.results.first()? as usize].shape;
    let same = |&slot: &u32| plan.slots[slot as usize].shape.same(first);
    step.results.iter().all(same).then_some(first)
}

/// The shape of the `i`-th array that a step reads.
pub fn operand(plan: &Plan, step: &Step, i: usize) -> Shape {
    match step.args[i] {
        Operand::Array(source) => plan.ty(source).shape,
        Operand::Number(_) => Shape::scalar(),
    }
}

/// What a step does to a block whose row axes have these sizes.
pub fn cut(work: &Work, block: &[usize]) -> Work {
    let lead = |shape: &Shape| leading(shape, block);
    match work {
        Work::Group(group) => Work::Group(group.reshaped(lead(&group.shape))),
        Work::Product(product) => {
            let group = product.group.reshaped(lead(&product.group.shape));
            Work::Product(Box::new(Product { group, ..(**product).clone() }))
        }
        Work::Op(Op::Broadcast(shape)) => Work::Op(Op::Broadcast(lead(shape))),
        Work::Op(Op::Reshape(shape)) => Work::Op(Op::Reshape(lead(shape))),
        Work::Op(Op::Slice(at)) => {
            let mut at = at.clone();
            at.iter_mut().zip(block).for_each(|(axis, &n)| axis.size = Dim::new(n));
            Work::Op(Op::Slice(at))
        }
        other @ (Work::Rows(_) | Work::Op(_) | Work::Flow(_) | Work::Effect(_) | Work::Alias) => {
            other.again()
        }
    }
}

/// A shape with other leading sizes.
pub fn leading(shape: &Shape, block: &[usize]) -> Shape {
    let mut shape = shape.clone();
    shape.dims_mut().iter_mut().zip(block).for_each(|(dim, &n)| *dim = Dim::new(n));
    shape
}

/// The part of an operand that goes with a block: it starts at `start` along the row axes.
pub fn part(x: &Layout, along: &Along, start: &[usize], block: &[usize]) -> Layout {
    let (mut shape, strides, mut offset) = (x.shape().clone(), x.strides(), x.offset());
    for (a, axis) in along.iter().enumerate() {
        if let Some(axis) = axis.map(usize::from) {
            offset = offset.wrapping_add_signed(start[a] as isize * strides[axis]);
            shape.dims_mut()[axis] = Dim::new(block[a]);
        }
    }
    Layout::strided(shape, &strides, offset)
}

/// Whether every axis of a shape is the one of the result that it is spread to, or has one element.
fn spreads(own: &Shape, result: &Shape) -> bool {
    let skipped = result.rank().checked_sub(own.rank());
    let fits = |skipped: usize| {
        let pairs = own.dims().iter().zip(&result.dims()[skipped..]);
        pairs.into_iter().all(|(own, to)| own.same(*to) || own.known() == Some(1))
    };
    skipped.is_some_and(fits)
}

/// How many leading axes two shapes have in common.
fn common(a: &Shape, b: &Shape) -> usize {
    a.dims().iter().zip(b.dims()).take_while(|(a, b)| a.same(**b)).count()
}

fn prefix(rank: usize, holds: impl Fn(usize) -> bool) -> usize {
    (0..rank).take_while(|&a| holds(a)).count()
}
