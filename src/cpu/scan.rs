//! Cumulative sums, products, maxima and minima along an axis.
//!
//! Promises: element `i` of the result joins elements `0..=i` one after the other (from the far end
//! where reversed), whatever the layout. float16 and bfloat16 are carried in f32; each result is
//! rounded once.

use crate::array::Array;
use crate::cpu::copy;
use crate::cpu::element::{Element, Shared, with_element};
use crate::cpu::reduce::{Fold, Max, Min, Prod, Sum};
use crate::dtype::DType;
use crate::error::Result;
use crate::multiversion;
use crate::ops::attributes::Cumulation;
use crate::threads;

/// Elements that one thread takes at a time, and below which a second one does not pay.
const CHUNK: usize = 1 << 15;
/// Rows that advance side by side, so that one need not wait for the last join of another.
const TOGETHER: usize = 8;
/// Columns that advance together.
const TILE: usize = 256;

/// The running sum, product, maximum or minimum of `x` along `axis`, from its end where `reverse`.
/// The result has the dtype of `x`; on bool, sum and maximum are any, product and minimum all.
///
/// # Safety
/// `out` is in C order, of the result's type, and nobody else reads or writes it.
pub unsafe fn cumulate_into(
    kind: Cumulation,
    x: &Array,
    axis: usize,
    reverse: bool,
    out: &Array,
) -> Result<()> {
    let x = copy::contiguous(x)?;
    let sizes = x.shape().sizes();
    let lines = Lines {
        outer: sizes[..axis].iter().product(),
        n: sizes[axis],
        inner: sizes[axis + 1..].iter().product(),
        reverse,
    };
    if out.count() == 0 {
        return Ok(());
    }
    let kind = match kind {
        Cumulation::Sum if x.dtype == DType::Bool => Cumulation::Max,
        kind => kind,
    };
    // SAFETY: the caller's, and filled below.
    let to = unsafe { out.ptr_mut() };
    with_element!(x.dtype, T => {
        let (from, to) = (x.ptr().cast::<T>(), to.cast::<T>());
        match kind {
            Cumulation::Sum => lines.run::<T, Sum>(from, to),
            Cumulation::Prod => lines.run::<T, Prod>(from, to),
            Cumulation::Max => lines.run::<T, Max>(from, to),
            Cumulation::Min => lines.run::<T, Min>(from, to),
        }
    });
    Ok(())
}

/// The lines of a C-order array along one axis.
struct Lines {
    outer: usize,
    n: usize,
    inner: usize,
    reverse: bool,
}

impl Lines {
    fn run<T: Element, F: Fold<T::Number>>(&self, x: *const T, out: *mut T) {
        let (n, inner) = (self.n as isize, self.inner as isize);
        // The first element of the first line, and the step along a line.
        let (start, step) = if self.reverse { ((n - 1) * inner, -inner) } else { (0, inner) };
        let (x, out) = (Shared::reading(x), Shared::new(out));
        let width =
            if self.inner == 1 { (CHUNK / self.n).max(TOGETHER) } else { TILE.min(self.inner) };
        // Groups of lines: `width` whole lines, or `width` neighbouring columns of one outer index.
        let (across, lines) =
            if self.inner == 1 { (1, self.outer) } else { (self.outer, self.inner) };
        let groups = lines.div_ceil(width);
        let body = |i: usize| {
            let (outer, first) = (i / groups, i % groups * width);
            let count = width.min(lines - first);
            let pitch = if self.inner == 1 { n } else { 1 };
            let at = start + outer as isize * n * inner + first as isize * pitch;
            // SAFETY: all lines lie in both arrays, and each belongs to one call.
            unsafe {
                match self.inner {
                    1 => scan_rows::<T, F>(x.at(at), out.at(at), count, self.n, step),
                    _ => scan_columns::<T, F>(x.at(at), out.at(at), count, self.n, step),
                }
            }
        };
        if self.outer * self.n * self.inner < CHUNK {
            (0..across * groups).for_each(body);
        } else {
            threads::parallel_for(across * groups, &body);
        }
    }
}

multiversion! {
    /// Scans `rows` rows of `n` elements, which lie `n` apart; `step` is 1 or −1.
    unsafe fn scan_rows[T, F](x: *const T, out: *mut T, rows: usize, n: usize, step: isize)
    where [T: Element, F: Fold<T::Number>] {
        let mut row = 0;
        // SAFETY: by contract.
        unsafe {
            while row + TOGETHER <= rows {
                scan_some::<T, F, TOGETHER>(x.add(row * n), out.add(row * n), n, n, step);
                row += TOGETHER;
            }
            while row < rows {
                scan_some::<T, F, 1>(x.add(row * n), out.add(row * n), n, n, step);
                row += 1;
            }
        }
    }

    /// Scans `columns` neighbouring columns of `n` elements, `step` apart.
    unsafe fn scan_columns[T, F](x: *const T, out: *mut T, columns: usize, n: usize, step: isize)
    where [T: Element, F: Fold<T::Number>] {
        let mut column = 0;
        // SAFETY: by contract.
        unsafe {
            while column + 64 <= columns {
                scan_some::<T, F, 64>(x.add(column), out.add(column), 1, n, step);
                column += 64;
            }
            while column + 8 <= columns {
                scan_some::<T, F, 8>(x.add(column), out.add(column), 1, n, step);
                column += 8;
            }
            while column < columns {
                scan_some::<T, F, 1>(x.add(column), out.add(column), 1, n, step);
                column += 1;
            }
        }
    }
}

