//! Softmax and its logarithm along the last axis, a row at a time.
//!
//! Promises: exactly the bits of the bodies, `nn.softmax` and `nn.log_softmax`: the largest element
//! and the sum are those of [`reduce`](super::reduce), every other step is one rounding. So which of
//! the two computes does not show.
//!
//! A row is one thread's, and stays in the innermost cache from its first pass to its last.

use crate::array::Array;
use crate::cpu::dense::Real;
use crate::cpu::element::Shared;
use crate::cpu::gemm::kernel::prefetch;
use crate::cpu::gemm::scratch::Scratch;
use crate::cpu::norm::Rows;
use crate::cpu::{reduce, rows};
use crate::dtype::DType;
use crate::error::Result;
use crate::multiversion;
use crate::ops::emit::OrThrow;
use crate::scalar::{by_fma, exp, exp_is_rare, exp_often, log};
use crate::threads::{self, Pace};

/// Elements that one thread takes at a time.
const CHUNK: usize = 1 << 14;
/// Longer rows are better left to the body, which shares them between threads.
const LONG: usize = 1 << 20;
/// Of very short rows the body computes elements of many at once, as soon as there are more.
const FEW_ROWS: usize = 32;
/// Elements that are computed at once.
const W: usize = 64;

/// Whether there is a kernel for so many rows of `n` elements of a dtype. The body rounds half floats
/// at each step.
pub fn takes(dtype: DType, rows: usize, n: usize) -> bool {
    let is_left = if n > reduce::FEW { rows::pays(rows, n) } else { rows > FEW_ROWS };
    matches!(dtype, DType::F32 | DType::F64) && (1..=LONG).contains(&n) && !is_left
}

/// The softmax of each row of `x`, or its logarithm.
///
/// # Safety
/// `y` is in C order, of the type of `x`, which [`takes`]; nobody else reads or writes it.
pub unsafe fn forward_into(x: &Array, is_log: bool, y: &Array) -> Result<()> {
    // SAFETY: by contract.
    unsafe {
        match x.dtype == DType::F64 {
            true => run::<f64>(x, is_log, y),
            false => run::<f32>(x, is_log, y),
        }
    }
}

unsafe fn run<T: Real>(x: &Array, is_log: bool, y: &Array) -> Result<()> {
    let rows = Rows::<T>::new(x, 1)?;
    let n = rows.width();
    // SAFETY: the caller holds the result.
    let to = Shared::new(unsafe { y.ptr_mut() }.cast::<T>());
    let size = 2 * n * size_of::<T>();
    let each = (CHUNK / n).max(1);
    let parts = threads::num_threads().min(rows.count().div_ceil(each));
    let scratch = Scratch::new(size, parts)?;
    threads::for_each_chunk(rows.count(), each, |range| {
        let part = scratch.lend(size).or_throw();
        let [own, spare] = [0, n].map(|at| part.ptr().cast::<T>().wrapping_add(at));
        let mut pace = Pace::default();
        let mut made = Powers::none();
        for row in range {
            pace.work(n);
            // SAFETY: the workspace is two rows; the row of the result is this chunk's.
            unsafe {
                let x = rows.get(row, own);
                let y = to.at((row * n) as isize);
                if is_log {
                    let largest = reduce::largest_of_row(x, n);
                    let sum = Powers::none().next(x, spare, n, largest).sum;
                    shifted::<T>(x, y, n, [largest, log(sum)]);
                } else {
                    made = made.next(x, y, n, reduce::largest_of_row(x, n));
                }
            }
        }
        // SAFETY: as above.
        unsafe { made.finish(n) };
    });
    Ok(())
}

/// The softmax of rows one behind the other.
pub type OfRows = unsafe fn(*const u8, *mut u8, [usize; 2]);

/// The kernel for rows of `n` elements, as [`forward_into`] computes them. It takes the rows, the
/// results, which are the same memory or apart, and how many rows and elements of each.
pub fn of_rows(dtype: DType, n: usize) -> Option<OfRows> {
    let kernel: OfRows = if dtype == DType::F64 { each::<f64> } else { each::<f32> };
    takes(dtype, usize::MAX, n).then_some(kernel)
}

unsafe fn each<T: Real>(x: *const u8, y: *mut u8, [rows, n]: [usize; 2]) {
    let (x, y) = (x.cast::<T>(), y.cast::<T>());
    let mut made = Powers::none();
    // SAFETY: by contract.
    unsafe {
        for at in (0..rows * n).step_by(n) {
            let (x, y) = (x.add(at), y.add(at));
            made = made.next(x, y, n, reduce::largest_of_row(x, n));
        }
        made.finish(n);
    }
}

/// A row of powers and their sum, by which they are still to be divided: that is done while the next
/// row's are made, which keeps the multipliers busy and the divider idle. No row: null.
struct Powers<T> {
    row: *mut T,
    sum: T,
}

