//! Arrays made from attributes alone: `iota` and random bits.
//!
//! Promises: every element is a function of its index (and of the key) alone.

use std::ops::Range;

use crate::array::Array;
use crate::cpu::convert;
use crate::cpu::element::Shared;
use crate::dtype::{Compute, DType, Scalar};
use crate::error::{self, Result};
use crate::layout::{Layout, Strides};
use crate::multiversion;
use crate::shape::Shape;
use crate::threads;
use crate::tile::{self, TILE};

/// Elements that one thread takes at a time.
const CHUNK: usize = 1 << 15;

/// How the indices along `axis` at every place of `shape` lie in memory, which holds one line.
pub fn iota_layout(shape: &Shape, axis: usize) -> Layout {
    let strides: Strides = (0..shape.rank()).map(|i| isize::from(i == axis)).collect();
    Layout::strided(shape.clone(), &strides, 0)
}

/// The `n` indices along an axis, as by [`linear_into`].
///
/// # Safety
/// `out` has room for them from its first element on; nobody else reads or writes it.
pub unsafe fn iota_into(n: usize, out: &Array) {
    // SAFETY: as the caller's.
    unsafe { linear_into(n, Scalar::Int(0), Scalar::Int(1), out) }
}

/// `n` elements `start + i · step`: for floating dtypes calculated in f64 and then cast; for the
/// others in 64-bit integers, which wrap (fractions of `start` and `step` are dropped), and then
/// cast.
///
/// # Safety
/// As for [`iota_into`].
unsafe fn linear_into(n: usize, start: Scalar, step: Scalar, out: &Array) {
    let dtype = out.dtype;
    // SAFETY: the caller's, and filled below.
    let to = Shared::new(unsafe { out.ptr_mut() });
    let compute = if dtype.is_float() { Compute::F64 } else { Compute::I64 };
    let (start, step) = (start.register_bits(compute), step.register_bits(compute));
    let cast = tile::cast(compute, dtype);
    threads::for_each_chunk(n, CHUNK, |range| {
        let mut register = [0u64; TILE];
        for first in range.clone().step_by(TILE) {
            let count = TILE.min(range.end - first);
            let p = register.as_mut_ptr().cast::<u8>();
            // SAFETY: the register holds a tile of 8-byte elements, so that casts may run in place;
            // the elements of this range belong to this call.
            unsafe {
                match dtype.is_float() {
                    true => count_floats(start, step, first, &mut register[..count]),
                    false => count_integers(start, step, first, &mut register[..count]),
                }
                cast(p, &[p; 3], count);
                convert::store(dtype, to.at((first * dtype.size()) as isize), 1, p, count);
            }
        }
    });
}

/// Random bits: with `block(i)` the words of [`threefry`] for the counter `i` (low word first),
/// element `i` of uint32 is word `i % 2` of `block(i / 2)`, and element `i` of uint64 is `block(i)`
/// (low word first). Other dtypes are refused.
///
/// # Safety
/// `out` is in C order; nobody else reads or writes it.
pub unsafe fn random_bits_into(key: [u32; 2], out: &Array) -> Result<()> {
    let dtype = out.dtype;
    if !matches!(dtype, DType::U32 | DType::U64) {
        let facts = format_args!("got {dtype}");
        return Err(error::bad_value("random_bits", "dtype must be uint32 or uint64", facts));
    }
    let words = out.count() * dtype.size() / 4;
    // SAFETY: the caller's, and filled below.
    let to = Shared::new(unsafe { out.ptr_mut() }.cast::<u32>());
    threads::for_each_chunk(words.div_ceil(2), CHUNK, |blocks| {
        let at = to.at(2 * blocks.start as isize);
        // SAFETY: the words of these blocks belong to this call; an odd count ends in half a block.
        unsafe {
            let words =
                std::slice::from_raw_parts_mut(at, words.min(2 * blocks.end) - 2 * blocks.start);
            threefry_words(key, blocks, words);
        }
    });
    Ok(())
}

/// Threefry-2x32 with 20 rounds: a bijection of the counter for each key, whose words pass for
/// independent and uniform (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2,
/// 3, SC 2011).
pub fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let [[a], [b]] = rounds(key, [[counter[0]], [counter[1]]]);
    [a, b]
}

multiversion! {
    /// `x[i]` ← the bits of `start + (first + i) · step`, in f64.
    unsafe fn count_floats(start: u64, step: u64, first: usize, x: &mut [u64]) {
        let (start, step) = (f64::from_bits(start), f64::from_bits(step));
        for (i, x) in x.iter_mut().enumerate() {
            *x = (start + (first + i) as i64 as f64 * step).to_bits();
        }
    }

    /// `x[i]` ← `start + (first + i) · step`.
    unsafe fn count_integers(start: u64, step: u64, first: usize, x: &mut [u64]) {
        for (i, x) in x.iter_mut().enumerate() {
            *x = start.wrapping_add(((first + i) as u64).wrapping_mul(step));
        }
    }

    /// The words of a range of blocks; of the last one perhaps only the first.
    unsafe fn threefry_words(key: [u32; 2], blocks: Range<usize>, words: &mut [u32]) {
        for (i, words) in words.chunks_mut(2 * LANES).enumerate() {
            let first = (blocks.start + i * LANES) as u64;
            let (mut low, mut high) = ([0; LANES], [0; LANES]);
            for (lane, (low, high)) in low.iter_mut().zip(&mut high).enumerate() {
                let counter = first + lane as u64;
                (*low, *high) = (counter as u32, (counter >> 32) as u32);
            }
            let [a, b] = rounds::<LANES>(key, [low, high]);
            if words.len() == 2 * LANES {
                for lane in 0..LANES {
                    words[2 * lane] = a[lane];
                    words[2 * lane + 1] = b[lane];
                }
            } else {
                for (j, word) in words.iter_mut().enumerate() {
                    *word = [a, b][j % 2][j / 2];
                }
            }
        }
    }
}

