//! Quicksort in vectors, for items that order as unsigned integers: partitions by compression, and
//! networks in registers for what is short.
//!
//! Promises: items come out in order. Items are compared whole, so those that compare equal must be
//! the same; then the result depends on no pivot and on no number of threads.
//!
//! Sources: Hoare: Quicksort, 1962. Batcher: Sorting networks and their applications, 1968 (bitonic
//! merges). Bramas: A novel hybrid quicksort algorithm vectorized using AVX-512, 2017.

mod vectors;

use std::ops::Range;

use super::key::{Item, Lane};
use super::radix;
use crate::cpu::element::Shared;
use crate::simd::{Isa, isa};
use crate::threads;
use vectors::{Doubles, Eight, Words};

/// Whether the processor has the instructions, and items are integers as they lie. Without AVX-512
/// these are of 32 bits: vectors of four are not worth it.
pub fn takes<I: Item>() -> bool {
    match I::LANE {
        Lane::Bits32 => isa() >= Isa::V3,
        Lane::Bits64 => isa() >= Isa::V4,
        Lane::Other => false,
    }
}

/// Sorts the items, if they are such and there are the instructions; says whether. `spare` is as
/// long.
pub fn sort<I: Item>(items: &mut [I], spare: &mut [I]) -> bool {
    if !takes::<I>() {
        return false;
    }
    let (items, spare, n) = (items.as_mut_ptr(), spare.as_mut_ptr(), items.len());
    // SAFETY: the processor has the instructions; items are such integers by their word.
    unsafe {
        match (I::LANE, isa()) {
            (Lane::Bits32, Isa::V4) => sort_by::<Words>(items.cast(), spare.cast(), n),
            (Lane::Bits32, _) => sort_by::<Eight>(items.cast(), spare.cast(), n),
            (Lane::Bits64, _) => sort_by::<Doubles>(items.cast(), spare.cast(), n),
            (Lane::Other, _) => return false,
        }
    }
    true
}

/// Vectors that the longest network sorts.
const MOST: usize = 16;
/// From here on items are first parted into buckets, which threads sort apart.
const MANY: usize = 1 << 16;
/// The most buckets.
const BUCKETS: usize = 64;
/// Items drawn for each bound of a bucket.
const DRAWN: usize = 32;
/// Parts of the items that are brought into the order of buckets apart.
const PARTS: usize = 16;
/// Items that are moved between two looks whether the sort is to be broken off.
const STRETCH: usize = 1 << 16;
/// With fewer items, a pivot is the median of one vector, else of several.
const FEW: usize = 1 << 12;

/// A vector of unsigned integers.
trait Vector: Copy {
    /// An integer.
    type Lane: Item;
    /// Integers of a vector.
    const LANES: usize;
    /// Integers at `p`.
    unsafe fn load(p: *const Self::Lane) -> Self;
    /// The first `count` at `p`, and the largest integer in the other lanes.
    unsafe fn load_first(p: *const Self::Lane, count: usize) -> Self;
    unsafe fn store(self, p: *mut Self::Lane);
    unsafe fn store_first(self, p: *mut Self::Lane, count: usize);
    unsafe fn splat(x: Self::Lane) -> Self;
    unsafe fn min(self, other: Self) -> Self;
    unsafe fn max(self, other: Self) -> Self;
    /// The lanes that are at most `bound`; with `STRICT`, below it.
    unsafe fn within<const STRICT: bool>(self, bound: Self) -> u32;
    /// The chosen lanes side by side, from the first lane on.
    unsafe fn compress(self, lanes: u32) -> Self;
    /// The smaller of lane `i` and the other's lane `i ^ X`; the larger where `i` has the bit
    /// `HIGH`.
    unsafe fn meet<const X: usize, const HIGH: usize>(self, other: Self) -> Self;
    /// The lanes of both in turns: all of the result's vector 0, or 1.
    unsafe fn riffle<const VECTOR: usize>(self, other: Self) -> Self;
    /// [`part_by`] with the instructions of this vector.
    ///
    /// # Safety
    /// As there; the processor has them.
    unsafe fn part<const STRICT: bool>(
        items: *mut Self::Lane,
        spare: *mut Self::Lane,
        stretch: Range<usize>,
        pivot: Self::Lane,
        ends: [usize; 2],
    ) -> [usize; 2];
    /// [`network_by`] likewise.
    ///
    /// # Safety
    /// As there; the processor has the instructions.
    unsafe fn network<const N: usize>(items: *mut Self::Lane, n: usize);
}

