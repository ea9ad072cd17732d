//! Programs of whose values some are summed, in the order in which [`reduce`] sums rows.
//!
//! The elements that are summed into one are walked in C order, a block of the sum at a time: a block
//! is as long as a tile. Machine code adds what is summed to lanes of the sum while it is in
//! registers, so it need not be stored and read again; without code such programs do not run. Where
//! operands are not contiguous along a whole block, pieces of it are worked on where they lie, if
//! they have whole lines of lanes, and brought together in tiles otherwise.

#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use super::generated::Generated;
use super::{Program, register_bits, splat, with_scratch};
use crate::array::Array;
use crate::cpu::convert::{load_block, store_block};
use crate::cpu::element::Number;
use crate::cpu::jit::Code;
use crate::cpu::moves::Place;
use crate::cpu::nest::push_axis;
use crate::cpu::reduce::{BLOCK, LANES, Pairwise, Sum, add_to_lanes, sum_of_lanes};
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::ops::element::ElementProgram;
use crate::shape::Shape;
use crate::tile::TILE;

/// Elements along the innermost axis that are worth setting up a run of the program.
const LONG: usize = 256;

const _: () = assert!(BLOCK == TILE, "a block of a sum is a tile");

/// A program on float32 whose last results are summed along some axes. The others are stored.
pub struct Summing {
    program: Program,
    sums: usize,
}

/// What a program reads.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// Its arrays
    pub arrays: &'a [&'a Array],
    /// Its first numbers
    pub numbers: &'a [Scalar],
    /// Its other numbers: arrays of float32 with one element for all that is summed into one
    pub repeated: &'a [&'a Array],
}

/// An input, a stored result or an array of numbers.
struct Operand {
    ptr: *mut u8,
    /// Whether elements can be used where they lie, if they are contiguous
    direct: bool,
}

/// One run.
struct Run<'a> {
    summing: &'a Summing,
    code: &'a Code,
    scalars: SmallVec<[u64; 8]>,
    /// Inputs, results, and arrays of numbers
    operands: SmallVec<[Operand; 8]>,
    outputs: usize,
    /// Axes that are summed
    axes: Axes,
    /// The register of each value
    homes: SmallVec<[*mut u8; 16]>,
    /// The lanes of the sums, one behind the other; for code, other memory follows
    lanes: *mut f32,
    /// Whether nothing is summed and all operands are contiguous along the innermost axis, so that no
    /// tiles are needed
    is_long: bool,
}

impl Summing {
    /// The register program of a program of which the last `sums` results are summed.
    pub fn lower(program: &ElementProgram, sums: usize) -> Result<Summing> {
        let generated = Generated::of(program, sums);
        let program = Program { generated, ..Program::interpreted(program)? };
        Ok(Summing { program, sums })
    }

    /// Runs the program over a shape, to which inputs broadcast, and sums along `axes`, of which the
    /// last has more than one element. `sums` has room for the sums of the first result that is
    /// summed, in C order, then for those of the next. Does nothing, and says so, where there is no
    /// code that holds for all elements.
    ///
    /// # Safety
    /// Nobody else reads or writes the outputs meanwhile, which are of that shape, and none has two
    /// elements in one place. An output may be the memory of an input with the same dtype and layout;
    /// otherwise it overlaps none.
    pub unsafe fn run(
        &self,
        elements: (&Shape, &[usize]),
        given: Given<'_>,
        outputs: &[&Array],
        sums: &mut [f32],
    ) -> bool {
        let code = self.program.code(elements.0.count()).filter(|code| code.is_total());
        // SAFETY: as the caller's.
        let run = |code| unsafe { self.run_by(code, elements, given, outputs, sums) };
        code.map(run).is_some()
    }

