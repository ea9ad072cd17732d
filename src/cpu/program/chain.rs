//! Chains: programs of few kinds of steps on one running value, which stays in registers.
//!
//! What products and convolutions are followed by mostly is such a program: a bias, a residual, a
//! bound. Interpreted over tiles each of its steps would read and write the tile; here a block of a
//! row is read once, taken through all steps, and written once. So are ops that broadcast a column or
//! a row to a matrix: a number of a row is repeated in a register of the processor, not in memory.
//!
//! Promises: the bits of the program run over tiles.

use std::ops::Range;

use smallvec::SmallVec;

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
}

impl Kind {
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
    /// Kinds, the number of the other operand among inputs and scalars, and whether that comes first
    steps: SmallVec<[(Kind, usize, bool); 4]>,
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
            chain.steps.push((kind, other, is_first));
        }
        Some(chain)
    }

    /// The chain that an op on two operands is, of which these are arrays.
    pub fn of_op(op: &Elementwise, are_arrays: [bool; 2]) -> Option<Chain> {
        let (start, other) = match are_arrays {
            [true, _] => (0, (1, false)),
            [false, true] => (0, (1, true)),
            [false, false] => return None,
        };
        let steps = SmallVec::from_iter([(Kind::of(op)?, other.0, other.1)]);
        Some(Chain { start, steps })
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
        if let Some((_, other, is_first)) = all.first_mut()
            && !is_row(&inputs[start])
            && *other < inputs.len()
        {
            std::mem::swap(&mut start, other);
            *is_first = !*is_first;
        }
        let start = &inputs[start];
        if !is_row(start) || !is_row(output) || isa() == Isa::Base {
            return None;
        }
        let mut steps: SmallVec<[Step; MOST]> = SmallVec::new();
        for (kind, other, is_first) in all {
            let (ptr, down, is_line) = match inputs.get(other) {
                Some(x) if x.col == 0 || is_row(x) => {
                    (x.ptr.cast_const().cast(), x.row, x.col != 0)
                }
                Some(_) => return None,
                // Bits of a scalar are those of its lower half.
                None => (scalars[other - inputs.len()..].as_ptr().cast(), 0, false),
            };
            // What is written over may be read in its place alone.
            if ptr == output.ptr.cast_const().cast() && down != output.row {
                return None;
            }
            steps.push(Step { kind, ptr, down, is_line, is_first });
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
        // SAFETY: as the caller's; the level is one that the processor has.
        unsafe {
            match isa() {
                #[cfg(target_arch = "x86_64")]
                Isa::V4 => v4::rows(self.from, to, &self.steps, (rows, self.columns)),
                #[cfg(target_arch = "x86_64")]
                Isa::V3 => v3::rows(self.from, to, &self.steps, (rows, self.columns)),
                _ => unreachable!("the least level has no chains"),
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
    /// Whether the operand comes before the running value
    is_first: bool,
}

/// A register of float32.
trait Register: Copy {
    /// Its elements
    const WIDTH: usize;
    unsafe fn splat(x: f32) -> Self;
    /// The first `n` elements, fewer than there are
    unsafe fn load(from: *const f32, n: usize) -> Self;
    unsafe fn store(self, to: *mut f32, n: usize);
    unsafe fn add(a: Self, b: Self) -> Self;
    unsafe fn subtract(a: Self, b: Self) -> Self;
    unsafe fn multiply(a: Self, b: Self) -> Self;
    unsafe fn divide(a: Self, b: Self) -> Self;
    unsafe fn maximum(a: Self, b: Self) -> Self;
    unsafe fn minimum(a: Self, b: Self) -> Self;
}

/// Takes registers through a step.
///
/// # Safety
/// The processor has the registers.
#[inline(always)]
unsafe fn apply<V: Register, const N: usize>(step: &Step, value: &mut [V; N], other: &[V; N]) {
    macro_rules! each {
        ($f:ident) => {
            for (value, &other) in value.iter_mut().zip(other) {
                let (a, b) = if step.is_first { (other, *value) } else { (*value, other) };
                // SAFETY: by contract.
                *value = unsafe { V::$f(a, b) };
            }
        };
    }
    match step.kind {
        Kind::Add => each!(add),
        Kind::Subtract => each!(subtract),
        Kind::Multiply => each!(multiply),
        Kind::Divide => each!(divide),
        Kind::Maximum => each!(maximum),
        Kind::Minimum => each!(minimum),
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
            let other = match step.is_line {
                true => line.add(at).cast::<[V; N]>().read_unaligned(),
                false => [V::splat(*line); N],
            };
            apply(step, &mut value, &other);
        }
        to.add(at).cast::<[V; N]>().write_unaligned(value);
    }
}

/// The same for `n` elements, fewer than a register has.
///
/// # Safety
/// As for [`block`].
#[inline(always)]
unsafe fn part<V: Register>(
    from: *const f32,
    to: *mut f32,
    steps: &[Step],
    (row, at): (isize, usize),
    n: usize,
) {
    // SAFETY: by contract.
    unsafe {
        let mut value = [V::load(from.add(at), n)];
        for step in steps {
            let line = step.ptr.wrapping_offset(row * step.down);
            let other = match step.is_line {
                true => V::load(line.add(at), n),
                false => V::splat(*line),
            };
            apply(step, &mut value, &[other]);
        }
        value[0].store(to.add(at), n);
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
    for row in range.start as isize..range.end as isize {
        let (x, y) = (from.0.wrapping_offset(row * from.1), to.0.wrapping_offset(row * to.1));
        let mut at = 0;
        // SAFETY: by contract.
        unsafe {
            while at + 8 * V::WIDTH <= columns {
                block::<V, 8>(x, y, steps, (row, at));
                at += 8 * V::WIDTH;
            }
            while at + 2 * V::WIDTH <= columns {
                block::<V, 2>(x, y, steps, (row, at));
                at += 2 * V::WIDTH;
            }
            while at + V::WIDTH <= columns {
                block::<V, 1>(x, y, steps, (row, at));
                at += V::WIDTH;
            }
            if at < columns {
                part::<V>(x, y, steps, (row, at), columns - at);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! level {
    ($module:ident: $feature:literal, $register:ident, $width:literal, $splat:ident, $add:ident,
     $subtract:ident, $multiply:ident, $divide:ident, |$x:ident, $a:ident| $nan:expr, $maximum:ident,
     $minimum:ident, |$n:ident| $mask:expr, |$from:ident, $bits:ident| $load:expr,
     $store:ident) => {
        mod $module {
            use std::arch::x86_64::*;

            #[allow(unused_imports, reason = "not every level has masks in memory")]
            use super::{MASKS, Range, Register, Step};

            // SAFETY, of what follows: the level whose registers these are alone calls it.
            impl Register for $register {
                const WIDTH: usize = $width;
                #[inline(always)]
                unsafe fn splat(x: f32) -> Self {
                    // SAFETY: see above.
                    unsafe { $splat(x) }
                }
                #[inline(always)]
                unsafe fn load($from: *const f32, $n: usize) -> Self {
                    // SAFETY: see above; what the mask leaves out is not read.
                    unsafe {
                        let $bits = $mask;
                        $load
                    }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut f32, $n: usize) {
                    // SAFETY: see above; what the mask leaves out is not written.
                    unsafe { $store(to, $mask, self) }
                }
                #[inline(always)]
                unsafe fn add(a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe { $add(a, b) }
                }
                #[inline(always)]
                unsafe fn subtract(a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe { $subtract(a, b) }
                }
                #[inline(always)]
                unsafe fn multiply(a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe { $multiply(a, b) }
                }
                #[inline(always)]
                unsafe fn divide(a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe { $divide(a, b) }
                }
                // The instructions give the second operand at a tie, and where one is NaN.
                #[inline(always)]
                unsafe fn maximum($a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe {
                        let $x = $maximum($a, b);
                        $nan
                    }
                }
                #[inline(always)]
                unsafe fn minimum($a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe {
                        let $x = $minimum($a, b);
                        $nan
                    }
                }
            }

            /// [`rows`](super::rows) at this level.
            ///
            /// # Safety
            /// As for [`rows`](super::rows).
            #[target_feature(enable = $feature)]
            pub unsafe fn rows(
                from: (*const f32, isize),
                to: (*mut f32, isize),
                steps: &[Step],
                size: (Range<usize>, usize),
            ) {
                // SAFETY: as the caller's.
                unsafe { super::rows::<$register>(from, to, steps, size) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
level!(v4: "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma", __m512, 16, _mm512_set1_ps, _mm512_add_ps,
    _mm512_sub_ps, _mm512_mul_ps, _mm512_div_ps,
    |x, a| _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), a), _mm512_max_ps,
    _mm512_min_ps, |n| (1 << n) - 1, |from, mask| _mm512_maskz_loadu_ps(mask, from), _mm512_mask_storeu_ps);
#[cfg(target_arch = "x86_64")]
level!(v3: "avx2,fma", __m256, 8, _mm256_set1_ps, _mm256_add_ps, _mm256_sub_ps, _mm256_mul_ps, _mm256_div_ps,
    |x, a| _mm256_blendv_ps(x, a, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a)), _mm256_max_ps,
    _mm256_min_ps, |n| _mm256_loadu_si256(MASKS.as_ptr().add(8 - n).cast()),
    |from, mask| _mm256_maskload_ps(from, mask),
    _mm256_maskstore_ps);

/// Eight words from number `8 - n` on are a mask of `n` elements.
#[cfg(target_arch = "x86_64")]
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::program::{Program, run_part};
    use crate::cpu::testing::{bytes, noise};
    use crate::cpu::{self, Operand, copy};
    use crate::layout::Layout;
    use crate::ops::elementwise::tables;
    use crate::ops::op::Op;

    /// Values with ties of zeros, infinities and NaN.
    fn number(i: usize) -> f32 {
        match i % 11 {
            3 => 0.0,
            4 => -0.0,
            5 => f32::INFINITY,
            7 => f32::NAN,
            n => (n as f32 - 5.0) * 0.37 + (i % 7) as f32,
        }
    }

    fn op(name: &str) -> &'static Elementwise {
        tables().find(|def| def.name == name && def.params.len() == 2).unwrap()
    }

    #[test]
    fn a_chain_has_the_bits_of_its_program() {
        let kinds = ["add", "subtract", "multiply", "divide", "maximum", "minimum"];
        for (first, last) in kinds.iter().flat_map(|a| kinds.iter().map(move |b| (a, b))) {
            for (columns, turned) in
                [1, 5, 16, 31, 50, 200].into_iter().zip([false, true].repeat(3))
            {
                // Of rows with gaps, in place: an operand has one element a row, one is a matrix.
                let mut program = ElementProgram::new(&[DType::F32; 3], &[DType::F32]);
                let [x, a, y] = std::array::from_fn(|i| program.array(i));
                let mut value = x;
                let others = [a, y, program.number(0)];
                for (name, other) in [*first, *last, "minimum"].into_iter().zip(others) {
                    let args = if turned { [other, value] } else { [value, other] };
                    value = program.push(ElementOp::Map(op(name)), &args, DType::F32);
                }
                let chained = Program::lower(&program.giving(&[value])).unwrap();
                assert!(chained.chain.is_some());
                let plain = Program { chain: None, ..chained.clone() };
                let (rows, pitch) = (3, columns + 4);
                let a: Vec<f32> = (0..rows).map(|i| number(i + 2)).collect();
                let y: Vec<f32> = (0..rows * columns).map(|i| number(i * 3 + 1)).collect();
                let [want, got] = [&plain, &chained].map(|program| {
                    let mut x: Vec<f32> = (0..rows * pitch).map(number).collect();
                    let side = |ptr: *const f32, row: usize, col| Matrix {
                        ptr: ptr.cast_mut().cast(),
                        dtype: DType::F32,
                        row: row as isize,
                        col,
                    };
                    let to = side(x.as_mut_ptr(), pitch, 1);
                    let inputs = [to, side(a.as_ptr(), 1, 0), side(y.as_ptr(), columns, 1)];
                    let bits = [u64::from(2.5f32.to_bits())];
                    // SAFETY: the rectangles are those of the vectors.
                    unsafe { run_part(program, &inputs, &bits, &[to], (rows, columns)) };
                    let bits = |x: &f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
                    x.iter().map(bits).collect::<Vec<_>>()
                });
                assert_eq!(want, got, "{first} {last} {columns} {turned}");
            }
        }
    }

    #[test]
    fn an_op_on_columns_and_rows_has_the_bits_of_one_on_all_elements() {
        let noise = |sizes: &[usize], seed| noise(DType::F32, sizes, seed);
        let run = |def: &'static Elementwise, a: Operand<'_>, b: Operand<'_>| {
            let y = cpu::execute(&Op::Map(def), &[a, b]).unwrap();
            bytes(&y).to_vec()
        };
        let names = ["add", "subtract", "multiply", "divide", "maximum", "minimum"];
        // The last is written around the caches.
        let sizes = [[3, 2], [40, 12], [200, 33], [64, 1024], [7, 3000], [16400, 256]];
        for ([rows, columns], name) in sizes.into_iter().flat_map(|n| names.map(|name| (n, name))) {
            let (def, x) = (op(name), noise(&[rows, columns], 1));
            let sides = [noise(&[rows, 1], 2), noise(&[1, columns], 3), noise(&[1, 1], 4)];
            for side in sides.iter().filter(|_| rows < 10_000 || name == "divide") {
                let strides = side.layout.broadcast_strides(x.shape());
                let wide = side.view(Layout::strided(x.shape().clone(), &strides, 0));
                let wide = copy::contiguous(&wide).unwrap();
                let all = [&x, side, &wide].map(Operand::Array);
                assert!(run(def, all[0], all[1]) == run(def, all[0], all[2]), "{name} {columns}");
                assert!(run(def, all[1], all[0]) == run(def, all[2], all[0]), "{name} {columns}");
            }
        }
    }

    #[test]
    fn what_is_no_chain_is_none() {
        let mut program = ElementProgram::new(&[DType::F32; 2], &[]);
        let (x, y) = (program.array(0), program.array(1));
        let sum = program.push(ElementOp::Map(op("add")), &[x, y], DType::F32);
        let twice = program.push(ElementOp::Map(op("add")), &[sum, sum], DType::F32);
        assert!(Chain::of(&program.giving(&[twice])).is_none());
        let mut program = ElementProgram::new(&[DType::F32], &[]);
        let x = program.array(0);
        let y = program.push(ElementOp::Map(op("exp")), &[x], DType::F32);
        assert!(Chain::of(&program.giving(&[y])).is_none());
    }
}