/// Sorts `n` integers.
///
/// # Safety
/// `n` can be read and written at both pointers; the processor has the vector's instructions.
unsafe fn sort_by<V: Vector>(items: *mut V::Lane, spare: *mut V::Lane, n: usize) {
    // SAFETY: by contract.
    unsafe {
        match n >= MANY && threads::num_threads() > 1 {
            true => in_buckets::<V>(items, spare, n),
            false => quick::<V>(items, spare, n, depth(n)),
        }
    }
}

/// Partitions that a sort of `n` items may be deep, before it is done in another way: twice as
/// many as with medians for pivots.
fn depth(n: usize) -> u32 {
    2 * (usize::BITS - n.leading_zeros())
}

/// # Safety
/// As for [`sort_by`].
unsafe fn quick<V: Vector>(items: *mut V::Lane, spare: *mut V::Lane, mut n: usize, mut depth: u32) {
    let mut items = items;
    // SAFETY: by contract; both sides lie within the items.
    unsafe {
        while n > MOST * V::LANES {
            if depth == 0 {
                let [items, spare] = [items, spare].map(|p| std::slice::from_raw_parts_mut(p, n));
                return radix::sort(items, spare);
            }
            depth -= 1;
            let pivot = pivot::<V>(items, n);
            let left = partition::<V, false>(items, spare, n, pivot);
            if left == n {
                // The pivot is the largest: what equals it comes last.
                n = partition::<V, true>(items, spare, n, pivot);
            } else if left < n - left {
                quick::<V>(items, spare, left, depth);
                (items, n) = (items.add(left), n - left);
            } else {
                quick::<V>(items.add(left), spare, n - left, depth);
                n = left;
            }
        }
        short::<V>(items, n);
    }
}

/// An integer near the middle of the order.
///
/// # Safety
/// `n` items can be read, at least four vectors.
unsafe fn pivot<V: Vector>(items: *const V::Lane, n: usize) -> V::Lane {
    const VECTORS: usize = 4;
    let count = if n < FEW { V::LANES } else { VECTORS * V::LANES };
    // SAFETY: by contract; no vector has more than 16 lanes.
    unsafe {
        let mut drawn = [*items; VECTORS * 16];
        draw(&mut drawn[..count], items, n);
        short::<V>(drawn.as_mut_ptr(), count);
        drawn[(count - 1) / 2]
    }
}

/// Takes items from places that are evenly apart.
///
/// # Safety
/// `n` items can be read, at least as many as are taken.
unsafe fn draw<I: Item>(drawn: &mut [I], items: *const I, n: usize) {
    let step = n / drawn.len();
    for (i, drawn) in drawn.iter_mut().enumerate() {
        // SAFETY: below `n`.
        *drawn = unsafe { *items.add(i * step + step / 2) };
    }
}

/// Brings the items that are at most the pivot (with `STRICT`, below it) before the others;
/// says how many they are.
///
/// # Safety
/// As for [`sort_by`].
unsafe fn partition<V: Vector, const STRICT: bool>(
    items: *mut V::Lane,
    spare: *mut V::Lane,
    n: usize,
    pivot: V::Lane,
) -> usize {
    let mut ends = [0, 0];
    // SAFETY: by contract.
    unsafe {
        for start in (0..n).step_by(STRETCH) {
            threads::pause();
            let stretch = start..n.min(start + STRETCH);
            ends = V::part::<STRICT>(items, spare, stretch, pivot, ends);
        }
        let [left, right] = ends;
        copy(items.add(left), spare, right);
        left
    }
}