    /// The same by this code.
    ///
    /// # Safety
    /// As for [`Summing::run`]; the code is of this program, and holds for all elements.
    unsafe fn run_by(
        &self,
        code: &Code,
        (shape, axes): (&Shape, &[usize]),
        given: Given<'_>,
        outputs: &[&Array],
        sums: &mut [f32],
    ) {
        let (program, inputs) = (&self.program, given.arrays);
        debug_assert_eq!(given.numbers.len() + given.repeated.len(), program.scalars.len());
        let mut strides: SmallVec<[_; 8]> = SmallVec::new();
        for x in inputs.iter().chain(outputs).chain(given.repeated) {
            strides.push(x.layout.broadcast_strides(shape));
        }
        let (mut kept, mut reduced) = (Axes::new(strides.len()), Axes::new(strides.len()));
        for (axis, &size) in shape.sizes().iter().enumerate() {
            let to = if axes.contains(&axis) { &mut reduced } else { &mut kept };
            to.push(size, strides.iter().map(|strides| strides[axis]));
        }
        let mut operands: SmallVec<[Operand; 8]> = SmallVec::new();
        for x in inputs {
            operands.push(Operand { ptr: x.ptr().cast_mut(), direct: true });
        }
        for (j, y) in outputs.iter().enumerate() {
            // SAFETY: the caller holds the outputs.
            let ptr = unsafe { y.ptr_mut() };
            let direct = program.may_bind(j, |k| inputs[k].ptr() == ptr.cast_const());
            operands.push(Operand { ptr, direct });
        }
        let lies = |(k, x): (usize, &Operand)| x.direct && reduced.steps(k).1 == 1;
        let is_long = self.sums == 0 && operands.iter().enumerate().all(lies);
        for x in given.repeated {
            operands.push(Operand { ptr: x.ptr().cast_mut(), direct: false });
        }
        let mut scalars: SmallVec<[u64; 8]> = SmallVec::new();
        for (&x, &dtype) in given.numbers.iter().zip(&program.scalars) {
            scalars.push(register_bits(x, dtype));
        }
        scalars.resize(program.scalars.len(), 0);
        let size = (TILE * program.width).next_multiple_of(64);
        let tiles = program.register_count * size;
        with_scratch(tiles + code.spilled(), |scratch| {
            let mut homes: SmallVec<[*mut u8; 16]> = SmallVec::new();
            for &register in &program.registers {
                homes.push(scratch.wrapping_add(register as usize * size));
            }
            let lanes: *mut f32 = scratch.wrapping_add(tiles).cast();
            let outputs = outputs.len();
            for lane in 0..self.sums * LANES {
                // SAFETY: there are as many lanes.
                unsafe { lanes.wrapping_add(lane).write(f32::NOTHING) };
            }
            let (summing, axes) = (self, reduced);
            let mut run =
                Run { summing, code, scalars, operands, outputs, axes, homes, lanes, is_long };
            let count = kept.count();
            let mut at = At::start(&kept);
            for i in 0..count {
                // SAFETY: as the caller's; scratch is this thread's.
                unsafe {
                    run.fill(&at.offsets, i == 0);
                    run.sum(&at.offsets, |k, sum| sums[k * count + i] = sum);
                }
                at.advance(&kept, 1);
            }
        });
    }
}

