//! The caches of a core of this machine, as it describes them.

use crate::fork::Lazy;

/// A cache of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cache {
    sets: usize,
    ways: usize,
}

/// Bytes of a line.
const LINE: usize = 64;
/// The first cache and the second of a processor that does not describe them: small ones.
const USUAL: [Cache; 2] = [Cache { sets: 64, ways: 8 }, Cache { sets: 1024, ways: 8 }];

static OWN: Lazy<[Cache; 2]> = Lazy::new(described);
static FETCHES_AHEAD: Lazy<bool> = Lazy::new(crate::simd::is_amd);

/// The bytes of the first cache of a core.
pub fn first() -> usize {
    let Cache { sets, ways } = OWN[0];
    sets * ways * LINE
}

/// The bytes of the second cache of a core.
pub fn second() -> usize {
    let Cache { sets, ways } = OWN[1];
    // Sizes are made of this, so they should be of use whatever a machine says.
    (sets * ways * LINE).clamp(256 << 10, 2 << 20)
}

/// Whether a line of each of `rows` rows, which are `stride` bytes apart, do not fit the first cache
/// at a time, because they fall into few of its sets.
pub fn crowd(rows: usize, stride: isize) -> bool {
    crowds(OWN[0], rows, stride)
}

fn crowds(cache: Cache, rows: usize, stride: isize) -> bool {
    if rows <= cache.ways {
        return false;
    }
    // Where there are more sets than numbers here, several share one.
    let mut lines = [0; 64];
    let sets = cache.sets.clamp(1, lines.len());
    (0..rows).any(|row| {
        let set = (row * stride.unsigned_abs() / LINE) % sets;
        lines[set] += 1;
        lines[set] > cache.ways
    })
}

/// Whether rows of some `bytes`, `stride` bytes apart, need more than half of the places that the
/// second cache has for their lines: then it does not hold them beside what else passes through it.
///
/// Never on AMD's processors: a Zen 5 fetches such rows ahead, and products of 512² to 2048² take 0.96
/// to 0.99 of the time there if they read them in place. (On an Intel of the same time 1024² was slower
/// than 512² in place, which these misses explain; packed rows were not timed there.)
pub fn crowd_second(rows: usize, stride: isize, bytes: usize) -> bool {
    !*FETCHES_AHEAD && 2 * ways(OWN[1], rows, stride, bytes) > OWN[1].ways
}

/// The most lines of these rows that share a set; 1 for rows that are one and the same, or that begin
/// at different places of lines, and so in different sets.
fn ways(cache: Cache, rows: usize, stride: isize, bytes: usize) -> usize {
    let stride = stride.unsigned_abs();
    if stride == 0 || !stride.is_multiple_of(LINE) || !cache.sets.is_power_of_two() {
        return 1;
    }
    // Rows begin in every `apart`-th set, and after one round of all sets in the same ones again.
    let apart = 1 << (stride / LINE).trailing_zeros().min(cache.sets.trailing_zeros());
    rows.div_ceil(cache.sets / apart) * bytes.div_ceil(LINE).div_ceil(apart)
}

/// Reads leaf 4, or on AMD's processors the leaf that is laid out like it.
#[cfg(target_arch = "x86_64")]
fn described() -> [Cache; 2] {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let mut found = USUAL;
    let leaf = if crate::simd::is_amd() { 0x8000_001d } else { 4 };
    let last = __cpuid(leaf & 0x8000_0000).eax;
    if last < leaf {
        return found;
    }
    for i in 0..8 {
        let part = __cpuid_count(leaf, i);
        let (kind, level) = (part.eax & 31, (part.eax >> 5 & 7) as usize);
        // 1 and 3 are caches of data; 0 ends the list.
        match (kind, level) {
            (0, _) => break,
            (1 | 3, 1 | 2) => {
                let ways = (part.ebx >> 22) as usize + 1;
                found[level - 1] = Cache { sets: part.ecx as usize + 1, ways };
            }
            _ => {}
        }
    }
    found
}

#[cfg(not(target_arch = "x86_64"))]
fn described() -> [Cache; 2] {
    USUAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_crowd_where_their_lines_share_sets() {
        let [small, large] = [Cache { sets: 64, ways: 8 }, Cache { sets: 64, ways: 12 }];
        // Twelve rows a page apart have one set, half a page apart two.
        assert!(crowds(small, 12, 4096) && crowds(small, 12, -8192));
        assert!(!crowds(small, 12, 2048) && !crowds(large, 12, 4096));
        assert!(crowds(large, 13, 4096));
        // A little more than a page does not yet lead to another set, a line more does.
        assert!(crowds(small, 12, 4100) && !crowds(small, 12, 4160));
        assert!([60, 64, 100, 3000].iter().all(|&by| !crowds(small, 12, by)));
    }

    #[test]
    fn lines_that_share_sets_are_counted() {
        let cache = Cache { sets: 256, ways: 8 };
        for (rows, lines, bytes) in
            [(128, 64, 1024), (64, 16, 1024), (256, 3, 640), (320, 24, 1024)]
        {
            let mut sets = [0; 256];
            for row in 0..rows {
                (0..bytes / LINE).for_each(|line| sets[(row * lines + line) % 256] += 1);
            }
            let stride = (lines * LINE) as isize;
            assert_eq!(sets.iter().max(), Some(&ways(cache, rows, stride, bytes)));
            assert_eq!(ways(cache, rows, -stride, bytes), ways(cache, rows, stride, bytes));
        }
        assert_eq!(ways(cache, 100, 4100, 1024), 1);
        assert_eq!(ways(cache, 100, 0, 64), 1);
    }

    #[test]
    fn machines_describe_caches_of_known_sizes() {
        let [first, second_cache] = described();
        for (cache, sizes) in [(first, 16 << 10..=256 << 10), (second_cache, 128 << 10..=16 << 20)]
        {
            assert!(sizes.contains(&(cache.sets * cache.ways * LINE)), "{cache:?}");
        }
        assert!((256 << 10..=2 << 20).contains(&second()));
    }
}
