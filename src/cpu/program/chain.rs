//! Chains: programs of few kinds of steps on one running value, which stays in registers.
//!
//! What products and convolutions are followed by mostly is such a program: a bias, a residual, a
//! bound. Interpreted over tiles each of its steps would read and write the tile; here a block of a
//! row is read once, taken through all steps, and written once. So are ops that broadcast a column or
//! a row to a matrix: a number of a row is repeated in a register of the processor, not in memory.
//!
//! Promises: the bits of the program run over tiles.

mod level;

use std::ops::Range;

use smallvec::SmallVec;

use level::Register;

use super::part::Matrix;
use super::with_scratch;
use crate::dtype::DType;
use crate::ops::element::{ElementOp, ElementProgram};
use crate::ops::elementwise::{Elementwise, arithmetic};
use crate::simd::{Isa, isa, stream_copy, stream_fence};
use crate::tile::TILE;

/// A step of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Add,
    Subtract,
    Multiply,
    Divide,
    Maximum,
    Minimum,
    /// The other operand minus the running value
    SubtractFrom,
    /// The other operand by the running value
    DivideInto,
    /// The maximum and the minimum with the other operand as the first
    MaximumOf,
    MinimumOf,
    /// The larger, where the other operand is no NaN; the running value where they are equal
    Larger,
    /// The smaller, likewise
    Smaller,
    /// [`Larger`](Kind::Larger) than zero, which is never negative zero
    Positive,
}

impl Kind {
    /// The kind where the other operand comes first. The bits of sums and products are the same.
    fn turned(self) -> Kind {
        match self {
            Kind::Subtract => Kind::SubtractFrom,
            Kind::Divide => Kind::DivideInto,
            Kind::Maximum => Kind::MaximumOf,
            Kind::Minimum => Kind::MinimumOf,
            Kind::SubtractFrom => Kind::Subtract,
            Kind::DivideInto => Kind::Divide,
            Kind::MaximumOf => Kind::Maximum,
            Kind::MinimumOf => Kind::Minimum,
            Kind::Add | Kind::Multiply | Kind::Larger | Kind::Smaller | Kind::Positive => self,
        }
    }

    /// The kind of fewer instructions, if the other operand is a number beside which there is one.
    fn beside(self, number: f32) -> Kind {
        // Of equal numbers other than zeros either will do.
        let is_zero = number == 0.0;
        match self {
            Kind::MaximumOf if !number.is_nan() => Kind::Larger,
            Kind::MinimumOf if !number.is_nan() => Kind::Smaller,
            Kind::Maximum if !number.is_nan() && !is_zero => Kind::Larger,
            Kind::Minimum if !number.is_nan() && !is_zero => Kind::Smaller,
            Kind::Maximum if number.to_bits() == 0 => Kind::Positive,
            Kind::Add
            | Kind::Subtract
            | Kind::SubtractFrom
            | Kind::Multiply
            | Kind::Divide
            | Kind::DivideInto
            | Kind::Maximum
            | Kind::Minimum
            | Kind::MaximumOf
            | Kind::MinimumOf
            | Kind::Larger
            | Kind::Smaller
            | Kind::Positive => self,
        }
    }

    fn of(op: &Elementwise) -> Option<Kind> {
        let kinds = [
            (&arithmetic::add, Kind::Add),
            (&arithmetic::subtract, Kind::Subtract),
            (&arithmetic::multiply, Kind::Multiply),
            (&arithmetic::quotient, Kind::Divide),
            (&arithmetic::maximum, Kind::Maximum),
            (&arithmetic::minimum, Kind::Minimum),
        ];
        kinds.into_iter().find(|(other, _)| *other == op).map(|(_, kind)| kind)
    }
}

/// The steps of a program on values of float32, in order.
#[derive(Clone)]
pub struct Chain {
    /// The input that is the running value at first
    start: usize,
    /// Kinds, and the number of the other operand among inputs and scalars
    steps: SmallVec<[(Kind, usize); 4]>,
}

/// Columns of a row that is computed as a whole before it goes around the caches.
const LONG: usize = 1 << 14;

/// The longest chain.
const MOST: usize = 8;