impl Run<'_> {
    fn inputs(&self) -> usize {
        self.summing.program.inputs.len()
    }

    /// The place of an operand at an offset, in elements.
    fn place(&self, k: usize, offset: isize, (row, col): (isize, isize)) -> Place<*mut u8> {
        Place::new(self.operands[k].ptr.cast::<f32>().wrapping_offset(offset).cast(), row, col)
    }

    /// Reads the numbers that arrays have at these offsets, and fills registers of numbers.
    ///
    /// # Safety
    /// The arrays can be read there.
    unsafe fn fill(&mut self, offsets: &[isize], is_first: bool) {
        let program = &self.summing.program;
        let (first, count) = (self.inputs() + self.outputs, self.scalars.len());
        let told = count - (self.operands.len() - first);
        for k in told..count {
            let operand = first + k - told;
            let from = self.place(operand, offsets[operand], (0, 0)).ptr.cast::<u32>();
            // SAFETY: as the caller's; it has float32.
            self.scalars[k] = unsafe { from.read() }.into();
        }
        // Code reads the numbers; what follows its last step, fewer elements, is interpreted.
        for k in if is_first { 0 } else { told }..count {
            let width = program.scalars[k].compute().width();
            // SAFETY: a register holds a tile.
            unsafe { splat(self.homes[program.inputs.len() + k], self.scalars[k], width, LANES) };
        }
    }

    /// Sums what is summed into one: `first` are the offsets of its first elements. `give` gets the
    /// number of each sum and the sum.
    ///
    /// # Safety
    /// The operands are valid there.
    unsafe fn sum(&self, first: &[isize], mut give: impl FnMut(usize, f32)) {
        let sums = self.summing.sums;
        let mut trees: SmallVec<[Pairwise<f32>; 4]> = SmallVec::new();
        (0..sums).for_each(|_| trees.push(Pairwise::new()));
        let (n, mut at) = (self.axes.count(), At::start(&self.axes));
        at.offsets.iter_mut().zip(first).for_each(|(offset, first)| *offset += first);
        let mut places = self.homes.clone();
        let block = if self.is_long { n } else { BLOCK };
        for from in (0..n).step_by(block) {
            // SAFETY: a block of what is summed.
            unsafe {
                self.block(&mut at, block.min(n - from), &mut places);
                for (k, tree) in trees.iter_mut().enumerate() {
                    tree.push::<Sum>(sum_of_lanes(self.lanes.add(k * LANES)));
                }
            }
        }
        for (k, tree) in trees.iter_mut().enumerate() {
            give(k, tree.finish::<Sum>());
        }
    }

    /// Works on the `n` elements of a block from a position on.
    ///
    /// # Safety
    /// The operands are valid there; `places` has as many entries as there are values.
    unsafe fn block(&self, at: &mut At, n: usize, places: &mut [*mut u8]) {
        let (cols, first) = (self.axes.inner(), self.axes.inner() - at.inner());
        let are_lines = |n: usize| self.summing.sums == 0 || n.is_multiple_of(LANES);
        let is_aligned = are_lines(first) && (are_lines(cols) && cols >= LONG || first + cols >= n);
        // SAFETY: as the caller's.
        unsafe {
            if first >= n || is_aligned || self.is_long {
                let mut rest = n;
                while rest > 0 {
                    let some = rest.min(cols - at.inner());
                    self.piece(&at.offsets, some, places);
                    at.advance(&self.axes, some);
                    rest -= some;
                }
                return;
            }
            let (start, mut done) = (at.clone(), 0);
            while done < n {
                let (rows, cols) = at.rectangle(&self.axes, n - done);
                for k in 0..self.inputs() {
                    let to = self.homes[k].wrapping_add(done * size_of::<f32>());
                    let from = self.place(k, at.offsets[k], self.axes.steps(k));
                    let from = Place::new(from.ptr.cast_const(), from.row, from.col);
                    load_block(DType::F32, to, from, rows, cols);
                }
                at.advance(&self.axes, rows * cols);
                done += rows * cols;
            }
            self.compute(&self.homes, n);
            let (mut at, mut done) = (start, 0);
            while done < n && self.outputs > 0 {
                let (rows, cols) = at.rectangle(&self.axes, n - done);
                for j in 0..self.outputs {
                    let k = self.inputs() + j;
                    let home = self.homes[self.summing.program.outputs[j].0 as usize];
                    let from = home.wrapping_add(done * size_of::<f32>());
                    let to = self.place(k, at.offsets[k], self.axes.steps(k));
                    store_block(DType::F32, to, from, rows, cols);
                }
                at.advance(&self.axes, rows * cols);
                done += rows * cols;
            }
        }
    }

    /// Works on `n` elements along the innermost axis, from these offsets on.
    ///
    /// # Safety
    /// The operands are valid there; `places` has as many entries as there are values.
    unsafe fn piece(&self, offsets: &[isize], n: usize, places: &mut [*mut u8]) {
        let (outputs, inputs) = (&self.summing.program.outputs, self.inputs());
        let lies = |k: usize| self.operands[k].direct && (self.axes.steps(k).1 == 1 || n == 1);
        // SAFETY: as the caller's; a register holds a tile.
        unsafe {
            for k in 0..inputs + self.outputs {
                let place = self.place(k, offsets[k], self.axes.steps(k));
                let value = if k < inputs { k } else { outputs[k - inputs].0 as usize };
                places[value] = if lies(k) { place.ptr } else { self.homes[value] };
                if k < inputs && !lies(k) {
                    let from = Place::new(place.ptr.cast_const(), place.row, place.col);
                    load_block(DType::F32, self.homes[k], from, 1, n);
                }
            }
            self.compute(places, n);
            for k in (inputs..inputs + self.outputs).filter(|&k| !lies(k)) {
                let value = places[outputs[k - inputs].0 as usize].cast_const();
                let to = self.place(k, offsets[k], self.axes.steps(k));
                store_block(DType::F32, to, value, 1, n);
            }
        }
    }

    /// Computes `n` elements of all values, and adds those that are summed to their lanes.
    ///
    /// # Safety
    /// `places` are those of `n` elements of all values, or of operands where the run is long.
    unsafe fn compute(&self, places: &[*mut u8], n: usize) {
        let Summing { program, sums } = self.summing;
        let (addresses, step) = (program.addresses(places, *sums), self.code.step());
        let whole = n / step * step;
        // SAFETY: as the caller's; the lanes come first in the memory for code.
        let done =
            unsafe { self.code.run(&addresses, (0, whole), &self.scalars, self.lanes.cast()) };
        debug_assert_eq!(done, whole);
        if done == n {
            return;
        }
        // In a long run tiles have no room for elements that far; otherwise all move alike, so that
        // those that share a place still do.
        let (inputs, outputs) = (self.inputs(), &program.outputs[..self.outputs]);
        let is_operand =
            |value: usize| value < inputs || outputs.iter().any(|y| y.0 as usize == value);
        let numbers = inputs..inputs + program.scalars.len();
        let mut moved: SmallVec<[*mut u8; 16]> = SmallVec::from_slice(places);
        for (value, place) in moved.iter_mut().enumerate() {
            let moves = if self.is_long { is_operand(value) } else { !numbers.contains(&value) };
            if moves {
                *place = place.wrapping_add(done * size_of::<f32>());
            }
        }
        let first = program.outputs.len() - sums;
        // SAFETY: as the caller's, from an element on.
        unsafe {
            program.interpret(&moved, n - done);
            for (k, &(value, _)) in program.outputs[first..].iter().enumerate() {
                let lanes = self.lanes.add(k * LANES);
                add_to_lanes::<f32>(moved[value as usize].cast_const().cast(), n - done, lanes);
            }
        }
    }
}

