//! Arrays made from attributes alone: `iota` and random bits.

use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::op::Op;

use super::elements::{Elements, position};
use super::number::Number;

/// The index along an axis: counted in float64 for floats, in integers that wrap for the others.
pub fn iota(dtype: DType, sizes: &[usize], axis: usize) -> Elements {
    Elements::make(dtype, sizes, |index| {
        let i = index[axis];
        let number =
            if dtype.is_float() { Number::Double(i as f64) } else { Number::Int(i as i128) };
        number.word(dtype)
    })
}

/// Random bits: element `i` of uint32 is word `i % 2` of the block of counter `i / 2`, element `i`
/// of uint64 the whole block of counter `i`, low word first.
pub fn random_bits(op: &Op, key: &Elements, dtype: DType, sizes: &[usize]) -> Result<Elements> {
    if key.dtype != DType::U32 || key.sizes != [2] {
        let facts = format!("got {} {:?}", key.dtype, key.sizes);
        return Err(error::bad_value(op.name(), "a key is a uint32 tensor of shape (2,)", facts));
    }
    if !matches!(dtype, DType::U32 | DType::U64) {
        let facts = format!("got {dtype}");
        return Err(error::bad_value(op.name(), "dtype must be uint32 or uint64", facts));
    }
    let key = [key.words[0] as u32, key.words[1] as u32];
    Ok(Elements::make(dtype, sizes, |index| {
        let i = position(sizes, index) as u64;
        if dtype == DType::U32 {
            return threefry(key, i / 2)[(i % 2) as usize].into();
        }
        let [low, high] = threefry(key, i);
        u64::from(low) | u64::from(high) << 32
    }))
}

/// Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1,
/// 2, 3, SC 2011). The key is added before every fourth round and after the last.
fn threefry(key: [u32; 2], counter: u64) -> [u32; 2] {
    const TURNS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];
    let schedule = [key[0], key[1], 0x1bd1_1bda ^ key[0] ^ key[1]];
    let [mut a, mut b] = [counter as u32, (counter >> 32) as u32];
    for round in 0..=20 {
        if round % 4 == 0 {
            let group = round / 4;
            a = a.wrapping_add(schedule[group % 3]);
            b = b.wrapping_add(schedule[(group + 1) % 3]).wrapping_add(group as u32);
        }
        if round < 20 {
            a = a.wrapping_add(b);
            b = b.rotate_left(TURNS[round % 8]) ^ a;
        }
    }
    [a, b]
}

#[cfg(test)]
mod tests {
    use super::threefry;

    #[test]
    fn threefry_gives_the_published_words() {
        // The known answers of the Random123 distribution for threefry2x32, 20 rounds.
        assert_eq!(threefry([0, 0], 0), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(threefry([!0, !0], !0), [0x1cb9_96fc, 0xbb00_2be7]);
        let (counter, key) = (0x85a3_08d3_243f_6a88, [0x1319_8a2e, 0x0370_7344]);
        assert_eq!(threefry(key, counter), [0xc492_3a9c, 0x483d_f7a0]);
    }
}
