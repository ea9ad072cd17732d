//! Along which axes a step can be cut into blocks.
//!
//! A step can be cut along leading axes of its result, or along one axis further inside, under two
//! conditions. A block of the result depends on the same block of some operands and on all of the
//! others. And its elements have the bits that they have in the whole result: reductions and
//! products promise that for the axes they keep, as long as the last axis of more than one element
//! stays the last.

use smallvec::SmallVec;

use super::super::{Operand, Plan, Step, Work};
use crate::layout::Layout;
use crate::ops::op::Op;
use crate::ops::structural::{Blocks, OpKind};
use crate::shape::{Dim, Shape};

/// By row axis: the axis of an operand that goes with it; `None` where a block reads the operand in
/// full
pub type AxisMap = SmallVec<[Option<u8>; 4]>;

/// By row axis: the axis of a step's results that it is
pub type Positions = SmallVec<[u8; 4]>;

/// How many leading axes of its results a step can be cut along; 0 where it cannot be cut.
pub fn reach(plan: &Plan, step: &Step) -> usize {
    let Some(result) = shape(plan, step) else { return 0 };
    let operand = |i: usize| operand(plan, step, i);
    let rank = result.rank();
    let spread = |from: usize| {
        let arrays = step.args.iter().filter(|arg| matches!(arg, Operand::Array(_))).count();
        (from..arrays).all(|i| spreads(&operand(i), result))
    };
    let split = |batch: &[usize]| {
        let dtype = plan.slots[step.results[0] as usize].dtype;
        if plan.target.splits_batch(dtype) { batch.len() } else { 0 }
    };
    match &step.work {
        Work::Group(..) => {
            if spread(0) {
                rank
            } else {
                0
            }
        }
        Work::Op(op) => match blocks(op) {
            Blocks::Never => 0,
            Blocks::Spread => {
                if spread(0) {
                    rank
                } else {
                    0
                }
            }
            Blocks::Leading(axes) => axes(op, &operand(0), result),
            Blocks::Batch(axes) => split(axes(op, 0)),
        },
        // A prologue computes the whole operand.
        Work::Product(product) if product.before.iter().any(Option::is_some) => 0,
        Work::Product(product) => match blocks(&product.op) {
            Blocks::Batch(axes) if spread(2) => axes(&product.op, 0).len(),
            Blocks::Batch(_) | Blocks::Never | Blocks::Spread | Blocks::Leading(_) => 0,
        },
        Work::BlockFusion(_)
        | Work::RowFusion(_)
        | Work::ControlFlow(_)
        | Work::Effect(_)
        | Work::Alias => 0,
    }
}

/// Along which axes an op can be cut.
fn blocks(op: &Op) -> Blocks {
    match op.kind() {
        OpKind::Map(_) => Blocks::Spread,
        OpKind::Call(_) => Blocks::Never,
        OpKind::Structural(def) => def.blocks,
    }
}

/// Whether a step can be cut along one axis of its results that is not the first.
pub fn cuts_inside(plan: &Plan, step: &Step, axis: u8) -> bool {
    let Some(result) = shape(plan, step).filter(|shape| (axis as usize) < shape.rank()) else {
        return false;
    };
    let arrays = step.args.iter().filter(|arg| matches!(arg, Operand::Array(_))).count();
    let spread = || (0..arrays).all(|i| spreads(&operand(plan, step, i), result));
    match &step.work {
        Work::Group(_) => spread(),
        Work::Op(Op::Reduce(..)) => match along(plan, step, 0, &[axis])[0] {
            Some(own) => {
                let shape = operand(plan, step, 0);
                let mut behind = shape.dims()[own as usize + 1..].iter();
                behind.any(|dim| dim.known().is_some_and(|n| n > 1))
            }
            None => false,
        },
        Work::Op(Op::Reshape(_)) => along(plan, step, 0, &[axis])[0].is_some(),
        Work::Op(op) => match blocks(op) {
            Blocks::Spread => spread(),
            Blocks::Never | Blocks::Leading(_) | Blocks::Batch(_) => false,
        },
        Work::Product(_)
        | Work::BlockFusion(_)
        | Work::RowFusion(_)
        | Work::ControlFlow(_)
        | Work::Effect(_)
        | Work::Alias => false,
    }
}

/// The axis of the results of a step that goes with an axis of operand `i`.
pub fn forward(plan: &Plan, step: &Step, i: usize, axis: u8) -> Option<u8> {
    let rank = shape(plan, step)?.rank();
    (0..rank as u8).find(|&own| along(plan, step, i, &[own])[0] == Some(axis))
}

/// The axis of a reshaped array that goes with axis `axis` of `from`: of the same size, with as
/// many elements before it.
fn reshaped(from: &Shape, to: &Shape, axis: u8) -> Option<u8> {
    let before =
        |shape: &Shape, axis: u8| Shape::from_dims(&shape.dims()[..axis as usize]).elements();
    let size = *from.dims().get(axis as usize)?;
    let goes = |&own: &u8| {
        to.dims().get(own as usize).is_some_and(|dim| dim.same(size))
            && before(to, own).same(before(from, axis))
    };
    [axis].into_iter().chain(0..to.rank() as u8).find(goes)
}

