//! Col2im (`fold`): overlapping windows summed back into an array.
//!
//! Promises: an element is the sum of its windows' terms in order of their place in the window, so
//! layouts and threads do not show.

use crate::array::Array;
use crate::cpu::contract::{narrow_into, wide_result, widen};
use crate::cpu::gemm::{self, Axis};
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::layout::row_major;
use crate::ops::attributes::WindowSpec;
use crate::threads::{self, Pace};

/// Additions worth handing to another thread.
const CHUNK: usize = 1 << 16;

/// Positions of a window of `size` elements along `n`.
pub fn positions(n: usize, size: usize, stride: usize, dilation: usize) -> usize {
    let reach = size.saturating_sub(1) * dilation + 1;
    if n < reach { 0 } else { (n - reach) / stride + 1 }
}

/// Adds every window of `g` back to where it was taken from, in an
/// array whose trailing sizes are `sizes`. Half floats are summed in float32 and rounded once.
///
/// # Safety
/// `out` is in C order, of the result's type, and nobody else reads or writes it.
pub unsafe fn fold_into(g: &Array, spec: &WindowSpec, sizes: &[usize], out: &Array) -> Result<()> {
    let dtype = gemm::accumulator(g.dtype);
    let wide = widen(g, dtype)?;
    let sum = wide_result(out, dtype)?;
    // SAFETY: the sum's memory is fresh or the caller's; zero bytes are zero in every dtype.
    unsafe { sum.ptr_mut().write_bytes(0, sum.count() * dtype.size()) };
    let job = Fold::new(&wide, spec, sizes, &sum);
    match dtype {
        DType::F32 => job.run(|a: f32, b| a + b),
        DType::F64 => job.run(|a: f64, b| a + b),
        DType::I32 => job.run(i32::wrapping_add),
        DType::I64 => job.run(i64::wrapping_add),
        DType::Bool => job.run(|a: u8, b| a | b),
        DType::I8
        | DType::I16
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::F16
        | DType::BF16 => return Err(error::internal(format!("fold: no sums are in {dtype}"))),
    }
    // SAFETY: as the caller's.
    unsafe { narrow_into(&sum, out) };
    Ok(())
}

struct Fold {
    src: *const u8,
    dst: *mut u8,
    lead: Axis,
    /// Elements of one lead item of the result
    item: usize,
    /// Positions in C order without the innermost axis: sizes, strides in `g`, in the result
    rows: Vec<(usize, isize, isize)>,
    /// The innermost position axis, likewise
    row: (usize, isize, isize),
    /// Window elements in order: offsets in `g`, in the result
    places: Vec<(isize, isize)>,
}

// SAFETY: `g` is only read, and every lead item of the result is one thread's.
unsafe impl Sync for Fold {}

impl Fold {
    fn new(g: &Array, spec: &WindowSpec, sizes: &[usize], out: &Array) -> Fold {
        let (all, strides) = (g.shape().sizes(), g.layout.strides());
        let spatial = spec.size.len();
        let lead = all.len() - 2 * spatial;
        let own = row_major(sizes);
        let mut rows: Vec<_> = (0..spatial)
            .map(|i| (all[lead + i], strides[lead + i], own[i] * spec.stride[i] as isize))
            .collect();
        let row = rows.pop().unwrap_or((1, 0, 0));
        let mut places = vec![(0, 0)];
        for i in 0..spatial {
            let step = (strides[lead + spatial + i], own[i] * spec.dilation[i] as isize);
            let axis = |&(a, b): &(isize, isize)| {
                (0..spec.size[i] as isize).map(move |k| (a + k * step.0, b + k * step.1))
            };
            places = places.iter().flat_map(axis).collect();
        }
        Fold {
            src: g.ptr(),
            // SAFETY: fresh, or held by the caller.
            dst: unsafe { out.ptr_mut() },
            lead: Axis::new((0..lead).map(|i| (all[i], strides[i]))),
            item: sizes.iter().product(),
            rows,
            row,
            places,
        }
    }

    fn run<T: Copy>(&self, add: impl Fn(T, T) -> T + Copy + Sync) {
        let count: usize = self.rows.iter().map(|r| r.0).product();
        let work = count * self.row.0 * self.places.len();
        let items = self.lead.len();
        if items == 0 || work == 0 {
            return;
        }
        threads::for_each_chunk(items, (CHUNK / work).max(1), |range| {
            for i in range {
                // SAFETY: inside `g`; the item is ours.
                unsafe {
                    let src = self.src.cast::<T>().offset(self.lead.at(i));
                    self.item(src, self.dst.cast::<T>().add(i * self.item), count, add);
                }
            }
        });
    }

