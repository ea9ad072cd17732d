//! The inner loops of pooling.

use super::{Line, W};
use crate::cpu::element::{Element, Number};
use crate::cpu::gemm::kernel::prefetch;
use crate::cpu::reduce::{Combine, Max};
use crate::multiversion;

/// Bytes ahead of what is read that are fetched: each row is read once, and short, and between two
/// of them others are written.
const AHEAD: usize = 2048;

multiversion! {
    /// Copies rows to where they lie padded, `size[1]` numbers apart.
    ///
    /// # Safety
    /// There are `size[0]` rows, `next` elements apart, and room for them.
    pub unsafe fn whole[T](x: *const T, size: [usize; 2], next: isize, row: &Line, to: *mut T::Number)
    where [T: Element] {
        for i in 0..size[0] {
            // SAFETY: by contract.
            unsafe {
                let (x, to) =
                    (x.wrapping_offset(i as isize * next), to.add(i * size[1] + row.padding));
                if row.step == 1 {
                    (0..row.n).for_each(|k| *to.add(k) = (*x.add(k)).widen());
                } else {
                    (0..row.n).for_each(|k| *to.add(k) = (*x.offset(k as isize * row.step)).widen());
                }
            }
        }
    }

    /// The same with the elements of even places before those of odd ones, `each` numbers behind.
    /// (Of every other element the compiler makes slower code in the widest registers.)
    ///
    /// # Safety
    /// As for [`whole`].
    #[expect(dead_code, reason = "the version is asked for once, not at each call")]
    pub unsafe fn halves[T](x: *const T, size: [usize; 2], next: isize, row: &Line, each: usize, to: *mut T::Number)
    where [T: Element] {
        // Where the first two elements go, and those behind them.
        let [first, second] = match row.padding % 2 {
            0 => [row.padding / 2, each + row.padding / 2],
            _ => [each + row.padding / 2, row.padding / 2 + 1],
        };
        for i in 0..size[0] {
            // SAFETY: by contract.
            unsafe {
                let (x, to) = (x.wrapping_offset(i as isize * next), to.add(i * size[1]));
                let mut done = 0;
                if row.step == 1 {
                    let ends = [to.add(first), to.add(second)];
                    done = pairs::<T, W>(x, done, row.n, ends);
                    done = pairs::<T, { W / 4 }>(x, done, row.n, ends);
                }
                for k in done..row.n {
                    let at = if k % 2 == 0 { first } else { second };
                    *to.add(at + k / 2) = (*x.offset(k as isize * row.step)).widen();
                }
            }
        }
    }

    /// Of each of `size[0]` rows the largest elements of what windows show: `size[1]` results, whole
    /// vectors, of which those behind the last window mean nothing.
    ///
    /// # Safety
    /// The rows are `apart`, results read what `taps` says from where they are on, and there is room
    /// for the results.
    pub unsafe fn across[T](rows: *const T::Number, apart: usize, taps: &[usize], size: [usize; 2], to: *mut T::Number)
    where [T: Element] {
        for i in 0..size[0] {
            for at in (0..size[1]).step_by(W) {
                // SAFETY: by contract.
                unsafe {
                    let lanes = largest::<T>(rows.add(i * apart + at), taps);
                    to.add(i * size[1] + at).cast::<[T::Number; W]>().write_unaligned(lanes);
                }
            }
        }
    }

    /// The largest of the numbers at these places, for `size[0]` rows of `size[1]` results; the
    /// numbers for the next row are `next` behind.
    ///
    /// # Safety
    /// There are whole vectors of numbers at the places, and room for the results.
    pub unsafe fn down[T](kept: *const T::Number, places: &[usize], next: usize, size: [usize; 2], out: *mut T)
    where [T: Element] {
        let [rows, count] = size;
        for i in 0..rows {
            for at in (0..count).step_by(W) {
                // SAFETY: by contract. A row is written beyond its end where there are others
                // behind it, which are written later.
                unsafe {
                    let lanes = largest::<T>(kept.add(i * next + at), places);
                    let mut made = [T::narrow(T::Number::ZERO); W];
                    made.iter_mut().zip(&lanes).for_each(|(made, &x)| *made = T::narrow(x));
                    let out = out.add(i * count + at);
                    match i * count + at + W <= rows * count {
                        true => out.cast::<[T; W]>().write_unaligned(made),
                        false => out.copy_from_nonoverlapping(made.as_ptr(), W.min(count - at)),
                    }
                }
            }
        }
    }
}

/// Takes the elements of even and of odd places from `done` on apart, `N` pairs at a time, as long as
/// there are so many; says where it stopped.
///
/// # Safety
/// The elements up to `n` can be read, and half as many written at both ends.
#[inline(always)]
unsafe fn pairs<T: Element, const N: usize>(
    x: *const T,
    mut done: usize,
    n: usize,
    ends: [*mut T::Number; 2],
) -> usize {
    while done + 2 * N <= n {
        // SAFETY: by contract.
        unsafe {
            let pairs = x.add(done).cast::<[[T; 2]; N]>().read_unaligned();
            for line in (0..size_of_val(&pairs)).step_by(64) {
                prefetch(x.add(done).wrapping_byte_add(AHEAD + line));
            }
            for (k, to) in ends.into_iter().enumerate() {
                let half: [T::Number; N] = std::array::from_fn(|i| pairs[i][k].widen());
                to.add(done / 2).cast::<[T::Number; N]>().write_unaligned(half);
            }
        }
        done += 2 * N;
    }
    done
}

/// The largest elements of the vectors at these places; less than any number where there are none.
///
/// # Safety
/// They can be read.
#[inline(always)]
unsafe fn largest<T: Element>(x: *const T::Number, places: &[usize]) -> [T::Number; W] {
    // SAFETY: by contract.
    let read = |&at: &usize| unsafe { x.add(at).cast::<[T::Number; W]>().read_unaligned() };
    let Some((first, rest)) = places.split_first() else { return [Max::neutral::<T>(); W] };
    let mut lanes = read(first);
    for x in rest.iter().map(read) {
        for i in 0..W {
            lanes[i] = Max::join(lanes[i], x[i]);
        }
    }
    lanes
}