/// Scans `W` lines side by side, which start `pitch` apart and have `n` elements, `step` apart.
#[inline(always)]
unsafe fn scan_some<T: Element, F: Fold<T::Number>, const W: usize>(
    x: *const T,
    out: *mut T,
    pitch: usize,
    n: usize,
    step: isize,
) {
    let mut carry = [F::NEUTRAL; W];
    for i in 0..n as isize {
        for (line, carry) in carry.iter_mut().enumerate() {
            let at = (line * pitch) as isize + i * step;
            // SAFETY: position `i` of one of the caller's lines.
            unsafe {
                *carry = F::join(*carry, (*x.wrapping_offset(at)).widen());
                *out.wrapping_offset(at) = T::narrow(*carry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::element::Number;
    use crate::cpu::samples::{Sample, array, bools, bytes, every_element, layouts, noise, values};
    use crate::cpu::testing::cumulate;
    use crate::threads::set_num_threads;

    const KINDS: [Cumulation; 4] =
        [Cumulation::Sum, Cumulation::Prod, Cumulation::Max, Cumulation::Min];

    /// One element after the other, by positions in C order.
    fn naive<T: Sample>(
        kind: Cumulation,
        sizes: &[usize],
        axis: usize,
        reverse: bool,
        x: &[T],
    ) -> Vec<T> {
        let step: usize = sizes[axis + 1..].iter().product();
        let mut carried: Vec<T::Number> = x.iter().map(|x| x.widen()).collect();
        let order: Vec<usize> =
            if reverse { (0..x.len()).rev().collect() } else { (0..x.len()).collect() };
        for i in order {
            let index = i / step % sizes[axis];
            if index == if reverse { sizes[axis] - 1 } else { 0 } {
                continue;
            }
            let before = carried[if reverse { i + step } else { i - step }];
            let own = carried[i];
            carried[i] = match kind {
                Cumulation::Sum => before.add(own),
                Cumulation::Prod => before.mul(own),
                Cumulation::Max => {
                    if before > own || before.is_nan() {
                        before
                    } else {
                        own
                    }
                }
                Cumulation::Min => {
                    if before < own || before.is_nan() {
                        before
                    } else {
                        own
                    }
                }
            };
        }
        carried.into_iter().map(T::narrow).collect()
    }

    fn check<T: Sample>() {
        let cases: &[(&[usize], usize)] = &[
            (&[1], 0),
            (&[9], 0),
            (&[20, 7], 1),
            (&[7, 90], 0),
            (&[3, 5, 11], 1),
            (&[2, 0], 0),
            (&[0, 2], 0),
        ];
        for &(sizes, axis) in cases {
            let numbers = noise(sizes.iter().product(), 1.5, 1e-3);
            let elements: Vec<T> = numbers.into_iter().map(T::of).collect();
            for (kind, reverse) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)])
            {
                let want = naive(kind, sizes, axis, reverse, &elements);
                for y in layouts(&array(sizes, &elements)) {
                    let got = cumulate(kind, &y, axis, reverse).unwrap();
                    assert_eq!(
                        values::<T>(&got),
                        want,
                        "{kind:?} {} {axis} {:?}",
                        T::DTYPE,
                        y.layout
                    );
                }
            }
        }
    }

    #[test]
    fn every_kind_and_dtype_runs_in_order() {
        every_element!(T => check::<T>());
    }

    #[test]
    fn threads_change_nothing() {
        let x: Vec<f32> = noise(600_000, 1.0, 1e-9).into_iter().map(|x| x as f32).collect();
        for (sizes, axis) in
            [([300, 2000], 0), ([300, 2000], 1), ([2, 300_000], 1), ([300_000, 2], 0)]
        {
            let want = naive(Cumulation::Sum, &sizes, axis, false, &x);
            for threads in [1, 2] {
                set_num_threads(threads);
                let got = cumulate(Cumulation::Sum, &array(&sizes, &x), axis, false).unwrap();
                assert_eq!(values::<f32>(&got), want);
            }
        }
    }

    #[test]
    fn nan_stays_and_bools_stay_bools() {
        let x = array(&[5], &[1.0, f64::NAN, 9.0, -9.0, 0.0]);
        for kind in KINDS {
            let got: Vec<f64> = values(&cumulate(kind, &x, 0, false).unwrap());
            assert!(got[0] == 1.0 && got[1..].iter().all(|y| y.is_nan()), "{kind:?} {got:?}");
        }
        let x = bools(&[4], &[false, true, true, false]);
        assert_eq!(bytes(&cumulate(Cumulation::Sum, &x, 0, false).unwrap()), [0, 1, 1, 1]);
        assert_eq!(bytes(&cumulate(Cumulation::Prod, &x, 0, true).unwrap()), [0, 0, 0, 0]);
        assert_eq!(bytes(&cumulate(Cumulation::Min, &x, 0, false).unwrap()), [0, 0, 0, 0]);
    }
}