    unsafe fn item<T: Copy>(
        &self,
        src: *const T,
        dst: *mut T,
        count: usize,
        add: impl Fn(T, T) -> T,
    ) {
        let (n, from, to) = self.row;
        let mut pace = Pace::default();
        for &(window, place) in &self.places {
            for i in 0..count {
                pace.work(n);
                let (mut at, mut put, mut rest) = (window, place, i);
                for &(size, from, to) in self.rows.iter().rev() {
                    at += (rest % size) as isize * from;
                    put += (rest % size) as isize * to;
                    rest /= size;
                }
                // SAFETY: every position of every window lies inside both arrays.
                unsafe {
                    let (src, dst) = (src.offset(at), dst.offset(put));
                    if from == 1 && to == 1 {
                        for p in 0..n {
                            *dst.add(p) = add(*dst.add(p), *src.add(p));
                        }
                    } else {
                        for p in 0..n as isize {
                            *dst.offset(p * to) = add(*dst.offset(p * to), *src.offset(p * from));
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::copy::cast;
    use crate::cpu::testing::{bytes, fold, layouts, noise, random, values};
    use crate::ops::structural::windowed;
    use crate::shape::Shape;

    fn spec(size: &[usize], stride: &[usize], dilation: &[usize]) -> WindowSpec {
        WindowSpec { size: size.into(), stride: stride.into(), dilation: dilation.into() }
    }

    #[test]
    fn a_window_shows_the_elements_under_it() {
        let x = random(DType::I32, &[2, 7, 8], 1);
        let spec = spec(&[2, 3], &[2, 1], &[3, 2]);
        let all = values(&x);
        for x in layouts(&x) {
            let y = x.view(windowed(&x.layout, &spec));
            assert_eq!(y.shape(), &Shape::of(&[2, 2, 4, 2, 3]));
            for (i, got) in values(&y).into_iter().enumerate() {
                let (c, p, q, k, l) = (i / 48, i / 24 % 2, i / 6 % 4, i / 3 % 2, i % 3);
                assert_eq!(got, all[c * 56 + (2 * p + 3 * k) * 8 + q + 2 * l]);
            }
        }
    }

    #[test]
    fn fold_is_the_transpose_of_windows() {
        // ⟨windows(x), g⟩ = ⟨x, fold(g)⟩, exactly, for numbers whose sums are exact.
        let cases: [(&[usize], WindowSpec); 4] = [
            (&[3, 9], spec(&[3], &[2], &[1])),
            (&[2, 3, 8, 7], spec(&[2, 3], &[1, 1], &[2, 3])),
            (&[2, 5, 6, 7], spec(&[1, 2, 2], &[3, 1, 2], &[1, 4, 1])),
            (&[1, 4, 9], spec(&[2, 3], &[2, 3], &[1, 1])),
        ];
        for (sizes, spec) in cases {
            for dtype in [DType::F32, DType::F64, DType::I64] {
                let x = random(dtype, sizes, 2);
                let y = x.view(windowed(&x.layout, &spec));
                let g = random(dtype, &y.shape().sizes(), 3);
                let back = fold(&g, &spec, &sizes[sizes.len() - spec.size.len()..]).unwrap();
                assert_eq!((back.shape(), back.dtype), (x.shape(), dtype));
                let inner = |a: &Array, b: &Array| -> f64 {
                    values(a).iter().zip(values(b)).map(|(a, b)| a * b).sum()
                };
                assert_eq!(inner(&y, &g), inner(&x, &back));
            }
        }
    }

    #[test]
    fn folding_rounds_once_and_keeps_its_bits_over_layouts() {
        let spec = spec(&[3, 3], &[1, 2], &[1, 1]);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let g = noise(dtype, &[2, 4, 3, 3, 3], 4);
            let want = fold(&g, &spec, &[6, 7]).unwrap();
            for g in layouts(&g) {
                assert_eq!(bytes(&fold(&g, &spec, &[6, 7]).unwrap()), bytes(&want));
            }
            let wide = fold(&widen(&g, DType::F32).unwrap(), &spec, &[6, 7]).unwrap();
            assert_eq!(bytes(&cast(&wide, dtype).unwrap()), bytes(&want));
        }
    }
}
