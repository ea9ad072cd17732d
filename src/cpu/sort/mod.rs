//! Sorting along an axis, the order that sorts, and the first few of it.
//!
//! Promises: sorts are stable; NaN comes last in either direction; zeros of either sign are equal,
//! and so are all NaNs. Taking elements by `argsort` gives the bits of `sort`.

mod key;
mod network;
#[cfg(target_arch = "x86_64")]
mod quick;
mod radix;
#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::array::Array;
use crate::cpu::copy;
use crate::cpu::element::{Shared, with_element};
use crate::dtype::{DType, Width};
use crate::error::{self, Result};
use crate::layout::{Layout, Strides};
use crate::memory::{Buffer, block_bytes};
use crate::multiversion;
use crate::shape::Shape;
use crate::threads;

use key::{Item, Key, Place, Sortable};

/// There are no vectors to sort in.
#[cfg(not(target_arch = "x86_64"))]
mod quick {
    use super::key::Item;

    pub fn takes<I: Item>() -> bool {
        false
    }

    pub fn sort<I: Item>(_: &mut [I], _: &mut [I]) -> bool {
        false
    }
}

/// Fewer short rows are sorted one by one.
const FEW_ROWS: usize = 4;
/// Elements of short rows that one thread takes at a time.
const CHUNK: usize = 1 << 14;
/// Of rows up to this length many are prepared at a time.
const SHORT: usize = 1 << 10;
/// Rows at least this long are sorted by all threads, one row after the other.
const LONG: usize = 1 << 16;
/// The first few are selected from stretches of so many.
const STRETCH: usize = 1 << 20;
/// The first few are selected, not sorted, where a row is this many times as long.
const SELECT: usize = 8;

/// The elements of `x` in order along `axis`.
///
/// # Safety
/// `out` is in C order, of the result's type, and nobody else reads or writes it.
pub unsafe fn sort_into(x: &Array, axis: usize, descending: bool, out: &Array) -> Result<()> {
    let rows = Rows::new(x, axis)?;
    let sorted = rows.result(out)?;
    with_element!(x.dtype, T => match has_special::<T>(&rows.x) {
        false => sort_rows::<T>(&rows, descending, &sorted),
        true => sort_rows_by_position::<T>(&rows, descending, &sorted),
    })?;
    // SAFETY: as the caller's.
    unsafe { rows.restore(&sorted, out) };
    Ok(())
}

/// The positions (int64) of the first `k` elements of the order along `axis`, which is at least
/// that long: the best first, the first of equals before later ones.
///
/// # Safety
/// As for [`sort_into`].
pub unsafe fn positions_into(
    op: &str,
    x: &Array,
    k: usize,
    axis: usize,
    descending: bool,
    out: &Array,
) -> Result<()> {
    let rows = Rows::new(x, axis)?;
    let first = rows.result(out)?;
    with_element!(x.dtype, T => position_rows::<T>(op, &rows, k, descending, &first))?;
    // SAFETY: as the caller's.
    unsafe { rows.restore(&first, out) };
    Ok(())
}

/// The bytes that a sort of `x` takes for itself, as the counters of memory count them; `result` is
/// what it gives.
pub fn scratch(dtype: DType, x: &Layout, axis: usize, result: (DType, &Shape)) -> usize {
    let (rank, n) = (x.shape().rank(), x.shape()[axis].value());
    let is_last = axis == rank - 1;
    let copied = block_bytes(x.shape().count() * dtype.size());
    let apart = block_bytes(result.1.count() * result.0.size());
    // Places are wider than keys, where it comes to them.
    let place = match dtype.width() {
        Width::B1 | Width::B2 | Width::B4 => 8,
        Width::B8 => size_of::<key::Wide>(),
    };
    let item = if result.0 == dtype && !dtype.is_float() { dtype.size() } else { place };
    let long = if n >= LONG { block_bytes(2 * n * item) } else { 0 };
    let copies = !moved_layout(x, axis, rank - 1).is_contiguous();
    long + if copies { copied } else { 0 } + if is_last { 0 } else { apart }
}

/// An operand with one axis brought to the end, in C order.
struct Rows {
    x: Array,
    axis: usize,
    n: usize,
    count: usize,
}

