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

/// Reads leaf 4, or on AMD's processors the leaf that is laid out like it.
#[cfg(target_arch = "x86_64")]
fn described() -> [Cache; 2] {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let mut found = USUAL;
    let is_amd = __cpuid(0).ebx == u32::from_le_bytes(*b"Auth");
    let leaf = if is_amd { 0x8000_001d } else { 4 };
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
    fn machines_describe_caches_of_known_sizes() {
        let [first, second_cache] = described();
        for (cache, sizes) in [(first, 16 << 10..=256 << 10), (second_cache, 128 << 10..=16 << 20)]
        {
            assert!(sizes.contains(&(cache.sets * cache.ways * LINE)), "{cache:?}");
        }
        assert!((256 << 10..=2 << 20).contains(&second()));
    }
}
