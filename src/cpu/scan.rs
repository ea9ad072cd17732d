//! Cumulative sums, products, maxima and minima along an axis.
//!
//! Promises: element `i` of the result joins elements `0..=i` one after the other (from the far end
//! where reversed), whatever the layout and the number of threads. Sums and products of floats up
//! to float32 are carried in float64, sums of float64 with what each addition lost; each result is
//! rounded once. So the error of a running sum of `n` elements is one rounding and, of the sum of
//! magnitudes, `n·2⁻⁵³` for the narrower floats, `n²·2⁻¹⁰⁵` for float64. A running product of
//! float64 is a plain chain, within `n` roundings.

use std::marker::PhantomData;

use crate::array::Array;
use crate::cpu::copy;
use crate::cpu::element::{BF16, Element, F16, Shared, with_element};
use crate::cpu::reduce::{Combine, Max, Min, Prod, Sum};
use crate::dtype::DType;
use crate::error::Result;
use crate::multiversion;
use crate::ops::attributes::Cumulation;
use crate::threads;

/// Elements that one thread takes at a time, and below which a second one does not pay.
const CHUNK: usize = 1 << 15;
/// Rows that advance side by side, so that one need not wait for the last join of another. Lines of
/// more rows might push each other out of the cache where they are a power of two apart.
const TOGETHER: usize = 4;
/// Columns that advance together.
const TILE: usize = 256;
/// Elements of a line between two looks whether the scan is to be broken off.
const STRETCH: usize = 1 << 12;

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
        kind @ (Cumulation::Sum | Cumulation::Prod | Cumulation::Max | Cumulation::Min) => kind,
    };
    // SAFETY: the caller's, and filled below.
    let to = unsafe { out.ptr_mut() };
    with_element!(x.dtype, T => {
        let (from, to) = (x.ptr().cast::<T>(), to.cast::<T>());
        match kind {
            Cumulation::Sum => lines.run::<T, <T as Carried>::Sum>(from, to),
            Cumulation::Prod => lines.run::<T, <T as Carried>::Prod>(from, to),
            Cumulation::Max => lines.run::<T, Plain<T, Max>>(from, to),
            Cumulation::Min => lines.run::<T, Plain<T, Min>>(from, to),
        }
    });
    Ok(())
}

/// What a line carries from element to element.
trait Carry<T: Element>: Copy + 'static {
    /// Before the first element.
    const START: Self;
    /// With one more element.
    fn join(self, x: T) -> Self;
    /// The result so far.
    fn value(self) -> T;
}

/// How running sums and products of elements are carried.
trait Carried: Element {
    type Sum: Carry<Self>;
    type Prod: Carry<Self>;
}

/// The number itself.
struct Plain<T: Element, F>(T::Number, PhantomData<F>);

impl<T: Element, F> Clone for Plain<T, F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Element, F> Copy for Plain<T, F> {}

impl<T: Element, F: Combine<T::Number>> Carry<T> for Plain<T, F> {
    const START: Self = Plain(F::NEUTRAL, PhantomData);
    #[inline(always)]
    fn join(self, x: T) -> Self {
        Plain(F::join(self.0, x.widen()), PhantomData)
    }
    #[inline(always)]
    fn value(self) -> T {
        T::narrow(self.0)
    }
}

/// A float64 beside narrower floats.
struct Wide<F>(f64, PhantomData<F>);

impl<F> Clone for Wide<F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<F> Copy for Wide<F> {}

impl<T: Element<Number = f32>, F: Combine<f64>> Carry<T> for Wide<F> {
    const START: Self = Wide(F::NEUTRAL, PhantomData);
    #[inline(always)]
    fn join(self, x: T) -> Self {
        Wide(F::join(self.0, x.widen() as f64), PhantomData)
    }
    #[inline(always)]
    fn value(self) -> T {
        T::narrow(self.0 as f32)
    }
}

/// A sum, and the sum of what its additions lost. Source: Ogita, Rump, Oishi: Accurate sum and dot
/// product, 2005.
#[derive(Clone, Copy)]
struct Compensated {
    sum: f64,
    lost: f64,
}