/// Which axes of operand `i` go with some axes of the result.
pub fn along(plan: &Plan, step: &Step, i: usize, at: &[u8]) -> AxisMap {
    let own = operand(plan, step, i);
    let spread = || {
        let rank = shape(plan, step).map_or(0, Shape::rank);
        let axis = |&a: &u8| {
            let axis = (a as usize + own.rank()).checked_sub(rank)?;
            (own.dims()[axis].known() != Some(1)).then_some(axis as u8)
        };
        at.iter().map(axis).collect()
    };
    let leading = || at.iter().map(|&a| Some(a)).collect();
    let of_op = |op: &Op| match (blocks(op), op) {
        (Blocks::Spread, _) => spread(),
        (Blocks::Batch(axes), _) => {
            let own = axes(op, i);
            at.iter().map(|&a| own.get(a as usize).map(|&axis| axis as u8)).collect()
        }
        (Blocks::Leading(_) | Blocks::Never, Op::Reduce(_, axes)) => {
            let kept = || (0..own.rank()).filter(|axis| !axes.contains(axis));
            at.iter().map(|&a| kept().nth(a as usize).map(|axis| axis as u8)).collect()
        }
        (Blocks::Leading(_) | Blocks::Never, Op::Reshape(shape)) => {
            at.iter().map(|&a| reshaped(shape, &own, a)).collect()
        }
        (Blocks::Leading(_) | Blocks::Never, _) => leading(),
    };
    match &step.work {
        Work::Group(..) => spread(),
        Work::Product(product) if i < 2 => of_op(&product.op),
        Work::Product(_) => spread(),
        Work::Op(op) => of_op(op),
        Work::BlockFusion(_)
        | Work::RowFusion(_)
        | Work::ControlFlow(_)
        | Work::Effect(_)
        | Work::Alias => leading(),
    }
}

/// How many row axes, from the first on, are the operand's axes at the same positions.
pub fn straight(along: &AxisMap, operand: &Shape, result: &Shape) -> usize {
    let goes = |&(a, &axis): &(usize, &Option<u8>)| {
        let own = operand.dims().get(a).filter(|dim| dim.same(result.dims()[a]));
        // No entry has an axis of one element, which is at its own position, and one that the
        // operand is repeated along, whatever its own first axis is.
        own.is_some_and(|dim| match axis {
            Some(axis) => axis as usize == a,
            None => dim.known() == Some(1),
        })
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

/// The work of a step on a block whose row axes, at these positions, have these sizes.
pub fn cut(work: &Work, at: &[u8], block: &[usize]) -> Work {
    let lead = |shape: &Shape| sized(shape, at, block);
    match work {
        Work::Group(group) => Work::Group(group.reshaped(lead(&group.shape))),
        Work::Product(product) => {
            let mut product = (**product).clone();
            product.groups_mut().for_each(|group| group.shape = lead(&group.shape));
            Work::Product(Box::new(product))
        }
        Work::Op(op) => {
            let mut op = op.clone();
            op.fields().iter_mut().for_each(|field| field.cut(at, block));
            Work::Op(op)
        }
        other @ (Work::BlockFusion(_)
        | Work::RowFusion(_)
        | Work::ControlFlow(_)
        | Work::Effect(_)
        | Work::Alias) => other.clone(),
    }
}

/// A shape with other sizes at some axes.
pub fn sized(shape: &Shape, at: &[u8], block: &[usize]) -> Shape {
    let mut shape = shape.clone();
    let dims = shape.dims_mut();
    at.iter().zip(block).for_each(|(&axis, &n)| dims[axis as usize] = Dim::new(n));
    shape
}

/// The view of an operand that goes with a block, which starts at `start` along the row axes.
pub fn part(x: &Layout, along: &AxisMap, start: &[usize], block: &[usize]) -> Layout {
    let (mut shape, strides, mut offset) = (x.shape().clone(), x.strides(), x.offset());
    for (a, axis) in along.iter().enumerate() {
        if let Some(axis) = axis.map(usize::from) {
            offset = offset.wrapping_add_signed(start[a] as isize * strides[axis]);
            shape.dims_mut()[axis] = Dim::new(block[a]);
        }
    }
    Layout::strided(shape, &strides, offset)
}

/// Whether every axis of a shape has one element, or the size of the axis of the result that it
/// broadcasts to.
fn spreads(own: &Shape, result: &Shape) -> bool {
    let skipped = result.rank().checked_sub(own.rank());
    let fits = |skipped: usize| {
        let pairs = own.dims().iter().zip(&result.dims()[skipped..]);
        pairs.into_iter().all(|(own, to)| own.same(*to) || own.known() == Some(1))
    };
    skipped.is_some_and(fits)
}