/// # Safety
/// `n` items can be read and written, and do not overlap.
unsafe fn copy<I: Item>(to: *mut I, from: *const I, n: usize) {
    threads::in_stretches(0..n, STRETCH, |part| {
        // SAFETY: below `n`.
        unsafe {
            to.add(part.start).copy_from_nonoverlapping(from.add(part.start), part.len());
        }
    });
}

/// Moves a stretch of items: those of the left side to the items themselves, those of the right
/// side to `spare`, from the ends so far on; gives the ends.
///
/// # Safety
/// As for [`sort_by`]; the ends are not more together than where the stretch starts.
#[inline(always)]
unsafe fn part_by<V: Vector, const STRICT: bool>(
    items: *mut V::Lane,
    spare: *mut V::Lane,
    stretch: Range<usize>,
    pivot: V::Lane,
    [mut left, mut right]: [usize; 2],
) -> [usize; 2] {
    // SAFETY: whole vectors are stored where the items before the next were read, and at no
    // higher place of `spare`.
    unsafe {
        let pivot = V::splat(pivot);
        let mut at = stretch.start;
        while at + V::LANES <= stretch.end {
            let x = V::load(items.add(at));
            let lanes = x.within::<STRICT>(pivot);
            x.compress(lanes).store(items.add(left));
            x.compress(!lanes).store(spare.add(right));
            let count = lanes.count_ones() as usize;
            left += count;
            right += V::LANES - count;
            at += V::LANES;
        }
        let rest = stretch.end - at;
        if rest > 0 {
            let (x, all) = (V::load_first(items.add(at), rest), (1 << rest) - 1);
            let lanes = x.within::<STRICT>(pivot) & all;
            let count = lanes.count_ones() as usize;
            x.compress(lanes).store_first(items.add(left), count);
            x.compress(!lanes & all).store_first(spare.add(right), rest - count);
            left += count;
            right += rest - count;
        }
    }
    [left, right]
}

/// Sorts at most [`MOST`] vectors of items.
///
/// # Safety
/// They can be read and written; the processor has the vector's instructions.
unsafe fn short<V: Vector>(items: *mut V::Lane, n: usize) {
    // SAFETY: by contract.
    unsafe {
        match n.div_ceil(V::LANES) {
            0 => {}
            1 => V::network::<1>(items, n),
            2 => V::network::<2>(items, n),
            3..=4 => V::network::<4>(items, n),
            5..=8 => V::network::<8>(items, n),
            _ => V::network::<16>(items, n),
        }
    }
}

/// Sorts items that are at most `N` vectors: first the columns, that is the same lanes of all
/// vectors; then neighbouring columns are merged, until all are one, whose items are put side by
/// side.
///
/// # Safety
/// As for [`short`].
#[inline(always)]
unsafe fn network_by<V: Vector, const N: usize>(items: *mut V::Lane, n: usize) {
    let count = |i: usize| V::LANES.min(n.saturating_sub(i * V::LANES));
    // SAFETY: by contract; what lies behind the items is neither read nor written.
    unsafe {
        let mut all = [V::load_first(items, 0); N];
        for (i, x) in all.iter_mut().enumerate() {
            *x = V::load_first(items.wrapping_add(i * V::LANES), count(i));
        }
        mirror::<V, N, 1>(&mut all);
        mirror::<V, N, 2>(&mut all);
        mirror::<V, N, 4>(&mut all);
        mirror::<V, N, 8>(&mut all);
        merge::<V, N, 1, 1>(&mut all);
        merge::<V, N, 3, 2>(&mut all);
        merge::<V, N, 7, 4>(&mut all);
        if V::LANES > 8 {
            merge::<V, N, 15, 8>(&mut all);
        }
        let mut turns = N;
        while turns > 1 {
            let before = all;
            for i in 0..N / 2 {
                all[2 * i] = before[i].riffle::<0>(before[i + N / 2]);
                all[2 * i + 1] = before[i].riffle::<1>(before[i + N / 2]);
            }
            turns /= 2;
        }
        for (i, x) in all.iter().enumerate() {
            x.store_first(items.wrapping_add(i * V::LANES), count(i));
        }
    }
}