impl Chain {
    /// The chain that a program is, if it is one.
    pub fn of(program: &ElementProgram) -> Option<Chain> {
        let given = program.arrays().len() + program.numbers().len();
        let is_plain = |x: &DType| *x == DType::F32;
        let instructions = program.instructions();
        let ends = [(given + instructions.len()).checked_sub(1)?];
        if !program.arrays().iter().chain(program.numbers()).all(is_plain)
            || !(1..=MOST).contains(&instructions.len())
            || !program.results().iter().map(|x| x.0 as usize).eq(ends)
        {
            return None;
        }
        let mut chain = Chain { start: 0, steps: SmallVec::new() };
        for (i, instruction) in instructions.iter().enumerate() {
            let ElementOp::Map(def) = instruction.op else { return None };
            let (kind, args) = (Kind::of(def)?, &instruction.args);
            if instruction.dtype != DType::F32 || args.len() != 2 {
                return None;
            }
            let [a, b] = [args[0].0 as usize, args[1].0 as usize];
            let running = given + i;
            let (other, is_first) = match i {
                0 if a < program.arrays().len() => {
                    chain.start = a;
                    (b, false)
                }
                0 if b < program.arrays().len() => {
                    chain.start = b;
                    (a, true)
                }
                0 => return None,
                _ if a + 1 == running => (b, false),
                _ if b + 1 == running => (a, true),
                _ => return None,
            };
            if other >= given {
                return None;
            }
            chain.steps.push((if is_first { kind.turned() } else { kind }, other));
        }
        Some(chain)
    }

    /// The chain that an op on two operands is, of which these are arrays.
    pub fn of_op(op: &Elementwise, are_arrays: [bool; 2]) -> Option<Chain> {
        let kind = Kind::of(op)?;
        let kind = match are_arrays {
            [true, _] => kind,
            [false, true] => kind.turned(),
            [false, false] => return None,
        };
        Some(Chain { start: 0, steps: SmallVec::from_iter([(kind, 1)]) })
    }

    /// The chain on rectangles; `None` where rows of some operand are neither contiguous nor one
    /// element.
    pub fn on(
        &self,
        inputs: &[Matrix],
        scalars: &[u64],
        output: &Matrix,
        columns: usize,
    ) -> Option<Rows> {
        let is_row = |x: &Matrix| x.col == 1 || columns == 1;
        // Of two arrays the first step may start with either.
        let (mut start, mut all) = (self.start, self.steps.clone());
        if let Some((kind, other)) = all.first_mut()
            && !is_row(&inputs[start])
            && *other < inputs.len()
        {
            std::mem::swap(&mut start, other);
            *kind = kind.turned();
        }
        let start = &inputs[start];
        if !is_row(start) || !is_row(output) || isa() == Isa::Base {
            return None;
        }
        let mut steps: SmallVec<[Step; MOST]> = SmallVec::new();
        for (kind, other) in all {
            let (ptr, down, is_line) = match inputs.get(other) {
                Some(x) if x.col == 0 || is_row(x) => {
                    (x.ptr.cast_const().cast(), x.row, x.col != 0)
                }
                Some(_) => return None,
                // Bits of a scalar are those of its lower half.
                None => (scalars[other - inputs.len()..].as_ptr().cast(), 0, false),
            };
            let kind = match inputs.get(other) {
                Some(_) => kind,
                // SAFETY: a scalar has the bits of a float32.
                None => kind.beside(unsafe { *ptr }),
            };
            // What is written over may be read in its place alone.
            if ptr == output.ptr.cast_const().cast() && down != output.row {
                return None;
            }
            steps.push(Step { kind, ptr, down, is_line });
        }
        let from = (start.ptr.cast_const().cast(), start.row);
        Some(Rows { from, to: (output.ptr.cast(), output.row), steps, columns })
    }
}

/// A chain on rectangles.
pub struct Rows {
    from: (*const f32, isize),
    to: (*mut f32, isize),
    steps: SmallVec<[Step; MOST]>,
    columns: usize,
}

// SAFETY: addresses; threads work on different rows.
unsafe impl Sync for Rows {}

impl Rows {
    /// Whether some operand has one element for each row.
    pub fn has_columns(&self) -> bool {
        self.steps.iter().any(|step| !step.is_line && step.down != 0)
    }

