//! One block of scores: what is done to its rows.

use crate::cpu::dense::Real;
use crate::multiversion;
use crate::scalar::{by_fma, exp_normal, log};

/// Elements that rows are worked on at a time: rows of a block are padded to a multiple of it.
pub const LANES: usize = 16;

/// Joins lanes by halves.
#[inline(always)]
fn join<T: Real>(mut lanes: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = f(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// The larger one; which of them where either is NaN does not matter, see [`soften`].
#[inline(always)]
fn larger<T: Real>(a: T, b: T) -> T {
    if a > b { a } else { b }
}

/// `eˣ` of what is not far above 0, but 0 where that is about the smallest normal number: numbers
/// below take many times as long, and beside a weight of 1 they are nothing.
#[inline(always)]
fn weight<T: Real, const FMA: bool>(x: T) -> T {
    let low = T::pick(-87.0, -708.0);
    // In this order what is NaN stays.
    let held = if x < low { low } else { x };
    let e = by_fma!(FMA, exp_normal(held));
    if x < low { T::ZERO } else { e }
}

multiversion! {
    /// One step of a softmax over blocks of keys. Of each row, `maxima` holds the largest score so
    /// far and `sums` the sum of the exponentials of scores less that; `factors` gets what
    /// everything summed before is to be multiplied by. The scores become their exponentials.
    ///
    /// A score that is NaN makes the sum NaN, whatever the largest one is.
    ///
    /// # Safety
    /// `s` has `rows` rows of `wide` elements, a multiple of [`LANES`], `step` apart; the others
    /// have `rows` elements, rounded up to [`LANES`].
    pub unsafe fn soften[T](
        s: *mut T,
        step: usize,
        size: [usize; 2],
        state: [*mut T; 3],
    )
    where [T: Real]
    {
        let ([rows, wide], [maxima, sums, factors]) = (size, state);
        let lowest = -T::infinity();
        // SAFETY: by contract.
        unsafe {
            for r in 0..rows {
                let mut lanes = [lowest; LANES];
                for at in (0..wide).step_by(LANES) {
                    let x = s.add(r * step + at).cast::<[T; LANES]>().read_unaligned();
                    for (lane, x) in lanes.iter_mut().zip(x) {
                        *lane = larger(x, *lane);
                    }
                }
                *factors.add(r) = join(lanes, larger);
            }
            for at in (0..rows).step_by(LANES) {
                let old = maxima.add(at).cast::<[T; LANES]>().read_unaligned();
                let mut new = factors.add(at).cast::<[T; LANES]>().read_unaligned();
                let mut sum = sums.add(at).cast::<[T; LANES]>().read_unaligned();
                let mut factor = new;
                for i in 0..LANES {
                    new[i] = larger(new[i], old[i]);
                    // Where nothing was attended to, there is nothing to scale either.
                    let base = if new[i] == lowest { T::ZERO } else { new[i] };
                    factor[i] = weight::<T, FMA>(old[i] - base);
                    sum[i] = sum[i] * factor[i];
                }
                maxima.add(at).cast::<[T; LANES]>().write_unaligned(new);
                sums.add(at).cast::<[T; LANES]>().write_unaligned(sum);
                factors.add(at).cast::<[T; LANES]>().write_unaligned(factor);
            }
            for r in 0..rows {
                let top = *maxima.add(r);
                let base = if top == lowest { T::ZERO } else { top };
                let mut lanes = [T::ZERO; LANES];
                for at in (0..wide).step_by(LANES) {
                    let place = s.add(r * step + at).cast::<[T; LANES]>();
                    let mut x = place.read_unaligned();
                    for (lane, x) in lanes.iter_mut().zip(&mut x) {
                        *x = weight::<T, FMA>(*x - base);
                        *lane = *lane + *x;
                    }
                    place.write_unaligned(x);
                }
                *sums.add(r) = *sums.add(r) + join(lanes, |a, b| a + b);
            }
        }
    }

    /// Multiplies each row by its factor.
    ///
    /// # Safety
    /// As for [`soften`].
    pub unsafe fn rescale[T](x: *mut T, step: usize, size: [usize; 2], factors: *const T)
    where [T: Real]
    {
        let [rows, wide] = size;
        for r in 0..rows {
            // SAFETY: by contract.
            let (factor, row) = unsafe {
                (*factors.add(r), std::slice::from_raw_parts_mut(x.add(r * step), wide))
            };
            if factor != T::ONE {
                row.iter_mut().for_each(|x| *x = *x * factor);
            }
        }
    }

    /// Divides each row by its sum, which becomes the logarithm of the sum of exponentials.
    ///
    /// # Safety
    /// As for [`soften`].
    pub unsafe fn finish[T](
        x: *mut T,
        step: usize,
        size: [usize; 2],
        state: [*mut T; 2],
    )
    where [T: Real]
    {
        let ([rows, wide], [maxima, sums]) = (size, state);
        for r in 0..rows {
            // SAFETY: by contract.
            unsafe {
                let sum = *sums.add(r);
                let row = std::slice::from_raw_parts_mut(x.add(r * step), wide);
                row.iter_mut().for_each(|x| *x = *x / sum);
            }
        }
        for r in 0..rows {
            // SAFETY: by contract.
            unsafe { *sums.add(r) = *maxima.add(r) + log(*sums.add(r)) };
        }
    }

    /// Scores and cotangents of weights become weights, `P = exp(s − logsum)`, and cotangents of
    /// scores, `P (dP − D)`. A row that attends to nothing has weights that are NaN; its scores
    /// have no cotangent where all of them were taken away (`closed`), since none then reached the
    /// weights.
    ///
    /// # Safety
    /// As for [`soften`].
    pub unsafe fn slopes[T](
        scores: [*mut T; 2],
        step: usize,
        size: [usize; 2],
        rest: [*mut T; 2],
        closed: bool,
    )
    where [T: Real]
    {
        let ([rows, wide], [s, dp], [logsums, offsets]) = (size, scores, rest);
        for r in 0..rows {
            // SAFETY: by contract.
            unsafe {
                let (logsum, offset) = (*logsums.add(r), *offsets.add(r));
                for at in (0..wide).step_by(LANES) {
                    let (p, d) = (s.add(r * step + at), dp.add(r * step + at));
                    let (p, d) = (p.cast::<[T; LANES]>(), d.cast::<[T; LANES]>());
                    let (mut x, mut y) = (p.read_unaligned(), d.read_unaligned());
                    for (x, y) in x.iter_mut().zip(&mut y) {
                        *x = weight::<T, FMA>(*x - logsum);
                        *y = *x * (*y - offset);
                    }
                    p.write_unaligned(x);
                    d.write_unaligned(y);
                }
                if closed && logsum == -T::infinity() {
                    std::slice::from_raw_parts_mut(dp.add(r * step), wide).fill(T::ZERO);
                }
            }
        }
    }

    /// `exp(s − logsum)` alone.
    ///
    /// # Safety
    /// As for [`soften`].
    pub unsafe fn weights[T](s: *mut T, step: usize, size: [usize; 2], logsums: *const T)
    where [T: Real]
    {
        let [rows, wide] = size;
        for r in 0..rows {
            // SAFETY: by contract.
            unsafe {
                let logsum = *logsums.add(r);
                for at in (0..wide).step_by(LANES) {
                    let p = s.add(r * step + at).cast::<[T; LANES]>();
                    let mut x = p.read_unaligned();
                    x.iter_mut().for_each(|x| *x = weight::<T, FMA>(*x - logsum));
                    p.write_unaligned(x);
                }
            }
        }
    }

    /// Takes the products of rows, `Σ a[r] b[r]`, less what `out` holds.
    ///
    /// # Safety
    /// `a` and `b` have `rows` rows of `wide` elements, a multiple of [`LANES`].
    pub unsafe fn offsets[T](
        a: *const T,
        b: *const T,
        wide: usize,
        rows: usize,
        out: *mut T,
    )
    where [T: Real]
    {
        for r in 0..rows {
            // SAFETY: by contract.
            unsafe {
                let mut lanes = [T::ZERO; LANES];
                for at in (0..wide).step_by(LANES) {
                    let a = a.add(r * wide + at).cast::<[T; LANES]>().read_unaligned();
                    let b = b.add(r * wide + at).cast::<[T; LANES]>().read_unaligned();
                    for (lane, (a, b)) in lanes.iter_mut().zip(a.into_iter().zip(b)) {
                        *lane = *lane + a * b;
                    }
                }
                *out.add(r) = join(lanes, |a, b| a + b) - *out.add(r);
            }
        }
    }

    /// Takes away the scores of each row from its reach on, which is `reach` keys for the first row
    /// and one more for each row behind it, and what rows have behind their keys.
    ///
    /// # Safety
    /// As for [`soften`], of `size` rows and columns.
    pub unsafe fn close[T](s: *mut T, step: usize, size: [usize; 2], reach: isize)
    where [T: Real]
    {
        let lowest = -T::infinity();
        let wide = size[1].next_multiple_of(LANES);
        for r in 0..size[0] {
            let open = reach.saturating_add(r as isize).clamp(0, size[1] as isize) as usize;
            for at in (open / LANES * LANES..wide).step_by(LANES) {
                // SAFETY: by contract.
                unsafe {
                    let place = s.add(r * step + at).cast::<[T; LANES]>();
                    let mut x = place.read_unaligned();
                    for (i, x) in x.iter_mut().enumerate() {
                        *x = if at + i < open { *x } else { lowest };
                    }
                    place.write_unaligned(x);
                }
            }
        }
    }

    /// Takes away the scores that a bool mask does not let through.
    ///
    /// # Safety
    /// The mask has `size` rows and columns with these strides.
    pub unsafe fn hide[T](
        s: *mut T,
        step: usize,
        mask: *const u8,
        strides: [isize; 2],
        size: [usize; 2],
    )
    where [T: Real]
    {
        let lowest = -T::infinity();
        for r in 0..size[0] {
            let from = mask.wrapping_offset(r as isize * strides[0]);
            // SAFETY: by contract.
            unsafe {
                let to = std::slice::from_raw_parts_mut(s.add(r * step), size[1]);
                if strides[1] == 1 {
                    let from = std::slice::from_raw_parts(from, size[1]);
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = if *from != 0 { *to } else { lowest };
                    }
                } else {
                    for (c, to) in to.iter_mut().enumerate() {
                        let open = *from.wrapping_offset(c as isize * strides[1]) != 0;
                        *to = if open { *to } else { lowest };
                    }
                }
            }
        }
    }

    /// Whether a bool mask lets anything through.
    ///
    /// # Safety
    /// As for [`hide`].
    pub unsafe fn is_open(mask: *const u8, strides: [isize; 2], size: [usize; 2]) -> bool {
        // What is repeated is looked at once.
        let once = |n: usize, stride: isize| if stride == 0 { n.min(1) } else { n };
        let (rows, columns) = (once(size[0], strides[0]), once(size[1], strides[1]));
        for r in 0..rows {
            let from = mask.wrapping_offset(r as isize * strides[0]);
            let mut any = 0;
            for c in 0..columns {
                // SAFETY: by contract.
                any |= unsafe { *from.wrapping_offset(c as isize * strides[1]) };
            }
            if any != 0 {
                return true;
            }
        }
        false
    }
}