impl Carry<f64> for Compensated {
    const START: Self = Compensated { sum: -0.0, lost: 0.0 };
    #[inline(always)]
    fn join(self, x: f64) -> Self {
        let sum = self.sum + x;
        let part = sum - self.sum;
        let lost = (self.sum - (sum - part)) + (x - part);
        Compensated { sum, lost: self.lost + lost }
    }
    #[inline(always)]
    fn value(self) -> f64 {
        // Of infinities nothing is lost that could be known, and a zero keeps its sign.
        if self.lost.abs() > 0.0 { self.sum + self.lost } else { self.sum }
    }
}

macro_rules! carried {
    ($($ty:ty: $sum:ty, $prod:ty;)*) => {$(
        impl Carried for $ty {
            type Sum = $sum;
            type Prod = $prod;
        }
    )*};
}
carried! {
    u8: Plain<u8, Sum>, Plain<u8, Prod>;
    u16: Plain<u16, Sum>, Plain<u16, Prod>;
    u32: Plain<u32, Sum>, Plain<u32, Prod>;
    u64: Plain<u64, Sum>, Plain<u64, Prod>;
    i8: Plain<i8, Sum>, Plain<i8, Prod>;
    i16: Plain<i16, Sum>, Plain<i16, Prod>;
    i32: Plain<i32, Sum>, Plain<i32, Prod>;
    i64: Plain<i64, Sum>, Plain<i64, Prod>;
    F16: Wide<Sum>, Wide<Prod>;
    BF16: Wide<Sum>, Wide<Prod>;
    f32: Wide<Sum>, Wide<Prod>;
    f64: Compensated, Plain<f64, Prod>;
}

/// The lines of a C-order array along one axis.
struct Lines {
    outer: usize,
    n: usize,
    inner: usize,
    reverse: bool,
}