impl<T: Real> Powers<T> {
    fn none() -> Self {
        Powers { row: std::ptr::null_mut(), sum: T::whole(1) }
    }

    /// The powers of a row less its largest element, in `y`. Those of this row are divided.
    ///
    /// # Safety
    /// All rows have `n` elements; `y` is apart from `self`, and from `x` or the same.
    unsafe fn next(self, x: *const T, y: *mut T, n: usize, largest: T) -> Self {
        // SAFETY: by contract.
        unsafe {
            exponentials::<T>(x, y, n, largest, self.row, self.sum);
            Powers { row: y, sum: reduce::sum_of_row(y.cast_const(), n) }
        }
    }

    /// Divides the last row.
    ///
    /// # Safety
    /// It has `n` elements.
    unsafe fn finish(self, n: usize) {
        if !self.row.is_null() {
            // SAFETY: by contract.
            unsafe { divided::<T>(self.row, n, self.sum) };
        }
    }
}

multiversion! {
    /// `y = e^(x − largest)`; meanwhile the rows behind `x` and `y`, which are mostly the next, are
    /// fetched, and the row `made`, unless that is null, divided.
    ///
    /// # Safety
    /// All have `n` elements; `made` is apart from the others.
    unsafe fn exponentials[T](
        x: *const T,
        y: *mut T,
        n: usize,
        largest: T,
        made: *mut T,
        divisor: T,
    )
    where [T: Real] {
        let mut at = 0;
        // SAFETY: by contract; nothing is read by fetching it.
        unsafe {
            // Read before they may be written over.
            let end = match n >= SHORT {
                true => x.add(n - SHORT).cast::<[T; SHORT]>().read_unaligned(),
                false => [largest; SHORT],
            };
            while at + W <= n {
                for line in (0..W * size_of::<T>()).step_by(64) {
                    prefetch(x.wrapping_add(n + at).cast::<u8>().wrapping_add(line));
                    prefetch(y.wrapping_add(n + at).cast::<u8>().wrapping_add(line));
                }
                let z = x.add(at).cast::<[T; W]>().read_unaligned();
                if made.is_null() {
                    let e = powers::<T, W, FMA>(&z, largest);
                    y.add(at).cast::<[T; W]>().write_unaligned(e);
                } else {
                    // Everything is read before anything is written: rows may lie so that a load
                    // looks like one of what was just stored.
                    let mut q = made.add(at).cast::<[T; W]>().read_unaligned();
                    for q in &mut q {
                        *q = *q / divisor;
                    }
                    let e = powers::<T, W, FMA>(&z, largest);
                    y.add(at).cast::<[T; W]>().write_unaligned(e);
                    made.add(at).cast::<[T; W]>().write_unaligned(q);
                }
                at += W;
            }
            if !made.is_null() {
                let rest = std::slice::from_raw_parts_mut(made.add(at), n - at);
                for q in rest {
                    *q = *q / divisor;
                }
            }
            while at + SHORT <= n {
                let x = x.add(at).cast::<[T; SHORT]>().read_unaligned();
                let e = powers::<T, SHORT, FMA>(&x, largest);
                y.add(at).cast::<[T; SHORT]>().write_unaligned(e);
                at += SHORT;
            }
            // The last ones end with the row: some of them are computed again.
            if at < n && n >= SHORT {
                let e = powers::<T, SHORT, FMA>(&end, largest);
                y.add(n - SHORT).cast::<[T; SHORT]>().write_unaligned(e);
            }
            if n < SHORT {
                let mut part = [largest; SHORT];
                part[..n].copy_from_slice(std::slice::from_raw_parts(x, n));
                let e = powers::<T, SHORT, FMA>(&part, largest);
                y.copy_from_nonoverlapping(e.as_ptr(), n);
            }
        }
    }

    /// `y / divisor`, in place.
    ///
    /// # Safety
    /// There are `n` elements.
    unsafe fn divided[T](y: *mut T, n: usize, divisor: T)
    where [T: Real] {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts_mut(y, n) }.iter_mut().for_each(|y| *y = *y / divisor);
    }

    /// `y = (x − by₀) − by₁`
    ///
    /// # Safety
    /// Both have `n` elements, apart from each other.
    unsafe fn shifted[T](x: *const T, y: *mut T, n: usize, by: [T; 2])
    where [T: Real] {
        // SAFETY: by contract.
        let (x, y) =
            unsafe { (std::slice::from_raw_parts(x, n), std::slice::from_raw_parts_mut(y, n)) };
        y.iter_mut().zip(x).for_each(|(y, x)| *y = (*x - by[0]) - by[1]);
    }
}

/// Elements that are computed at once at the end of a row.
const SHORT: usize = 16;

