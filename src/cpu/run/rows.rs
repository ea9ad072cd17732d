//! From the plan of a block to a row program, where all its steps compute rows.

#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use crate::array::Array;
use crate::cpu::gemm::Axis;
use crate::cpu::rows::{Builder, Form, Port, RowProgram, Value};
use crate::dtype::Scalar;
use crate::layout::{Layout, row_major};
use crate::ops::op::Op;
use crate::schedule::{Number, Operand, Plan, Sequel, Source, Step, Work};
use crate::shape::Shape;

#[cfg(test)]
thread_local! {
    /// How many programs were made on this thread.
    static MADE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// What is known of a slot of the plan.
#[derive(Clone)]
enum Known {
    /// A value of the program
    Value(Value),
    /// A view of an operand, with its layout
    View(usize, Layout),
}

/// A plan of a block of which a row program is made.
struct Maker<'a> {
    plan: &'a Plan,
    inputs: &'a [&'a Array],
    numbers: &'a [Scalar],
    /// How many rows a block has, and elements a row
    size: [usize; 2],
    builder: Builder,
    /// By slot
    known: Vec<Option<Known>>,
}

/// The row program of a plan of a block.
pub(super) struct BlockRows {
    pub program: RowProgram,
    /// How many rows the block has
    pub rows: usize,
}

/// The row program of the plan of a block, whose operands lie as these do; `None` where some step
/// does something else than compute rows.
pub(super) fn of_block(plan: &Plan, inputs: &[&Array], numbers: &[Scalar]) -> Option<BlockRows> {
    let size = plan.steps().iter().find_map(|step| {
        let Work::Op(Op::Reduce(_, axes)) = &step.work else { return None };
        let Operand::Array(source) = step.args[0] else { return None };
        let sizes = plan.ty(source).shape.sizes();
        let n: usize = axes.iter().map(|&axis| sizes[axis]).product();
        let count: usize = sizes.iter().product();
        (n > 1 && count > 0).then(|| [count / n, n])
    })?;
    let known = vec![None; plan.slots().len()];
    let builder = Builder::new(size[1]);
    let mut maker = Maker { plan, inputs, numbers, size, builder, known };
    for step in plan.steps() {
        maker.step(step)?;
    }
    let mut results: SmallVec<[_; 4]> = SmallVec::new();
    for &output in plan.outputs() {
        let Source::Slot(slot) = output else { return None };
        let Some(Known::Value(x)) = maker.known[slot as usize] else { return None };
        let ty = plan.ty(output);
        let is_whole = ty.shape.count() == maker.count();
        results.push((if is_whole { maker.builder.whole(x) } else { x }, ty.dtype));
    }
    let program = maker.builder.finish(&results)?;
    #[cfg(test)]
    MADE.set(MADE.get() + 1);
    Some(BlockRows { program, rows: size[0] })
}