impl Rows {
    fn new(x: &Array, axis: usize) -> Result<Rows> {
        let x = copy::contiguous(&moved(x, axis, x.shape().rank() - 1))?;
        let n = x.shape()[x.shape().rank() - 1].value();
        let count = x.count().checked_div(n).unwrap_or(0);
        Ok(Rows { x, axis, n, count })
    }

    /// Where the rows of a result go: its own memory where the axis is the last, else a fresh
    /// array.
    fn result(&self, out: &Array) -> Result<Array> {
        let last = out.shape().rank() - 1;
        if self.axis == last {
            return Ok(out.clone());
        }
        Array::uninit(out.dtype, moved(out, self.axis, last).shape().clone())
    }

    /// Puts the axis of a result made apart back in its place.
    unsafe fn restore(&self, rows: &Array, out: &Array) {
        if !rows.data.same(&out.data) {
            // SAFETY: the caller holds the output.
            unsafe { copy::copy_into(out, &moved(rows, rows.shape().rank() - 1, self.axis)) };
        }
    }

    /// Whether rows are sorted side by side.
    fn are_short<I: Item>(&self) -> bool {
        let is_better = network::takes::<I>() && !quick::takes::<I>();
        is_better && self.n <= network::MOST && self.count >= FEW_ROWS
    }

    /// Sorts rows side by side, of which `item(row, i)` gives the items and `put(row, i, item)`
    /// takes the first `k`.
    fn side_by_side<I: Item>(
        &self,
        item: impl Fn(usize, usize) -> I + Sync,
        k: usize,
        put: impl Fn(usize, usize, I) + Sync,
    ) {
        let (n, side) = (self.n, network::SIDE);
        let groups = self.count.div_ceil(side);
        threads::for_each_chunk(groups, (CHUNK / (n * side).max(1)).max(1), |range| {
            let mut room: network::Room<I> =
                [[MaybeUninit::uninit(); network::SIDE]; network::MOST];
            for first in range.map(|group| group * side) {
                let here = side.min(self.count - first);
                for (i, items) in room.iter_mut().enumerate().take(n) {
                    // A last group of fewer rows has one of them several times.
                    *items =
                        std::array::from_fn(|r| MaybeUninit::new(item(first + r.min(here - 1), i)));
                }
                // SAFETY: so many items of every row are filled.
                unsafe { network::sort(&mut room, n) };
                for (r, row) in (first..first + here).enumerate() {
                    for (i, items) in room.iter().enumerate().take(k) {
                        // SAFETY: as above; `k` is at most `n`.
                        put(row, i, unsafe { items[r].assume_init() });
                    }
                }
            }
        });
    }

    /// Runs `body(row, scratch)` for all rows: several at the same time if they are short. The
    /// scratch has `bytes` bytes, aligned to 8, and belongs to one call.
    fn each(&self, bytes: usize, body: impl Fn(usize, *mut u8) + Sync) -> Result<()> {
        if self.n >= LONG {
            let scratch = Buffer::alloc(bytes)?;
            // SAFETY: fresh, and used by one call at a time.
            (0..self.count).for_each(|row| body(row, unsafe { scratch.ptr_mut() }));
            return Ok(());
        }
        threads::for_each_chunk(self.count, (CHUNK / self.n.max(1)).max(1), |range| {
            let mut scratch: Vec<u64> = Vec::with_capacity(bytes.div_ceil(8));
            range.for_each(|row| body(row, scratch.as_mut_ptr().cast()));
        });
        Ok(())
    }
}

/// Sorts items in the fastest way that the processor has; `spare` is as long.
fn order<I: Item>(items: &mut [I], spare: &mut [I]) {
    if !quick::sort(items, spare) {
        radix::sort(items, spare);
    }
}

