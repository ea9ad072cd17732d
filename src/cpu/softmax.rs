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
use crate::cpu::reduce;
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
/// Shorter rows are better left to the body, which computes elements of several at once.
const FEW: usize = 64;
/// Elements that are computed at once.
const W: usize = 64;

/// Whether there is a kernel for rows of `n` elements of a dtype. The body rounds half floats at
/// each step.
pub fn takes(dtype: DType, n: usize) -> bool {
    matches!(dtype, DType::F32 | DType::F64) && (FEW..=LONG).contains(&n)
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
        for row in range {
            pace.work(n);
            // SAFETY: the workspace is two rows; the row of the result is this chunk's.
            unsafe {
                let x = rows.get(row, own);
                let y = to.at((row * n) as isize);
                let largest = reduce::largest_of_row(x, n);
                let powers = if is_log { spare } else { y };
                exponentials::<T>(x, powers, n, largest);
                let sum = reduce::sum_of_row(powers.cast_const(), n);
                match is_log {
                    true => shifted::<T>(x, y, n, [largest, log(sum)]),
                    false => divided::<T>(y, n, sum),
                }
            }
        }
    });
    Ok(())
}

multiversion! {
    /// `y = e^(x − largest)`; meanwhile the row behind `x`, which is mostly the next, is fetched.
    ///
    /// # Safety
    /// Both have `n` elements.
    unsafe fn exponentials[T](x: *const T, y: *mut T, n: usize, largest: T)
    where [T: Real] {
        let mut at = 0;
        // SAFETY: by contract; nothing is read by fetching it.
        unsafe {
            while at + W <= n {
                for line in (0..W * size_of::<T>()).step_by(64) {
                    prefetch(x.wrapping_add(n + at).cast::<u8>().wrapping_add(line));
                }
                let e = powers::<T, W, FMA>(&x.add(at).cast::<[T; W]>().read_unaligned(), largest);
                y.add(at).cast::<[T; W]>().write_unaligned(e);
                at += W;
            }
            // The last ones end with the row: some of them are computed again.
            while at < n && n >= SHORT {
                let from = at.min(n - SHORT);
                let x = x.add(from).cast::<[T; SHORT]>().read_unaligned();
                let e = powers::<T, SHORT, FMA>(&x, largest);
                y.add(from).cast::<[T; SHORT]>().write_unaligned(e);
                at += SHORT;
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
}