impl Maker<'_> {
    /// Elements of all rows.
    fn count(&self) -> usize {
        self.size[0] * self.size[1]
    }

    /// How many leading axes of a shape with all elements are those of rows.
    fn lead(&self, shape: &Shape) -> Option<usize> {
        let sizes = shape.sizes();
        if sizes.iter().product::<usize>() != self.count() {
            return None;
        }
        (0..=sizes.len()).find(|&j| sizes[..j].iter().product::<usize>() == self.size[0])
    }

    fn step(&mut self, step: &Step) -> Option<()> {
        if let Some(Sequel { group, operands }) = self.plan.elementwise(step) {
            let mut values: SmallVec<[Value; 16]> = SmallVec::new();
            let mut numbers = group.program.numbers().iter();
            for operand in &operands {
                values.push(match *operand {
                    Operand::Array(source) => self.read(source, &group.shape)?,
                    Operand::Number(number) => {
                        let number = match number {
                            Number::Constant(value) => value,
                            Number::Input(i) => self.numbers[i as usize],
                        };
                        self.builder.number(number, *numbers.next()?)
                    }
                });
            }
            for instruction in group.program.instructions() {
                let args: SmallVec<[Value; 3]> =
                    instruction.args.iter().map(|x| values[x.0 as usize]).collect();
                let computes_in = instruction.computes_in(&group.program);
                let made =
                    self.builder.map(instruction.op, &args, computes_in, instruction.dtype)?;
                values.push(made);
            }
            for (x, &slot) in group.program.results().iter().zip(&step.results) {
                self.known[slot as usize] = Some(Known::Value(values[x.0 as usize]));
            }
            return Some(());
        }
        let Work::Op(op) = &step.work else { return None };
        let &Operand::Array(source) = step.args.first()? else { return None };
        let slot = *step.results.first()? as usize;
        #[allow(
            clippy::wildcard_enum_match_arm,
            reason = "other movements are views of operands, and other ops compute no rows"
        )]
        let made = match op {
            Op::Reduce(kind, axes) => {
                let shape = self.plan.ty(source).shape;
                let lead = self.lead(&shape)?;
                let reduces = |axis: usize| axes.contains(&axis) || shape[axis].value() == 1;
                let keeps = |axis: usize| !axes.contains(&axis) || shape[axis].value() == 1;
                if !(0..lead).all(keeps) || !(lead..shape.rank()).all(reduces) {
                    return None;
                }
                let x = self.read(source, &shape)?;
                Known::Value(self.builder.fold(*kind, x, self.plan.ty(source).dtype)?)
            }
            Op::Reshape(shape) => match self.source(source)? {
                Known::Value(x) => {
                    // The elements stay in order.
                    let from = self.plan.ty(source).shape.count();
                    (shape.count() == from).then_some(Known::Value(x))?
                }
                Known::View(i, layout) => Known::View(i, op.view(self.inputs[i].dtype, &layout)?),
            },
            Op::Broadcast(shape) => match self.source(source)? {
                Known::Value(_) => Known::Value(self.read(source, shape)?),
                Known::View(i, layout) => Known::View(i, op.view(self.inputs[i].dtype, &layout)?),
            },
            _ => match self.source(source)? {
                Known::View(i, layout) if op.is_movement() => {
                    Known::View(i, op.view(self.inputs[i].dtype, &layout)?)
                }
                Known::View(..) | Known::Value(_) => return None,
            },
        };
        self.known[slot] = Some(made);
        Some(())
    }

    fn source(&self, source: Source) -> Option<Known> {
        match source {
            Source::Slot(slot) => self.known[slot as usize].clone(),
            Source::Input(i) => {
                Some(Known::View(i as usize, self.inputs[i as usize].layout.clone()))
            }
            Source::Constant(_) => None,
        }
    }

    /// The value of an operand that broadcasts to a shape, which has all elements or one for each
    /// row.
    fn read(&mut self, source: Source, shape: &Shape) -> Option<Value> {
        let sizes = shape.sizes();
        let is_single = sizes.iter().product::<usize>() == self.size[0];
        let lead = if is_single { sizes.len() } else { self.lead(shape)? };
        match self.source(source)? {
            Known::View(input, layout) => {
                let strides = layout.broadcast_strides(shape);
                let axis = |from: usize, to: usize| {
                    Axis::new(
                        sizes[from..to].iter().copied().zip(strides[from..to].iter().copied()),
                    )
                };
                let (rows, row) = (axis(0, lead), axis(lead, sizes.len()));
                let x = self.inputs[input];
                let col = row.stride()?;
                let form = match (is_single || col == 0, rows.stride()) {
                    (true, _) => Form::Single,
                    (false, Some(0)) => Form::Shared,
                    (false, _) => Form::Whole,
                };
                let delta = layout.offset() as isize - x.layout.offset() as isize;
                let lead = if form == Form::Shared { Axis::default() } else { rows };
                let port = Port { input, dtype: x.dtype, delta, lead, col };
                Some(self.builder.port(port, form))
            }
            Known::Value(x) => {
                let own = self.plan.ty(source).shape;
                let own_count = own.count();
                let is_alike = own_count == sizes.iter().product::<usize>();
                if is_alike {
                    return Some(x);
                }
                // One for each row: the leading axes, in order.
                let strides = Layout::contiguous(own).broadcast_strides(shape);
                let want = row_major(&sizes[..lead]);
                let goes = |axis: usize| {
                    let wanted = if axis < lead { want[axis] } else { 0 };
                    sizes[axis] == 1 || strides[axis] == wanted
                };
                (own_count == self.size[0] && (0..sizes.len()).all(goes)).then_some(x)
            }
        }
    }
}