/// `e^(x − largest)`, in code that may use fused multiply-adds or not.
#[inline(always)]
pub fn powers<T: Real, const N: usize, const FMA: bool>(x: &[T; N], largest: T) -> [T; N] {
    let mut e = [largest; N];
    let mut are_rare = false;
    for i in 0..N {
        let z = x[i] - largest;
        are_rare |= exp_is_rare(z);
        e[i] = by_fma!(FMA, exp_often(z));
    }
    if are_rare {
        for i in 0..N {
            e[i] = by_fma!(FMA, exp(x[i] - largest));
        }
    }
    e
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{bytes, layouts, noise, values};
    use crate::cpu::{self, Operand};
    use crate::dtype::Scalar;
    use crate::ops::attributes::Reduction;
    use crate::ops::elementwise::{arithmetic, exponential};
    use crate::ops::op::Op;
    use crate::shape::Shape;

    fn kernel(x: &Array, is_log: bool) -> Array {
        let y = Array::uninit(x.dtype, x.shape().clone()).unwrap();
        // SAFETY: fresh.
        unsafe { forward_into(x, is_log, &y).unwrap() };
        y
    }

    /// The body, op by op.
    fn body(x: &Array, is_log: bool) -> Array {
        let sizes = x.shape().sizes();
        let kept = Shape::of(&[sizes[0], 1]);
        let op = |op: Op, args: &[&Array]| {
            let args: Vec<Operand> = args.iter().map(|&x| Operand::Array(x)).collect();
            cpu::execute(&op, &args).unwrap()
        };
        let reduced = |kind, x: &Array| {
            let y = op(Op::Reduce(kind, [1].as_slice().into()), &[x]);
            op(Op::Reshape(kept.clone()), &[&y])
        };
        let z = op(Op::Map(&arithmetic::subtract), &[x, &reduced(Reduction::Max, x)]);
        let e = op(Op::Map(&exponential::exp), &[&z]);
        let sum = reduced(Reduction::Sum, &e);
        match is_log {
            true => {
                op(Op::Map(&arithmetic::subtract), &[&z, &op(Op::Map(&exponential::log), &[&sum])])
            }
            false => op(Op::Map(&arithmetic::quotient), &[&e, &sum]),
        }
    }

    #[test]
    fn rows_have_the_bits_of_the_body() {
        for dtype in [DType::F32, DType::F64] {
            for n in [1usize, 2, 12, 31, 32, 33, 64, 65, 100, 1024, 1500, 5000] {
                let x = noise(dtype, &[5, n], n as u64);
                let steep = cpu::execute(
                    &Op::Map(&arithmetic::multiply),
                    &[Operand::Array(&x), Operand::Scalar(Scalar::Float(300.0))],
                );
                for x in layouts(&x).into_iter().chain([steep.unwrap()]) {
                    for is_log in [false, true] {
                        let (got, want) = (kernel(&x, is_log), body(&x, is_log));
                        assert_eq!(bytes(&got), bytes(&want), "{dtype} {n} {is_log}");
                    }
                }
            }
        }
    }

    #[test]
    fn special_rows_have_the_values_of_the_body() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let rows: [[f32; 4]; 6] = [
            [-inf, -inf, -inf, -inf],
            [0.0, -0.0, -inf, -200.0],
            [inf, 0.0, 1.0, 2.0],
            [nan, 0.0, 1.0, 2.0],
            [-0.0, -inf, -inf, -inf],
            [1e30, -1e30, 3.0, f32::MAX],
        ];
        let x = Array::uninit(DType::F32, Shape::of(&[6, 4])).unwrap();
        // SAFETY: fresh, of as many elements.
        unsafe { x.ptr_mut().cast::<[[f32; 4]; 6]>().write(rows) };
        for is_log in [false, true] {
            let (got, want) = (values(&kernel(&x, is_log)), values(&body(&x, is_log)));
            for (got, want) in got.into_iter().zip(want) {
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{got} {want}");
            }
        }
    }

    #[test]
    fn rows_in_place_have_the_bits_of_the_kernel() {
        for (dtype, n) in
            [(DType::F32, 400), (DType::F32, 477), (DType::F32, 1030), (DType::F64, 490)]
        {
            for rows in [1, 2, 5] {
                let x = noise(dtype, &[rows, n], 3);
                let want = kernel(&x, false);
                let run = of_rows(dtype, n).unwrap();
                // SAFETY: nobody else has the array, of so many elements.
                unsafe { run(x.ptr(), x.ptr_mut(), [rows, n]) };
                assert_eq!(bytes(&x), bytes(&want), "{rows} rows of {n} {dtype:?}");
            }
        }
    }

    #[test]
    fn few_short_rows_have_the_bits_of_the_body() {
        for n in 1..80 {
            assert!(takes(DType::F32, 3, n) && !takes(DType::F32, 1000, n));
            let x = noise(DType::F32, &[3, n], 5);
            for is_log in [false, true] {
                assert_eq!(bytes(&kernel(&x, is_log)), bytes(&body(&x, is_log)), "{n}");
            }
        }
    }
}
