//! Products with what becomes of them: elementwise work on each part of a result while it is in the
//! cache.

use smallvec::SmallVec;

use super::gemm::{Axis, Extras};
use super::program::{Matrix, Program, register_bits, run, run_part};
use super::{contract, conv};
use crate::array::Array;
use crate::dtype::Scalar;
use crate::error::{self, Result};
use crate::ops::attributes::ConvRole;
use crate::ops::op::Op;

/// Whether an op is a product that can be followed by a program at once.
pub fn is_product(op: &Op) -> bool {
    matches!(op, Op::Contract(_))
        || matches!(op, Op::Conv(ConvRole::Output, spec) if spec.groups == 1)
}

/// What follows a product.
#[derive(Clone, Copy)]
pub struct Sequel<'a> {
    /// The program; its operands and results have the shape of the product or broadcast to it
    pub program: &'a Program,
    /// Its arrays; the one at `raw` is the product
    pub inputs: &'a [&'a Array],
    /// Its numbers
    pub numbers: &'a [Scalar],
    /// Its results
    pub outputs: &'a [&'a Array],
    /// Which of its arrays is the product
    pub raw: usize,
}

/// The product of `a` and `b`, in the memory of the program's array that stands for it, and then the
/// program. Memory to pack operands in may be lent.
///
/// # Safety
/// Results are in C order, of their types, nobody else reads or writes them, and they overlap no
/// operand, except that one of them may be the memory of the product.
pub unsafe fn product_into(
    op: &Op,
    (a, b): (&Array, &Array),
    sequel: Sequel<'_>,
    lent: Option<(*mut u8, usize)>,
) -> Result<()> {
    let raw = sequel.inputs[sequel.raw];
    let parts = Parts::new(op, a, &sequel);
    let done = |batch, rows: std::ops::Range<usize>, cols: std::ops::Range<usize>| {
        if let Some(parts) = &parts {
            // SAFETY: parts of the result are told once, when they are there.
            unsafe { parts.run(batch, rows.start, cols.start, (rows.len(), cols.len())) };
        }
    };
    let extras = Extras { lent, done: parts.is_some().then_some(&done) };
    // SAFETY: as the caller's.
    unsafe {
        #[allow(clippy::wildcard_enum_match_arm, reason = "what is no product is refused by name")]
        match op {
            Op::Contract(spec) => contract::contract_with(a, b, spec, raw, extras)?,
            Op::Conv(ConvRole::Output, spec) => conv::output(a, b, spec, raw, extras)?,
            other => return Err(error::internal(format!("{} is no product", other.name()))),
        }
        if parts.is_none() {
            let Sequel { program, inputs, numbers, outputs, .. } = sequel;
            run(program, inputs, numbers, outputs);
        }
    }
    Ok(())
}

/// An operand of the program by the axes of a product: batch, rows and columns.
struct Side {
    matrix: Matrix,
    batch: Axis,
}

/// A program on the parts of a product.
struct Parts<'a> {
    program: &'a Program,
    numbers: SmallVec<[u64; 4]>,
    inputs: SmallVec<[Side; 6]>,
    outputs: SmallVec<[Side; 2]>,
}

// SAFETY: threads work on different parts.
unsafe impl Sync for Parts<'_> {}

impl<'a> Parts<'a> {
    /// None where some operand does not walk evenly along rows and along columns.
    fn new(op: &Op, a: &Array, sequel: &Sequel<'a>) -> Option<Parts<'a>> {
        #[allow(
            clippy::wildcard_enum_match_arm,
            reason = "what is no product has no parts, and is refused where it is run"
        )]
        let (batch, rows) = match op {
            Op::Contract(spec) => {
                let batch = spec.a_batch.len();
                (batch, a.shape().rank() - batch - spec.a_contract.len())
            }
            Op::Conv(..) => (1, 1),
            _ => return None,
        };
        let result = sequel.outputs.first()?.shape();
        let sizes = result.sizes();
        let side = |x: &&Array| {
            let strides = x.layout.broadcast_strides(result);
            let axis = |from: usize, to: usize| {
                Axis::new((from..to).map(|axis| (sizes[axis], strides[axis])))
            };
            let (row, col) = (axis(batch, batch + rows), axis(batch + rows, sizes.len()));
            let (row, col) = (row.stride()?, col.stride()?);
            let matrix = Matrix { ptr: x.ptr().cast_mut(), dtype: x.dtype, row, col };
            Some(Side { matrix, batch: axis(0, batch) })
        };
        let scalars = sequel.program.scalars();
        let numbers = sequel.numbers.iter().zip(scalars);
        Some(Parts {
            program: sequel.program,
            numbers: numbers.map(|(&x, &dtype)| register_bits(x, dtype)).collect(),
            inputs: sequel.inputs.iter().map(side).collect::<Option<_>>()?,
            outputs: sequel.outputs.iter().map(side).collect::<Option<_>>()?,
        })
    }

    /// Runs the program on a part.
    ///
    /// # Safety
    /// The part is inside the result, and nobody else works on it.
    unsafe fn run(&self, batch: usize, row: usize, col: usize, size: (usize, usize)) {
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