/// Axes in C order, with the strides of operands along each. Neighbours that all operands walk as one
/// are merged.
struct Axes {
    operands: usize,
    sizes: SmallVec<[usize; 6]>,
    /// Elements from one position to the next, `operands` numbers an axis
    strides: SmallVec<[isize; 24]>,
}

impl Axes {
    fn new(operands: usize) -> Axes {
        Axes { operands, sizes: SmallVec::new(), strides: SmallVec::new() }
    }

    /// Adds an axis inside the others.
    fn push(&mut self, size: usize, strides: impl Iterator<Item = isize> + Clone) {
        if size != 1 {
            push_axis(&mut self.sizes, &mut self.strides, self.operands, (size, strides));
        }
    }

    fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The size of the innermost axis.
    fn inner(&self) -> usize {
        self.sizes.last().copied().unwrap_or(1)
    }

    fn stride(&self, operand: usize, axis: usize) -> isize {
        self.strides[axis * self.operands + operand]
    }

    /// Elements of an operand from one position to the next along the innermost axes: the last but
    /// one, and the last.
    fn steps(&self, operand: usize) -> (isize, isize) {
        let last = self.sizes.len();
        let step =
            |back: usize| last.checked_sub(back).map_or(0, |axis| self.stride(operand, axis));
        (step(2), step(1))
    }
}

/// A position along axes.
#[derive(Clone)]
struct At {
    index: SmallVec<[usize; 6]>,
    /// By operand: elements from its first to the one at the position
    offsets: SmallVec<[isize; 12]>,
}

impl At {
    fn start(axes: &Axes) -> At {
        At {
            index: SmallVec::from_elem(0, axes.sizes.len()),
            offsets: SmallVec::from_elem(0, axes.operands),
        }
    }

    /// The position along the innermost axis.
    fn inner(&self) -> usize {
        self.index.last().copied().unwrap_or(0)
    }

    /// The rows and columns of a rectangle along the innermost two axes, of at most `n` elements that
    /// come next in C order.
    fn rectangle(&self, axes: &Axes, n: usize) -> (usize, usize) {
        let (cols, last) = (axes.inner(), self.index.len());
        if self.inner() > 0 || n < 2 * cols || last < 2 {
            return (1, n.min(cols - self.inner()));
        }
        ((n / cols).min(axes.sizes[last - 2] - self.index[last - 2]), cols)
    }

    /// Goes on by `n` elements: to the end of a line at most, or by whole lines from the start of one.
    fn advance(&mut self, axes: &Axes, n: usize) {
        let mut by = n;
        for axis in (0..axes.sizes.len()).rev() {
            let size = axes.sizes[axis];
            if by.is_multiple_of(size) && self.index[axis] == 0 {
                by /= size;
                continue;
            }
            self.go(axes, axis, by as isize);
            if self.index[axis] < size {
                return;
            }
            self.go(axes, axis, -(size as isize));
            by = 1;
        }
    }

    fn go(&mut self, axes: &Axes, axis: usize, by: isize) {
        self.index[axis] = self.index[axis].wrapping_add_signed(by);
        let strides = &axes.strides[axis * axes.operands..][..axes.operands];
        self.offsets.iter_mut().zip(strides).for_each(|(offset, stride)| *offset += by * stride);
    }
}