    /// Works on some rows.
    ///
    /// # Safety
    /// As for [`run_part`](super::run_part), on these rows.
    pub unsafe fn run(&self, rows: Range<usize>) {
        // SAFETY: as the caller's; the level is one that the processor has.
        unsafe { self.run_to(rows, self.to) }
    }

    /// Works on some rows, whose results go around the caches.
    ///
    /// # Safety
    /// As for [`Rows::run`].
    pub unsafe fn stream(&self, range: Range<usize>) {
        let (columns, down) = (self.columns, self.to.1);
        if columns > LONG || down != columns as isize {
            // SAFETY: as the caller's.
            return unsafe { self.run(range) };
        }
        let each = (TILE / columns).max(1);
        with_scratch(each * columns * size_of::<f32>(), |tile| {
            for first in range.clone().step_by(each) {
                let rows = first..range.end.min(first + each);
                let (start, bytes) =
                    (first as isize * down, rows.len() * columns * size_of::<f32>());
                // SAFETY: as the caller's; so many rows are in the scratch memory.
                unsafe {
                    self.run_to(rows, (tile.cast::<f32>().wrapping_offset(-start), down));
                    stream_copy(self.to.0.wrapping_offset(start).cast(), tile, bytes);
                }
            }
            stream_fence();
        });
    }

    /// Works on some rows, whose results go elsewhere: to where row 0 would be, and how many
    /// elements it is to the next.
    ///
    /// # Safety
    /// As for [`Rows::run`].
    pub unsafe fn run_to(&self, rows: Range<usize>, to: (*mut f32, isize)) {
        // Of narrow rows as many as stay in the innermost cache while parts of them are worked on.
        let each = (TILE / self.columns).next_multiple_of(8).max(8);
        for first in rows.clone().step_by(each) {
            let rows = first..rows.end.min(first + each);
            // SAFETY: as the caller's; the level is one that the processor has.
            unsafe {
                match isa() {
                    #[cfg(target_arch = "x86_64")]
                    Isa::V4 => level::v4::rows(self.from, to, &self.steps, (rows, self.columns)),
                    #[cfg(target_arch = "x86_64")]
                    Isa::V3 => level::v3::rows(self.from, to, &self.steps, (rows, self.columns)),
                    _ => unreachable!("the least level has no chains"),
                }
            }
        }
    }
}

/// A step on its operand.
struct Step {
    kind: Kind,
    ptr: *const f32,
    /// Elements from a row of the operand to the next
    down: isize,
    /// Whether the operand has an element for each of a row, or one for all
    is_line: bool,
}

/// Takes registers through a step, with `other` as the operand of each.
///
/// # Safety
/// The processor has the registers.
#[inline(always)]
unsafe fn apply<V: Register, const N: usize>(
    step: &Step,
    value: &mut [V; N],
    mut other: impl FnMut(usize) -> V,
) {
    macro_rules! each {
        (|$x:ident, $other:ident| $f:expr) => {
            for (i, value) in value.iter_mut().enumerate() {
                let ($x, $other) = (*value, other(i));
                // SAFETY: by contract.
                *value = unsafe { $f };
            }
        };
    }
    match step.kind {
        Kind::Add => each!(|x, other| V::add(x, other)),
        Kind::Multiply => each!(|x, other| V::multiply(x, other)),
        Kind::Divide => each!(|x, other| V::divide(x, other)),
        Kind::DivideInto => each!(|x, other| V::divide(other, x)),
        Kind::Subtract => each!(|x, other| V::subtract(x, other)),
        Kind::SubtractFrom => each!(|x, other| V::subtract(other, x)),
        Kind::Maximum => each!(|x, other| V::maximum(x, other)),
        Kind::MaximumOf => each!(|x, other| V::maximum(other, x)),
        Kind::Minimum => each!(|x, other| V::minimum(x, other)),
        Kind::MinimumOf => each!(|x, other| V::minimum(other, x)),
        Kind::Larger => each!(|x, other| V::larger(other, x)),
        Kind::Smaller => each!(|x, other| V::smaller(other, x)),
        // Of equal zeros the value was taken; minus zero and zero are zero.
        Kind::Positive => each!(|x, zero| V::add(V::larger(zero, x), zero)),
    }
}

