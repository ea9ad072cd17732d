//! Products with prologues and epilogues: elementwise work on parts that are in the cache.
//!
//! A prologue runs while its operand is packed, block by block, so that the operand is never
//! written as an array. An epilogue runs on each part of the result as soon as that part is
//! written.

use std::ops::Range;

use smallvec::SmallVec;

use super::contract::{self, Factor, Made};
use super::conv;
use super::gemm::{self, Axis, Extras, Packed};
use super::innermost;
use super::program::{Matrix, Program, register_bits, run_part};
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::layout::Layout;
use crate::ops::attributes::{Contraction, ConvRole};
use crate::ops::op::Op;
use crate::shape::{Axes, Shape};

/// Whether an op is a product that can have an epilogue.
pub fn is_product(op: &Op) -> bool {
    matches!(op, Op::Contract(_) | Op::Conv(ConvRole::Output, _))
}

/// The second operand of a product as its kernels read it in panels of columns, if they do: the
/// weights of a convolution, or a matrix that is no batch.
#[allow(clippy::wildcard_enum_match_arm, reason = "no other op is a product")]
fn columns(op: &Op, x: &Array) -> Option<gemm::Matrix> {
    match op {
        Op::Contract(spec) if spec.b_batch.is_empty() => {
            Some(contract::columns(x, &spec.b_contract))
        }
        Op::Conv(ConvRole::Output, spec) if spec.groups == 1 => Some(conv::columns(x, spec)),
        _ => None,
    }
}

/// Packs the second operand of a product, once for all products that will read it. `None` where
/// that does not pay.
pub fn packed(op: &Op, x: &Array) -> Result<Option<Packed>> {
    let is_float = matches!(x.dtype, DType::F32 | DType::F64);
    match columns(op, x).filter(|x| is_float && gemm::pays(x)) {
        // SAFETY: the axes are those of the array.
        Some(matrix) => unsafe { Packed::new(x.dtype, &matrix) },
        None => Ok(None),
    }
}

/// Whether a product reads its second operand in the form in which it was packed.
pub fn reads(op: &Op, x: &Array, packed: &Packed) -> bool {
    columns(op, x).is_some_and(|matrix| packed.holds(&matrix))
}

/// An operand of a product.
#[derive(Clone, Copy)]
pub enum Feed<'a> {
    /// An array
    There(&'a Array),
    /// The result of a prologue
    Made(Prelude<'a>),
}

/// A prologue: the program that computes an operand of a product.
#[derive(Clone, Copy)]
pub struct Prelude<'a> {
    /// The program, which has one result
    pub program: &'a Program,
    /// Its arrays
    pub inputs: &'a [&'a Array],
    /// Its numbers
    pub numbers: &'a [Scalar],
    /// The shape of its result, to which the arrays broadcast
    pub shape: &'a Shape,
    /// For each axis of the operand the axis of the program's result; `None` where they are the
    /// same
    pub axes: Option<&'a Axes>,
}

/// An epilogue: the program that reads a product.
#[derive(Clone, Copy)]
pub struct Sequel<'a> {
    /// The program; its operands and results have the shape of the product or broadcast to it
    pub program: &'a Program,
    /// Its arrays; the one at index `raw` is the product
    pub inputs: &'a [&'a Array],
    /// Its numbers
    pub numbers: &'a [Scalar],
    /// Its results
    pub outputs: &'a [&'a Array],
    /// The index of the product among its arrays
    pub raw: usize,
}