/// Counters that are worked on side by side.
const LANES: usize = 64;

/// Threefry-2x32-20 of `N` counters.
#[inline(always)]
fn rounds<const N: usize>(key: [u32; 2], [mut a, mut b]: [[u32; N]; 2]) -> [[u32; N]; 2] {
    const TURNS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let schedule = [key[0], key[1], 0x1bd1_1bda ^ key[0] ^ key[1]];
    for group in 0..=5 {
        // The key goes in before every fourth round and at the end.
        for i in 0..N {
            a[i] = a[i].wrapping_add(schedule[group % 3]);
            b[i] = b[i].wrapping_add(schedule[(group + 1) % 3]).wrapping_add(group as u32);
        }
        if group == 5 {
            break;
        }
        for turn in TURNS[group % 2] {
            for i in 0..N {
                a[i] = a[i].wrapping_add(b[i]);
                b[i] = b[i].rotate_left(turn) ^ a[i];
            }
        }
    }
    [a, b]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::iota;

    fn line(dtype: DType, n: usize, start: Scalar, step: Scalar) -> Result<Array> {
        let out = Array::uninit(dtype, Shape::of(&[n]))?;
        // SAFETY: fresh.
        unsafe { linear_into(n, start, step, &out) };
        Ok(out)
    }

    fn bits(key: [u32; 2], dtype: DType, shape: &Shape) -> Result<Array> {
        let out = Array::uninit(dtype, shape.clone())?;
        // SAFETY: fresh.
        unsafe { random_bits_into(key, &out)? };
        Ok(out)
    }

    fn read<T: Copy>(x: &Array) -> Vec<T> {
        assert!(x.is_contiguous() && size_of::<T>() == x.dtype.size());
        // SAFETY: contiguous elements of this size.
        unsafe { std::slice::from_raw_parts(x.ptr().cast(), x.count()) }.to_vec()
    }

    #[test]
    fn threefry_gives_the_published_words() {
        // The known answers of the Random123 distribution for threefry2x32, 20 rounds.
        assert_eq!(threefry([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(threefry([!0, !0], [!0, !0]), [0x1cb9_96fc, 0xbb00_2be7]);
        let (counter, key) = ([0x243f_6a88, 0x85a3_08d3], [0x1319_8a2e, 0x0370_7344]);
        assert_eq!(threefry(key, counter), [0xc492_3a9c, 0x483d_f7a0]);
    }

    #[test]
    fn random_bits_are_the_words_of_the_counters_in_order() {
        let key = [7, 0x8000_0001];
        for n in [0, 1, 2, 63, 64, 65, 2 * CHUNK + 3] {
            let word = |i: usize| threefry(key, [(i / 2) as u32, 0])[i % 2];
            let narrow = read::<u32>(&bits(key, DType::U32, &Shape::of(&[n])).unwrap());
            assert!(narrow.iter().enumerate().all(|(i, &x)| x == word(i)), "{n}");
            let wide = read::<u64>(&bits(key, DType::U64, &Shape::of(&[n])).unwrap());
            let pair = |i: usize| u64::from(word(2 * i)) | u64::from(word(2 * i + 1)) << 32;
            assert!(wide.iter().enumerate().all(|(i, &x)| x == pair(i)), "{n}");
        }
        assert_eq!(bits(key, DType::I32, &Shape::of(&[1])).err().unwrap().code(), "bad_value");
    }

    #[test]
    fn linear_counts_in_every_dtype() {
        let n = CHUNK + 700;
        let ints = read::<i64>(&line(DType::I64, n, Scalar::Int(-5), Scalar::Int(3)).unwrap());
        assert!(ints.iter().enumerate().all(|(i, &x)| x == 3 * i as i64 - 5));
        let bytes = read::<u8>(&line(DType::U8, n, Scalar::Int(250), Scalar::Int(7)).unwrap());
        assert!(bytes.iter().enumerate().all(|(i, &x)| x == (250 + 7 * i) as u8));
        let floats =
            read::<f32>(&line(DType::F32, n, Scalar::Float(0.1), Scalar::Float(0.3)).unwrap());
        assert!(floats.iter().enumerate().all(|(i, &x)| x == (0.1 + i as f64 * 0.3) as f32));
        let halves = read::<u16>(&line(DType::F16, 3, Scalar::Int(1), Scalar::Float(0.5)).unwrap());
        assert_eq!(halves, [0x3c00, 0x3e00, 0x4000]);
        assert_eq!(
            read::<u8>(&line(DType::Bool, 3, Scalar::Int(0), Scalar::Int(1)).unwrap()),
            [0, 1, 1]
        );
        let high = Scalar::Uint(u64::MAX - 1);
        assert_eq!(read::<u64>(&line(DType::U64, 3, high, Scalar::Int(1)).unwrap()), [!1, !0, 0]);
    }

    #[test]
    fn iota_is_one_line_seen_from_everywhere() {
        let x = iota(DType::I32, &Shape::of(&[2, 3, 4]), 1).unwrap();
        assert_eq!(x.layout.strides().as_slice(), [0, 1, 0]);
        assert_eq!(x.buffer().bytes(), 12);
        assert_eq!(iota(DType::I32, &Shape::of(&[2, 0]), 0).unwrap().count(), 0);
    }
}