/// `N` registers of a row through all steps.
///
/// # Safety
/// Operands have these elements; the processor has the registers.
#[inline(always)]
unsafe fn block<V: Register, const N: usize>(
    from: *const f32,
    to: *mut f32,
    steps: &[Step],
    (row, at): (isize, usize),
) {
    // SAFETY: by contract.
    unsafe {
        let mut value = from.add(at).cast::<[V; N]>().read_unaligned();
        for step in steps {
            let line = step.ptr.wrapping_offset(row * step.down);
            match step.is_line {
                true => {
                    let other = line.add(at).cast::<[V; N]>().read_unaligned();
                    apply(step, &mut value, |i| other[i]);
                }
                false => {
                    let other = V::splat(*line);
                    apply(step, &mut value, |_| other);
                }
            }
        }
        to.add(at).cast::<[V; N]>().write_unaligned(value);
    }
}

/// One register each of `N` rows through all steps: all of its elements if it is `WHOLE`, or the
/// first `n`.
///
/// # Safety
/// As for [`block`].
#[inline(always)]
unsafe fn stack<V: Register, const N: usize, const WHOLE: bool>(
    from: (*const f32, isize),
    to: (*mut f32, isize),
    steps: &[Step],
    (row, at): (isize, usize),
    n: usize,
) {
    // SAFETY: by contract.
    unsafe {
        let load = |x: *const f32| match WHOLE {
            true => x.cast::<V>().read_unaligned(),
            false => V::load(x, n),
        };
        let mut x = from.0.wrapping_offset(row * from.1).add(at);
        let mut value: [V; N] = std::array::from_fn(|_| {
            let value = load(x);
            x = x.wrapping_offset(from.1);
            value
        });
        for step in steps {
            let mut line = step.ptr.wrapping_offset(row * step.down);
            line = if step.is_line { line.wrapping_add(at) } else { line };
            let operand = |line| if step.is_line { load(line) } else { V::splat(*line) };
            match step.down {
                0 => {
                    let other = operand(line);
                    apply(step, &mut value, |_| other);
                }
                down => apply(step, &mut value, |_| {
                    let other = operand(line);
                    line = line.wrapping_offset(down);
                    other
                }),
            }
        }
        let mut y = to.0.wrapping_offset(row * to.1).add(at);
        for value in value {
            match WHOLE {
                true => y.cast::<V>().write_unaligned(value),
                false => value.store(y, n),
            }
            y = y.wrapping_offset(to.1);
        }
    }
}

/// A range of rows.
///
/// # Safety
/// As for [`block`].
#[inline(always)]
unsafe fn rows<V: Register>(
    from: (*const f32, isize),
    to: (*mut f32, isize),
    steps: &[Step],
    (range, columns): (Range<usize>, usize),
) {
    let wide = columns / (8 * V::WIDTH) * (8 * V::WIDTH);
    for row in range.start as isize..range.end as isize {
        let (x, y) = (from.0.wrapping_offset(row * from.1), to.0.wrapping_offset(row * to.1));
        for at in (0..wide).step_by(8 * V::WIDTH) {
            // SAFETY: by contract.
            unsafe { block::<V, 8>(x, y, steps, (row, at)) };
        }
    }
    // Of what is narrow, several rows together are enough registers.
    for at in (wide..columns).step_by(V::WIDTH) {
        let n = V::WIDTH.min(columns - at);
        let mut row = range.start;
        macro_rules! stacks {
            ($N:literal) => {
                while range.end - row >= $N {
                    let place = (row as isize, at);
                    // SAFETY: by contract.
                    unsafe {
                        match n == V::WIDTH {
                            true => stack::<V, $N, true>(from, to, steps, place, n),
                            false => stack::<V, $N, false>(from, to, steps, place, n),
                        }
                    }
                    row += $N;
                }
            };
        }
        // As many as leave registers for operands.
        if V::WIDTH == 16 {
            stacks!(16);
        }
        stacks!(8);
        stacks!(2);
        stacks!(1);
    }
}

#[cfg(test)]
mod tests;
