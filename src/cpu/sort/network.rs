//! Sorting networks: many short rows at a time, side by side in vectors.
//!
//! Promises: each row comes out in the order of its items. Which items are compared depends on the
//! length of the rows alone. Items are compared whole, so those that compare equal must be the same.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use super::key::Item;
use crate::multiversion;

/// Rows that are sorted side by side.
pub const SIDE: usize = 16;
/// The most items of a row: a network of more takes longer than other ways.
pub const MOST: usize = 64;

/// Room for rows: item `i` of row `r` is at `[i][r]`.
pub type Room<I> = [[MaybeUninit<I>; SIDE]; MOST];

/// Whether items of a type are sorted in vectors.
pub const fn takes<I: Item>() -> bool {
    size_of::<I>() <= 8
}

/// The positions that are compared, one pair after the other.
type Pairs = Vec<(u8, u8)>;

/// The network for rows of `n` items, at most [`MOST`]. Source: Batcher: Sorting networks and their
/// applications, 1968 (odd-even merge sort).
fn pairs(n: usize) -> &'static Pairs {
    static ALL: [OnceLock<Pairs>; MOST + 1] = [const { OnceLock::new() }; MOST + 1];
    ALL[n].get_or_init(|| {
        let mut pairs = Pairs::new();
        // Sorted runs of `run` items are merged into runs of twice as many.
        let mut run = 1;
        while run < n {
            let mut step = run;
            while step > 0 {
                for start in (step % run..n - step).step_by(2 * step) {
                    for a in start..(start + step).min(n - step) {
                        if a / (2 * run) == (a + step) / (2 * run) {
                            pairs.push((a as u8, (a + step) as u8));
                        }
                    }
                }
                step /= 2;
            }
            run *= 2;
        }
        pairs
    })
}

multiversion! {
    /// Sorts [`SIDE`] rows side by side.
    ///
    /// # Safety
    /// The positions of the pairs are filled.
    unsafe fn exchange[I](room: &mut Room<I>, pairs: &[(u8, u8)])
    where [I: Item] {
        let items = room.as_mut_ptr().cast::<[I; SIDE]>();
        for &(a, b) in pairs {
            // SAFETY: both are positions in the room, and filled.
            unsafe {
                let (a, b) = (items.add(a as usize), items.add(b as usize));
                let (x, y) = (*a, *b);
                let (mut low, mut high) = (x, y);
                for i in 0..SIDE {
                    let swaps = y[i] < x[i];
                    low[i] = if swaps { y[i] } else { x[i] };
                    high[i] = if swaps { x[i] } else { y[i] };
                }
                (*a, *b) = (low, high);
            }
        }
    }
}

/// Sorts rows of `n` items, at most [`MOST`].
///
/// # Safety
/// The first `n` positions of all rows are filled.
pub unsafe fn sort<I: Item>(room: &mut Room<I>, n: usize) {
    // SAFETY: pairs are of positions below `n`.
    unsafe { exchange(room, pairs(n)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_every_length_sort() {
        // Zeros and ones suffice: a network that sorts them sorts everything. Short rows are tried
        // with all of them, longer ones with many.
        let mut state = 3u64;
        for n in 1..=MOST {
            let rounds = if n <= 12 { (1usize << n).div_ceil(SIDE) } else { 64 };
            for round in 0..rounds {
                let mut room: Room<u32> = [[MaybeUninit::new(7); SIDE]; MOST];
                let mut ones = [0; SIDE];
                for (r, ones) in ones.iter_mut().enumerate() {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let bits =
                        if n <= 12 { (round * SIDE + r) as u64 } else { state ^ state >> 32 };
                    for (i, items) in room.iter_mut().enumerate().take(n) {
                        let bit = (bits >> i & 1) as u32;
                        items[r] = MaybeUninit::new(bit);
                        *ones += bit as usize;
                    }
                }
                // SAFETY: all is filled.
                unsafe { sort(&mut room, n) };
                for (i, items) in room.iter().enumerate() {
                    for (r, item) in items.iter().enumerate() {
                        let want = if i >= n { 7 } else { u32::from(i >= n - ones[r]) };
                        // SAFETY: as above.
                        assert_eq!(unsafe { item.assume_init() }, want, "{n} items");
                    }
                }
            }
        }
    }
}