/// Merges neighbouring runs of `RUN` items of each column, if there are two.
#[inline(always)]
unsafe fn mirror<V: Vector, const N: usize, const RUN: usize>(all: &mut [V; N]) {
    if RUN >= N {
        return;
    }
    // SAFETY: as the caller's.
    unsafe {
        // Each item of a run meets the one that is as far from the end of the next run. The
        // smaller ones then rise and fall, and so do the larger ones.
        for i in 0..N / 2 {
            let (first, at) = (i / RUN * 2 * RUN, i % RUN);
            exchange(all, first + at, first + 2 * RUN - 1 - at);
        }
        halve::<V, N, RUN>(all);
    }
}

/// Sorts, within each column, runs of `RUN` items that rise and fall.
#[inline(always)]
unsafe fn halve<V: Vector, const N: usize, const RUN: usize>(all: &mut [V; N]) {
    // SAFETY: as the caller's.
    unsafe {
        if RUN > 8 {
            apart::<V, N, 8>(all);
        }
        if RUN > 4 {
            apart::<V, N, 4>(all);
        }
        if RUN > 2 {
            apart::<V, N, 2>(all);
        }
        if RUN > 1 {
            apart::<V, N, 1>(all);
        }
    }
}

/// Exchanges the items of columns that are `D` apart.
#[inline(always)]
unsafe fn apart<V: Vector, const N: usize, const D: usize>(all: &mut [V; N]) {
    for i in 0..N / 2 {
        let at = i / D * 2 * D + i % D;
        // SAFETY: as the caller's.
        unsafe { exchange(all, at, at + D) };
    }
}

/// Puts the smaller of two vectors first, lane by lane.
#[inline(always)]
unsafe fn exchange<V: Vector, const N: usize>(all: &mut [V; N], a: usize, b: usize) {
    // SAFETY: as the caller's.
    unsafe { (all[a], all[b]) = (all[a].min(all[b]), all[a].max(all[b])) };
}

/// Merges runs of `HALF` columns with the next; `X` is `2 HALF − 1`.
#[inline(always)]
unsafe fn merge<V: Vector, const N: usize, const X: usize, const HALF: usize>(all: &mut [V; N]) {
    // SAFETY: as the caller's.
    unsafe {
        let before = *all;
        for i in 0..N {
            all[i] = before[i].meet::<X, HALF>(before[N - 1 - i]);
        }
        for x in all.iter_mut() {
            if HALF > 4 {
                *x = x.meet::<4, 4>(*x);
            }
            if HALF > 2 {
                *x = x.meet::<2, 2>(*x);
            }
            if HALF > 1 {
                *x = x.meet::<1, 1>(*x);
            }
        }
        halve::<V, N, N>(all);
    }
}

/// Parts the items into buckets, which threads sort.
///
/// # Safety
/// As for [`sort_by`].
unsafe fn in_buckets<V: Vector>(items: *mut V::Lane, spare: *mut V::Lane, n: usize) {
    let buckets = (4 * threads::num_threads()).next_power_of_two().min(BUCKETS);
    let length = n.div_ceil(PARTS);
    let parts = n.div_ceil(length);
    let mut counts = [[0; BUCKETS]; PARTS];
    let [from, to] = [items, spare].map(Shared::new);
    // SAFETY: by contract; parts, buckets and what they have in common are apart.
    unsafe {
        let bounds = bounds::<V>(items, n, buckets);
        let all = Shared::new(counts.as_mut_ptr());
        threads::parallel_for(parts, &|i| {
            let (start, counts) = (i * length, &mut *all.at(i as isize));
            let [own, room] = [from, to].map(|p| p.at(start as isize));
            split::<V>(own, room, length.min(n - start), &bounds, &mut counts[..buckets]);
        });
        let mut starts = [0; BUCKETS + 1];
        for bucket in 0..buckets {
            let own = counts[..parts].iter().map(|counts| counts[bucket]).sum::<usize>();
            starts[bucket + 1] = starts[bucket] + own;
        }
        threads::parallel_for(buckets, &|bucket| {
            let mut at = starts[bucket];
            for (i, counts) in counts[..parts].iter().enumerate() {
                let piece = i * length + counts[..bucket].iter().sum::<usize>();
                let piece = from.at(piece as isize).cast_const();
                to.at(at as isize).copy_from_nonoverlapping(piece, counts[bucket]);
                at += counts[bucket];
            }
        });
        threads::parallel_for(buckets, &|bucket| {
            let (start, n) = (starts[bucket], starts[bucket + 1] - starts[bucket]);
            let [own, dealt] = [from, to].map(|p| p.at(start as isize));
            quick::<V>(dealt, own, n, depth(n));
            copy(own, dealt, n);
        });
    }
}