/// Computes the product of `a` and `b` into `out`, and its epilogue, if any, which reads `out`.
/// `lent` is memory in which to pack operands, `packed` the second operand packed before.
///
/// # Safety
/// Results are in C order, or have their channels innermost where the product is a convolution for
/// which [`conv::channels_last`] offers that; they are of their types, nobody else reads or writes them, and they overlap no
/// operand, except that one of them may be the memory of the product.
pub unsafe fn product_into(
    op: &Op,
    [a, b]: [Feed<'_>; 2],
    out: &Array,
    sequel: Option<Sequel<'_>>,
    lent: Option<(*mut u8, usize)>,
    packed: Option<&Packed>,
) -> Result<()> {
    let parts = sequel.as_ref().and_then(|sequel| Parts::new(op, a, sequel));
    let (groups, each) = groups_of(op, out);
    let done = |batch: usize, rows: Range<usize>, cols: Range<usize>| {
        if let Some(parts) = &parts {
            // The groups of a convolution are matrices of the batch, and rows of the result.
            let (batch, row) = (batch / groups, batch % groups * each + rows.start);
            // SAFETY: parts of the result are told once, when they are there.
            unsafe { parts.run(batch, row, cols.start, (rows.len(), cols.len())) };
        }
    };
    let epilogue = parts.is_some().then_some(&done as gemm::Epilogue<'_>);
    let extras = Extras { lent, packed, epilogue, ..Extras::default() };
    // SAFETY: as the caller's.
    unsafe {
        #[allow(clippy::wildcard_enum_match_arm, reason = "what is no product is refused by name")]
        match (op, a, b) {
            (Op::Contract(spec), a, b) => contract(spec, [a, b], out, extras)?,
            (Op::Conv(ConvRole::Output, spec), Feed::There(a), Feed::There(b)) => {
                conv::output(a, b, spec, out, extras)?
            }
            (other, ..) => {
                let what = format!("{} is no product of such operands", other.name());
                return Err(error::internal(what));
            }
        }
        if let (Some(sequel), None) = (sequel, &parts) {
            let Sequel { program, inputs, numbers, outputs, .. } = sequel;
            innermost::run(program, inputs, numbers, outputs);
        }
    }
    Ok(())
}

/// The groups of a convolution, and the channels of its result that each has.
fn groups_of(op: &Op, out: &Array) -> (usize, usize) {
    #[allow(clippy::wildcard_enum_match_arm, reason = "other products have no groups")]
    match op {
        Op::Conv(ConvRole::Output, spec) => {
            (spec.groups, out.shape()[1].value() / spec.groups.max(1))
        }
        _ => (1, 0),
    }
}

/// # Safety
/// As for [`product_into`].
unsafe fn contract(
    spec: &Contraction,
    feeds: [Feed<'_>; 2],
    out: &Array,
    extras: Extras<'_>,
) -> Result<()> {
    match feeds {
        // SAFETY: as the caller's.
        [Feed::There(a), Feed::There(b)] => unsafe {
            contract::contract_with(Factor::There(a), Factor::There(b), spec, out, extras)
        },
        // SAFETY: as the caller's.
        _ => unsafe { contract_made(spec, feeds, out, extras) },
    }
}

/// The same, where at least one operand has a prologue.
///
/// # Safety
/// As for [`product_into`].
unsafe fn contract_made(
    spec: &Contraction,
    [a, b]: [Feed<'_>; 2],
    out: &Array,
    extras: Extras<'_>,
) -> Result<()> {
    let dtype = gemm::accumulator(out.dtype);
    let left = Filling::of(a, &spec.a_contract, dtype);
    let right = Filling::of(b, &spec.b_contract, dtype);
    // SAFETY: the product asks for what lies inside the operands, and gives memory for it.
    let fill_left = |_, own: Range<usize>, depth: Range<usize>, to: *mut u8, by: [isize; 2]| unsafe {
        left.as_ref().into_iter().for_each(|x| x.fill(own.clone(), depth.clone(), to, by));
    };
    // SAFETY: as above.
    let fill_right = |_, own: Range<usize>, depth: Range<usize>, to: *mut u8, by: [isize; 2]| unsafe {
        right.as_ref().into_iter().for_each(|x| x.fill(own.clone(), depth.clone(), to, by));
    };
    let made = [
        left.as_ref().map(|x| Made { layout: x.layout.clone(), ops: x.ops(), fill: &fill_left }),
        right.as_ref().map(|x| Made { layout: x.layout.clone(), ops: x.ops(), fill: &fill_right }),
    ];
    let factor = |feed, made| match (feed, made) {
        (_, Some(made)) => Ok(Factor::Made(made)),
        (Feed::There(x), None) => Ok(Factor::There(x)),
        (Feed::Made(_), None) => Err(error::internal("an operand that nothing makes")),
    };
    let (a, b) = (factor(a, made[0].as_ref())?, factor(b, made[1].as_ref())?);
    // SAFETY: as the caller's.
    unsafe { contract::contract_with(a, b, spec, out, extras) }
}

/// A prologue prepared to compute blocks of an operand.
struct Filling<'a> {
    program: &'a Program,
    numbers: SmallVec<[u64; 4]>,
    /// The dtype in which blocks are written: its result's, or a wider one with the same register
    /// form
    dtype: DType,
    layout: Layout,
    loads: SmallVec<[Load; 4]>,
}

/// An array that the prologue reads, by the axes of the operand.
struct Load {
    ptr: *const u8,
    dtype: DType,
    own: Axis,
    depth: Axis,
}

// SAFETY: what is read is only read, and threads fill different blocks.
unsafe impl Sync for Filling<'_> {}

impl<'a> Filling<'a> {
    /// The prologue of an operand, if it has one.
    fn of(feed: Feed<'a>, depth: &Axes, dtype: DType) -> Option<Filling<'a>> {
        match feed {
            Feed::There(_) => None,
            Feed::Made(prelude) => Some(Filling::new(prelude, depth, dtype)),
        }
    }

    fn new(prelude: Prelude<'a>, depth: &Axes, dtype: DType) -> Filling<'a> {
        let Prelude { program, inputs, numbers, shape, axes } = prelude;
        let dense = Layout::contiguous(shape.clone());
        let layout = axes.map_or_else(|| dense.clone(), |axes| dense.permuted(axes));
        let sizes = layout.shape().sizes();
        let place = |axis: usize| axes.map_or(axis, |axes| axes[axis]);
        let strides: SmallVec<[_; 4]> =
            inputs.iter().map(|x| x.layout.broadcast_strides(shape)).collect();
        let axes_of = |chosen: &[usize]| {
            let sizes: SmallVec<[usize; 6]> = chosen.iter().map(|&i| sizes[i]).collect();
            let strides: SmallVec<[SmallVec<[isize; 6]>; 4]> = (strides.iter())
                .map(|strides| chosen.iter().map(|&i| strides[place(i)]).collect())
                .collect();
            Axis::together(&sizes, &strides)
        };
        let own: Axes = (0..sizes.len()).filter(|i| !depth.contains(i)).collect();
        let (own, depth) = (axes_of(&own), axes_of(depth));
        let loads = inputs.iter().zip(own).zip(depth);
        let numbers = numbers.iter().zip(program.scalars());
        Filling {
            program,
            numbers: numbers.map(|(&x, &dtype)| register_bits(x, dtype)).collect(),
            dtype,
            loads: loads
                .map(|((x, own), depth)| Load { ptr: x.ptr(), dtype: x.dtype, own, depth })
                .collect(),
            layout,
        }
    }

    fn ops(&self) -> usize {
        self.program.instructions()
    }

    /// Computes a block of the operand.
    ///
    /// # Safety
    /// The block is inside the operand, and `to` is memory for it that nobody else reads or writes.
    unsafe fn fill(&self, own: Range<usize>, depth: Range<usize>, to: *mut u8, by: [isize; 2]) {
        let runs = |load: &Load| {
            (load.own.runs(own.start, own.len()), load.depth.runs(depth.start, depth.len()))
        };
        let all: SmallVec<[_; 4]> = self.loads.iter().map(runs).collect();
        let Some((rows, steps)) = all.first() else { return };
        // The columns of the block are the contiguous direction of its destination.
        let along = by[1] == 1;
        let matrix = |ptr, dtype, [own, depth]: [isize; 2]| {
            let (row, col) = if along { (own, depth) } else { (depth, own) };
            Matrix { ptr, dtype, row, col }
        };
        for (r, row) in rows.iter().enumerate() {
            for (s, step) in steps.iter().enumerate() {
                let at = row.at as isize * by[0] + step.at as isize * by[1];
                let to = to.wrapping_offset(at * self.dtype.size() as isize);
                let input = |(load, (rows, steps)): (&Load, &(gemm::Runs, gemm::Runs))| {
                    let offset = (rows[r].offset + steps[s].offset) * load.dtype.size() as isize;
                    let ptr = load.ptr.wrapping_offset(offset).cast_mut();
                    matrix(ptr, load.dtype, [load.own.inner().1, load.depth.inner().1])
                };
                let inputs: SmallVec<[Matrix; 4]> =
                    self.loads.iter().zip(&all).map(input).collect();
                let size = if along { (row.len, step.len) } else { (step.len, row.len) };
                let output = [matrix(to, self.dtype, by)];
                // SAFETY: as the caller's; the result's register form is that of the dtype.
                unsafe { run_part(self.program, &inputs, &self.numbers, &output, size) };
            }
        }
    }
}

/// An operand of the epilogue by the axes of the product: batch, rows and columns.
struct Side {
    matrix: Matrix,
    batch: Axis,
}

/// An epilogue prepared to run on rectangles of a product.
struct Parts<'a> {
    /// Whether rows and columns of operands are columns and rows of the product
    turned: bool,
    program: &'a Program,
    numbers: SmallVec<[u64; 4]>,
    inputs: SmallVec<[Side; 6]>,
    outputs: SmallVec<[Side; 2]>,
}

// SAFETY: threads work on different parts.
unsafe impl Sync for Parts<'_> {}

impl<'a> Parts<'a> {
    /// `None` where some operand has no single stride along rows or along columns.
    fn new(op: &Op, a: Feed<'_>, sequel: &Sequel<'a>) -> Option<Parts<'a>> {
        #[allow(
            clippy::wildcard_enum_match_arm,
            reason = "what is no product has no parts, and is refused where it is run"
        )]
        let (batch, rows) = match op {
            Op::Contract(spec) => {
                let batch = spec.a_batch.len();
                let rank = match a {
                    Feed::There(a) => a.shape().rank(),
                    Feed::Made(prelude) => prelude.shape.rank(),
                };
                (batch, rank - batch - spec.a_contract.len())
            }
            Op::Conv(..) => (1, 1),
            _ => return None,
        };
        let result = sequel.outputs.first()?.shape();
        let sizes = result.sizes();
        // Lines of a rectangle are rows of the result, or channels of an image where these are
        // innermost.
        let turned = matches!(op, Op::Conv(..))
            && sequel.outputs.first().is_some_and(|y| innermost::is_innermost(&y.layout));
        let side = |x: &&Array| {
            let strides = x.layout.broadcast_strides(result);
            let axis = |from: usize, to: usize| {
                Axis::new((from..to).map(|axis| (sizes[axis], strides[axis])))
            };
            let (row, col) = (axis(batch, batch + rows), axis(batch + rows, sizes.len()));
            let (row, col) = (row.stride()?, col.stride()?);
            let (row, col) = if turned { (col, row) } else { (row, col) };
            let matrix = Matrix { ptr: x.ptr().cast_mut(), dtype: x.dtype, row, col };
            Some(Side { matrix, batch: axis(0, batch) })
        };
        let scalars = sequel.program.scalars();
        let numbers = sequel.numbers.iter().zip(scalars);
        Some(Parts {
            turned,
            program: sequel.program,
            numbers: numbers.map(|(&x, &dtype)| register_bits(x, dtype)).collect(),
            inputs: sequel.inputs.iter().map(side).collect::<Option<_>>()?,
            outputs: sequel.outputs.iter().map(side).collect::<Option<_>>()?,
        })
    }

    /// Runs the epilogue on a rectangle.
    ///
    /// # Safety
    /// The rectangle is inside the result, and nobody else works on it.
    unsafe fn run(&self, batch: usize, row: usize, col: usize, (rows, cols): (usize, usize)) {
        let (row, col, size) = match self.turned {
            true => (col, row, (cols, rows)),
            false => (row, col, (rows, cols)),
        };
        let part = |side: &Side| {
            let Matrix { ptr, dtype, row: down, col: right } = side.matrix;
            let offset = side.batch.at(batch) + row as isize * down + col as isize * right;
            let ptr = ptr.wrapping_offset(offset * dtype.size() as isize);
            Matrix { ptr, ..side.matrix }
        };
        let inputs: SmallVec<[Matrix; 8]> = self.inputs.iter().map(part).collect();
        let outputs: SmallVec<[Matrix; 2]> = self.outputs.iter().map(part).collect();
        // SAFETY: as the caller's.
        unsafe { run_part(self.program, &inputs, &self.numbers, &outputs, size) };
    }
}
