//! Radix sorting of items by their keys.
//!
//! Promises: items come out in the order of their keys; items of equal keys keep their order.

use crate::cpu::element::Shared;
use crate::threads;

use super::key::Item;

/// Fewer items are sorted by comparison.
const FEW: usize = 256;
/// From here on items are first dealt into buckets, which are sorted apart.
const MANY: usize = 1 << 16;
/// Bits of a digit, at most.
const DIGIT: u32 = 11;
/// Items from which digits of this width pay; below, they are shorter.
const WIDE_DIGITS: usize = 1 << 12;
/// Parts that are counted and dealt at the same time.
const PARTS: usize = 8;
/// Buckets that one thread sorts at a time.
const GROUP: usize = 8;
/// Items that are moved or counted between two looks whether the sort is to be broken off.
const STRETCH: usize = 1 << 16;

type Counts = [usize; 1 << DIGIT];

/// Sorts the items; `spare` is as long. Where items are compared whole, equal keys must not be told
/// apart otherwise than by the order in which they stand.
pub fn sort<I: Item>(items: &mut [I], spare: &mut [I]) {
    if items.len() < FEW {
        return items.sort_unstable();
    }
    let bits = u64::BITS - varying(items).leading_zeros();
    if items.len() >= MANY && bits > DIGIT {
        deal(items, spare, bits - DIGIT);
    } else if in_turns(items, spare, bits) {
        copy(items, spare);
    }
}

fn copy<I: Item>(to: &mut [I], from: &[I]) {
    for (to, from) in to.chunks_mut(STRETCH).zip(from.chunks(STRETCH)) {
        threads::pause();
        to.copy_from_slice(from);
    }
}

/// The bits in which not all keys agree.
fn varying<I: Item>(items: &[I]) -> u64 {
    let first = items.first().map_or(0, |item| item.bits());
    let mut all = 0;
    for part in items.chunks(STRETCH) {
        threads::pause();
        all |= part.iter().fold(0, |all, item| all | (item.bits() ^ first));
    }
    all
}

/// Sorts by the lowest `bits` bits, digit by digit from the lowest; says whether the result lies in
/// `b`.
fn in_turns<I: Item>(a: &mut [I], b: &mut [I], bits: u32) -> bool {
    let widest = if a.len() < WIDE_DIGITS { 8 } else { DIGIT };
    let turns = bits.div_ceil(widest).max(1);
    let width = bits.div_ceil(turns);
    let mut in_b = false;
    for turn in 0..turns {
        let (from, to) = if in_b { (&*b, &mut *a) } else { (&*a, &mut *b) };
        let digit = Digit { shift: turn * width, width };
        let mut counts = digit.counts(from);
        if counts[..1 << width].contains(&from.len()) {
            continue;
        }
        let mut start = 0;
        for count in &mut counts[..1 << width] {
            start += std::mem::replace(count, start);
        }
        // SAFETY: the counts of these very items are the bounds of the places in `to`, as long.
        unsafe { digit.scatter(from, &mut counts, Shared::new(to.as_mut_ptr())) };
        in_b = !in_b;
    }
    in_b
}

/// Deals the items into buckets by their upper bits, and sorts each by the lowest `shift` bits.
fn deal<I: Item>(items: &mut [I], spare: &mut [I], shift: u32) {
    let digit = Digit { shift, width: DIGIT };
    let length = items.len().div_ceil(PARTS);
    let mut counts: Vec<Counts> = vec![[0; 1 << DIGIT]; PARTS];
    let (to, starts) = (Shared::new(spare.as_mut_ptr()), Shared::new(counts.as_mut_ptr()));
    let parts: Vec<&[I]> = items.chunks(length).collect();
    // SAFETY: part `i` owns counts `i`.
    threads::parallel_for(parts.len(), &|i| unsafe {
        *starts.at(i as isize) = digit.counts(parts[i])
    });
    let (mut bounds, mut start) = (Vec::with_capacity(2 << DIGIT), 0);
    for bucket in 0..1 << DIGIT {
        bounds.push(start);
        for part in &mut counts {
            start += std::mem::replace(&mut part[bucket], start);
        }
    }
    bounds.push(start);
    threads::parallel_for(parts.len(), &|i| {
        // SAFETY: each part fills the places counted for it; all of `spare` is filled.
        unsafe { digit.scatter(parts[i], &mut *starts.at(i as isize), to) };
    });
    let (items, spare) = (Shared::new(items.as_mut_ptr()), to);
    threads::parallel_for((1 << DIGIT) / GROUP, &|group| {
        for bounds in bounds[group * GROUP..].windows(2).take(GROUP) {
            let (start, n) = (bounds[0] as isize, bounds[1] - bounds[0]);
            // SAFETY: buckets are apart.
            let (own, dealt) = unsafe {
                (
                    std::slice::from_raw_parts_mut(items.at(start), n),
                    std::slice::from_raw_parts_mut(spare.at(start), n),
                )
            };
            if n < FEW {
                own.copy_from_slice(dealt);
                own.sort_unstable();
            } else if !in_turns(dealt, own, shift) {
                copy(own, dealt);
            }
        }
    });
}

/// Some neighbouring bits of a key.
#[derive(Clone, Copy)]
struct Digit {
    shift: u32,
    width: u32,
}

impl Digit {
    #[inline(always)]
    fn of<I: Item>(self, item: I) -> usize {
        // The second mask tells the compiler that counts are never indexed outside.
        (item.bits() >> self.shift) as usize & ((1 << self.width) - 1) & ((1 << DIGIT) - 1)
    }

    fn counts<I: Item>(self, items: &[I]) -> Counts {
        let mut counts = [0; 1 << DIGIT];
        for part in items.chunks(STRETCH) {
            threads::pause();
            part.iter().for_each(|&item| counts[self.of(item)] += 1);
        }
        counts
    }

    /// Moves every item to the next place of its digit.
    ///
    /// # Safety
    /// For each digit, as many places from its start on as there are items can be written.
    unsafe fn scatter<I: Item>(self, items: &[I], starts: &mut Counts, to: Shared<I>) {
        for part in items.chunks(STRETCH) {
            threads::pause();
            for &item in part {
                let place = &mut starts[self.of(item)];
                // SAFETY: by contract.
                unsafe { *to.at(*place as isize) = item };
                *place += 1;
            }
        }
    }
}