/// Brings the items of each bucket together, in the order of the buckets, and counts them.
///
/// # Safety
/// As for [`sort_by`].
unsafe fn split<V: Vector>(
    items: *mut V::Lane,
    spare: *mut V::Lane,
    n: usize,
    bounds: &[V::Lane],
    counts: &mut [usize],
) {
    if bounds.is_empty() {
        counts[0] = n;
        return;
    }
    let middle = bounds.len() / 2;
    let (lower, upper) = counts.split_at_mut(middle + 1);
    // SAFETY: by contract; both sides lie within the items.
    unsafe {
        let left = partition::<V, false>(items, spare, n, bounds[middle]);
        split::<V>(items, spare, left, &bounds[..middle], lower);
        split::<V>(items.add(left), spare, n - left, &bounds[middle + 1..], upper);
    }
}

/// The largest integer of each bucket but the last, chosen so that buckets are about alike.
///
/// # Safety
/// `n` items can be read, at least [`MANY`].
unsafe fn bounds<V: Vector>(items: *const V::Lane, n: usize, buckets: usize) -> Vec<V::Lane> {
    // SAFETY: by contract.
    unsafe {
        let mut drawn = vec![*items; 2 * buckets * DRAWN];
        let (drawn, spare) = drawn.split_at_mut(buckets * DRAWN);
        draw(drawn, items, n);
        quick::<V>(drawn.as_mut_ptr(), spare.as_mut_ptr(), drawn.len(), depth(drawn.len()));
        (1..buckets).map(|bucket| drawn[bucket * DRAWN - 1]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls a function for the vectors of 32 bits that this machine has.
    macro_rules! each {
        ($call:ident) => {
            if Isa::V3.is_available() {
                $call::<Eight>();
            }
            if Isa::V4.is_available() {
                $call::<Words>();
            }
        };
    }

    fn items(n: u32) -> Vec<u32> {
        (0..n).map(|i| i.wrapping_mul(2654435761) >> (i % 3 * 12)).collect()
    }

    #[test]
    fn a_sort_whose_pivots_are_bad_ends_in_another_way() {
        fn ends<V: Vector<Lane = u32>>() {
            let mut items = items(5000);
            let (mut want, mut spare) = (items.clone(), items.clone());
            want.sort_unstable();
            // SAFETY: both have so many; the processor has the instructions.
            unsafe { quick::<V>(items.as_mut_ptr(), spare.as_mut_ptr(), items.len(), 2) };
            assert_eq!(items, want);
        }
        each!(ends);
    }

    #[test]
    fn every_vector_sorts_every_length() {
        fn sorts<V: Vector<Lane = u32>>() {
            for n in (0..600).chain([5000, 70_000, 200_000]) {
                let all = items(n + 2);
                let (mut sorted, mut spare) = (all.clone(), all.clone());
                let mut want = all.clone();
                want[1..=n as usize].sort_unstable();
                // SAFETY: behind the first item; the processor has the instructions.
                unsafe {
                    let [items, spare] = [&mut sorted, &mut spare].map(|x| x.as_mut_ptr().add(1));
                    sort_by::<V>(items, spare, n as usize);
                }
                assert!(sorted == want, "{n} items");
            }
        }
        each!(sorts);
    }
}