impl Lines {
    fn run<T: Element, C: Carry<T>>(&self, x: *const T, out: *mut T) {
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
                    1 => scan_rows::<T, C>(x.at(at), out.at(at), count, self.n, step),
                    _ => scan_columns::<T, C>(x.at(at), out.at(at), count, self.n, step),
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
    unsafe fn scan_rows[T, C](x: *const T, out: *mut T, rows: usize, n: usize, step: isize)
    where [T: Element, C: Carry<T>] {
        let (mut row, along) = (0, (n as isize, step));
        // SAFETY: by contract.
        unsafe {
            while row + TOGETHER <= rows {
                scan_some::<T, C, TOGETHER>(x.add(row * n), out.add(row * n), n, along);
                row += TOGETHER;
            }
            while row < rows {
                scan_some::<T, C, 1>(x.add(row * n), out.add(row * n), n, along);
                row += 1;
            }
        }
    }

    /// Scans `columns` neighbouring columns of `n` elements, `step` apart.
    unsafe fn scan_columns[T, C](x: *const T, out: *mut T, columns: usize, n: usize, step: isize)
    where [T: Element, C: Carry<T>] {
        let mut column = 0;
        macro_rules! columns {
            ($($W:literal),*) => { $(
                while columns - column >= $W {
                    // SAFETY: by contract.
                    unsafe {
                        let (x, out) = (x.add(column), out.add(column));
                        scan_some::<T, C, $W>(x, out, n, (1, step));
                    }
                    column += $W;
                }
            )* };
        }
        columns!(64, 8, 1);
    }
}

/// Scans `W` lines of `n` elements, `pitch` from line to line and `step` along them.
#[inline(always)]
unsafe fn scan_some<T: Element, C: Carry<T>, const W: usize>(
    x: *const T,
    out: *mut T,
    n: usize,
    (pitch, step): (isize, isize),
) {
    let mut carry = [C::START; W];
    for start in (0..n).step_by(STRETCH) {
        if start > 0 {
            threads::pause();
        }
        for i in start as isize..n.min(start + STRETCH) as isize {
            for (line, carry) in carry.iter_mut().enumerate() {
                let at = i * step + line as isize * pitch;
                // SAFETY: position `i` of one of the caller's lines.
                unsafe {
                    *carry = carry.join(*x.offset(at));
                    *out.offset(at) = carry.value();
                }
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

    /// One element after the other, by positions in C order. Sums and products of floats are made
    /// in float64, where the numbers of these tests add without error.
    fn naive<T: Sample>(
        kind: Cumulation,
        sizes: &[usize],
        axis: usize,
        reverse: bool,
        x: &[T],
    ) -> Vec<T> {
        let step: usize = sizes[axis + 1..].iter().product();
        let mut carried: Vec<T::Number> = x.iter().map(|x| x.widen()).collect();
        let mut wide: Vec<f64> = x.iter().map(|x| x.number()).collect();
        let order: Vec<usize> =
            if reverse { (0..x.len()).rev().collect() } else { (0..x.len()).collect() };
        for i in order {
            let index = i / step % sizes[axis];
            if index == if reverse { sizes[axis] - 1 } else { 0 } {
                continue;
            }
            let from = if reverse { i + step } else { i - step };
            let (before, own) = (carried[from], carried[i]);
            match kind {
                Cumulation::Sum => wide[i] += wide[from],
                Cumulation::Prod => wide[i] *= wide[from],
                Cumulation::Max | Cumulation::Min => {}
            }
            carried[i] = match kind {
                Cumulation::Sum => before.add(own),
                Cumulation::Prod => before.mul(own),
                Cumulation::Max if before > own || before.is_nan() => before,
                Cumulation::Min if before < own || before.is_nan() => before,
                Cumulation::Max | Cumulation::Min => own,
            };
        }
        let is_wide = T::DTYPE.is_float() && matches!(kind, Cumulation::Sum | Cumulation::Prod);
        match is_wide {
            true => wide.into_iter().map(T::of).collect(),
            false => carried.into_iter().map(T::narrow).collect(),
        }
    }

    /// Every prefix within one rounding of the exact sum, where the terms have different signs and
    /// magnitudes and a plain chain loses what the small ones add.
    #[test]
    fn long_sums_keep_their_digits() {
        let unit = 2f64.powi(-30);
        let scaled = |i: usize, x: f64| if i.is_multiple_of(3) { x * 2f64.powi(20) } else { x };
        let terms: Vec<f64> =
            noise(1 << 20, 1.0, unit).into_iter().enumerate().map(|(i, x)| scaled(i, x)).collect();
        let exact = |x: &[f64]| -> Vec<f64> {
            let whole = |x: &f64| (x * 2f64.powi(60)) as i128;
            x.iter()
                .map(whole)
                .scan(0, |sum, x| {
                    Some({
                        *sum += x;
                        *sum as f64 * 2f64.powi(-60)
                    })
                })
                .collect()
        };
        let worst = |got: &[f64], want: &[f64], relative: f64| {
            let excess = |(got, want): (&f64, &f64)| (got - want).abs() - want.abs() * relative;
            got.iter().zip(want).map(excess).fold(0.0, f64::max)
        };
        let chain = |x: &[f64]| -> Vec<f64> {
            x.iter()
                .scan(0.0, |sum, x| {
                    Some({
                        *sum += x;
                        *sum
                    })
                })
                .collect()
        };
        let want = exact(&terms);
        let got: Vec<f64> =
            values(&cumulate(Cumulation::Sum, &array(&[terms.len()], &terms), 0, false).unwrap());
        assert!(worst(&got, &want, 2f64.powi(-52)) < 1e-15);
        assert!(worst(&chain(&terms), &want, 2f64.powi(-52)) > 1e-9);
        let single: Vec<f32> = terms.iter().map(|&x| x as f32).collect();
        let want = exact(&single.iter().map(|&x| x.into()).collect::<Vec<f64>>());
        let got: Vec<f32> =
            values(&cumulate(Cumulation::Sum, &array(&[single.len()], &single), 0, false).unwrap());
        let got: Vec<f64> = got.into_iter().map(f64::from).collect();
        assert!(worst(&got, &want, 2f64.powi(-23)) < 1e-3);
    }

    fn check<T: Sample>() {
        let cases: &[(&[usize], usize)] = &[
            (&[1], 0),
            (&[9], 0),
            (&[20, 7], 1),
            (&[17, 65], 1),
            (&[7, 90], 0),
            (&[3, 5, 11], 1),
            (&[2, 0], 0),
            (&[0, 2], 0),
        ];
        for &(sizes, axis) in cases {
            let numbers = noise(sizes.iter().product(), 1.5, 2f64.powi(-10));
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
