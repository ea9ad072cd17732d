//! Along which axes a step can be cut into blocks.
//!
//! A step can be cut along leading axes of its result under two conditions. A block of the result
//! depends on the same block of some operands and on all of the others. And its elements have the
//! bits that they have in the whole result: reductions and products promise that for the axes they
//! keep.

use smallvec::SmallVec;

use super::super::{Operand, Plan, Step, Work};
use crate::layout::Layout;
use crate::ops::op::Op;
use crate::ops::structural::{Blocks, OpKind};
use crate::shape::{Dim, Shape};

/// By row axis: the axis of an operand that goes with it; `None` where a block reads the operand in
/// full
pub type AxisMap = SmallVec<[Option<u8>; 4]>;

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

/// Which axes of operand `i` go with the first `rows` axes of the result.
pub fn along(plan: &Plan, step: &Step, i: usize, rows: usize) -> AxisMap {
    let own = operand(plan, step, i);
    let spread = || {
        let rank = shape(plan, step).map_or(0, Shape::rank);
        let axis = |a: usize| {
            let axis = (a + own.rank()).checked_sub(rank)?;
            (own.dims()[axis].known() != Some(1)).then_some(axis as u8)
        };
        (0..rows).map(axis).collect()
    };
    let leading = || (0..rows).map(|a| Some(a as u8)).collect();
    let of_op = |op: &Op| match blocks(op) {
        Blocks::Spread => spread(),
        Blocks::Batch(axes) => axes(op, i)[..rows].iter().map(|&axis| Some(axis as u8)).collect(),
        Blocks::Leading(_) | Blocks::Never => leading(),
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
        let own = operand.dims().get(a).is_some_and(|dim| dim.same(result.dims()[a]));
        // An axis of one element has no entry, and is at its own position.
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

/// The work of a step on a block whose row axes have these sizes.
pub fn cut(work: &Work, block: &[usize]) -> Work {
    let lead = |shape: &Shape| leading(shape, block);
    match work {
        Work::Group(group) => Work::Group(group.reshaped(lead(&group.shape))),
        Work::Product(product) => {
            let mut product = (**product).clone();
            product.groups_mut().for_each(|group| group.shape = lead(&group.shape));
            Work::Product(Box::new(product))
        }
        Work::Op(op) => {
            let mut op = op.clone();
            op.fields().iter_mut().for_each(|field| field.cut(block));
            Work::Op(op)
        }
        other @ (Work::BlockFusion(_)
        | Work::RowFusion(_)
        | Work::ControlFlow(_)
        | Work::Effect(_)
        | Work::Alias) => other.clone(),
    }
}

/// A shape with other leading sizes.
pub fn leading(shape: &Shape, block: &[usize]) -> Shape {
    let mut shape = shape.clone();
    shape.dims_mut().iter_mut().zip(block).for_each(|(dim, &n)| *dim = Dim::new(n));
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