multiversion! {
    /// The keys of `n` elements.
    ///
    /// # Safety
    /// So many can be read, and written.
    unsafe fn directed_keys[T](x: *const T, n: usize, descending: bool, keys: *mut T::Key)
    where [T: Sortable] {
        for i in 0..n {
            // SAFETY: by contract.
            unsafe { keys.add(i).write((*x.add(i)).directed_key(descending)) };
        }
    }

    /// The elements of `n` keys.
    ///
    /// # Safety
    /// As for [`directed_keys`].
    unsafe fn elements[T](keys: *const T::Key, n: usize, descending: bool, to: *mut T)
    where [T: Sortable] {
        for i in 0..n {
            // SAFETY: by contract.
            unsafe {
                let key = *keys.add(i);
                to.add(i).write(T::of_key(if descending { key.inverse() } else { key }));
            }
        }
    }

    /// Whether any element is a NaN or a negative zero.
    unsafe fn any_special[T](x: &[T]) -> bool
    where [T: Sortable] {
        x.iter().fold(false, |any, x| any | x.is_special())
    }
}

fn sort_rows<T: Sortable>(rows: &Rows, descending: bool, out: &Array) -> Result<()> {
    let n = rows.n;
    let x = Shared::reading(rows.x.ptr().cast::<T>());
    // SAFETY: fresh; every row is filled by its own call.
    let to = Shared::new(unsafe { out.ptr_mut() }.cast::<T>());
    if rows.are_short::<T::Key>() {
        let at = |row: usize, i: usize| (row * n + i) as isize;
        // SAFETY: an element of the operand.
        let key = |row, i| unsafe { (*x.at(at(row, i))).directed_key(descending) };
        let put = |row, i, key: T::Key| {
            let element = T::of_key(if descending { key.inverse() } else { key });
            // SAFETY: an element of the result, which one call writes.
            unsafe { *to.at(at(row, i)) = element };
        };
        rows.side_by_side(key, n, put);
        return Ok(());
    }
    if n <= SHORT {
        // Keys of many rows are made at a time.
        threads::for_each_chunk(rows.count, CHUNK / n.max(1), |range| {
            let (at, count) = ((range.start * n) as isize, range.len() * n);
            let mut keys: Vec<T::Key> = Vec::with_capacity(count + n);
            // SAFETY: rows of `n` elements, and memory for their keys and one row's more, each
            // written before it is read.
            unsafe {
                let keys = keys.as_mut_ptr();
                directed_keys::<T>(x.at(at), count, descending, keys);
                let spare = std::slice::from_raw_parts_mut(keys.add(count), n);
                for row in 0..range.len() {
                    order(std::slice::from_raw_parts_mut(keys.add(row * n), n), spare);
                }
                elements::<T>(keys, count, descending, to.at(at));
            }
        });
        return Ok(());
    }
    rows.each(2 * n * size_of::<T::Key>(), |row, scratch| {
        let at = (row * n) as isize;
        let keys = Shared::new(scratch.cast::<T::Key>());
        // SAFETY: rows of `n` elements, scratch for twice as many keys, each written before it is
        // read.
        unsafe {
            threads::for_each_chunk(n, LONG, |range| {
                let (x, keys) = (x.at(at + range.start as isize), keys.at(range.start as isize));
                directed_keys::<T>(x, range.len(), descending, keys);
            });
            let [items, spare] =
                [keys.at(0), keys.at(n as isize)].map(|p| std::slice::from_raw_parts_mut(p, n));
            order(items, spare);
            threads::for_each_chunk(n, LONG, |range| {
                let (keys, to) = (keys.at(range.start as isize), to.at(at + range.start as isize));
                elements::<T>(keys, range.len(), descending, to);
            });
        }
    })
}

/// For elements that cannot be told from their keys.
fn sort_rows_by_position<T: Sortable>(rows: &Rows, descending: bool, out: &Array) -> Result<()> {
    let positions = Array::uninit(DType::I64, rows.x.shape().clone())?;
    position_rows::<T>("sort", rows, rows.n, descending, &positions)?;
    let (x, from) =
        (Shared::reading(rows.x.ptr().cast::<T>()), Shared::reading(positions.ptr().cast::<i64>()));
    // SAFETY: fresh; every element is written once.
    let to = Shared::new(unsafe { out.ptr_mut() }.cast::<T>());
    threads::for_each_chunk(rows.x.count(), LONG, |range| {
        for i in range {
            let row = i / rows.n * rows.n;
            // SAFETY: positions lie in their row.
            unsafe { *to.at(i as isize) = *x.at(row as isize + *from.at(i as isize) as isize) };
        }
    });
    Ok(())
}

/// Whether a row holds a NaN or a negative zero.
fn has_special<T: Sortable>(x: &Array) -> bool {
    if !T::DTYPE.is_float() {
        return false;
    }
    let from = Shared::reading(x.ptr().cast::<T>());
    let found = AtomicBool::new(false);
    threads::for_each_chunk(x.count(), LONG, |range| {
        // SAFETY: in C order; any elements will do.
        unsafe {
            let part = std::slice::from_raw_parts(from.at(range.start as isize), range.len());
            if !found.load(Relaxed) && any_special::<T>(part) {
                found.store(true, Relaxed);
            }
        }
    });
    found.load(Relaxed)
}

/// The first `k` positions of every row's order.
fn position_rows<T: Sortable>(
    op: &str,
    rows: &Rows,
    k: usize,
    descending: bool,
    out: &Array,
) -> Result<()> {
    type At<T> = <<T as Sortable>::Key as Key>::Place;
    let n = rows.n;
    if n.saturating_sub(1) > At::<T>::LAST {
        return Err(error::too_large(op, rows.x.shape()));
    }
    let x = Shared::reading(rows.x.ptr().cast::<T>());
    // SAFETY: fresh; every row is filled by its own call.
    let to = Shared::new(unsafe { out.ptr_mut() }.cast::<i64>());
    if rows.are_short::<At<T>>() && k > 0 {
        let place = |row: usize, i: usize| {
            // SAFETY: an element of the operand.
            let x = unsafe { *x.at((row * n + i) as isize) };
            At::<T>::new(x.directed_key(descending), i)
        };
        let put = |row: usize, i: usize, place: At<T>| {
            // SAFETY: an element of the result, which one call writes.
            unsafe { *to.at((row * k + i) as isize) = place.position() as i64 };
        };
        rows.side_by_side(place, k, put);
        return Ok(());
    }
    rows.each(2 * n * size_of::<At<T>>(), |row, scratch| {
        let (at, places) = ((row * n) as isize, Shared::new(scratch.cast::<At<T>>()));
        // SAFETY: rows of `n` elements, scratch for twice as many places, each written before it is
        // read; `k <= n` results.
        unsafe {
            threads::for_each_chunk(n, LONG, |range| {
                for i in range {
                    let key = (*x.at(at + i as isize)).directed_key(descending);
                    places.at(i as isize).write(At::<T>::new(key, i));
                }
            });
            let [items, spare] =
                [places.at(0), places.at(n as isize)].map(|p| std::slice::from_raw_parts_mut(p, n));
            if 0 < k && k < n / SELECT && k <= STRETCH && n > network::MOST {
                select(items, k);
                items[..k].sort_unstable();
            } else if k > 0 {
                order(items, spare);
            }
            threads::for_each_chunk(k, LONG, |range| {
                for i in range.start as isize..range.end as isize {
                    *to.at((row * k) as isize + i) = (*places.at(i)).position() as i64;
                }
            });
        }
    })
}

/// Brings the `k` least items to the front, in any order: those of each stretch meet the least of
/// all stretches before, so that nothing that cannot be broken off is long.
fn select<I: Ord + Copy>(items: &mut [I], k: usize) {
    let mut end = items.len().min(2 * STRETCH);
    items[..end].select_nth_unstable(k - 1);
    while end < items.len() {
        threads::pause();
        let n = STRETCH.min(items.len() - end);
        items.copy_within(end..end + n, k);
        items[..k + n].select_nth_unstable(k - 1);
        end += n;
    }
}

/// A view with one axis moved to another place, the others in order.
fn moved(x: &Array, from: usize, to: usize) -> Array {
    x.view(moved_layout(&x.layout, from, to))
}

fn moved_layout(x: &Layout, from: usize, to: usize) -> Layout {
    let mut dims: Vec<_> = x.shape().dims().to_vec();
    let mut strides: Strides = x.strides();
    let (d, stride) = (dims.remove(from), strides.remove(from));
    dims.insert(to, d);
    strides.insert(to, stride);
    Layout::strided(Shape::from_dims(&dims), &strides, x.offset())
}
