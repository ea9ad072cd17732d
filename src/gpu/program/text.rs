//! Shaders that are no op's: what programs do beside their steps.

use crate::gpu::create::THREEFRY;

/// The entry point for invocations that are numbered by `id`, behind so many storage bindings.
fn entry(storage: usize, vectors: usize, body: &str) -> String {
    format!(
        "@group(0) @binding({storage}) var<uniform> words: array<vec4<u32>, {vectors}>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{
    let id = at.y * groups.x * 64u + at.x;
{body}}}
"
    )
}

/// Fills the slots of faults with ones: nothing is refused yet.
pub const RESET: &str = "\
@group(0) @binding(0) var<storage, read_write> m0: array<u32>;
@group(0) @binding(1) var<uniform> words: array<vec4<u32>, 1>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let id = at.y * groups.x * 64u + at.x;
    if id >= words[0].x { return; }
    m0[id] = 0xffffffffu;
}
";

/// Copies what was computed over state, unless a slot of faults refuses something.
pub const COMMIT: &str = "\
@group(0) @binding(0) var<storage, read_write> m0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> m1: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> m2: array<vec4<u32>>;
@group(0) @binding(3) var<uniform> words: array<vec4<u32>, 1>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let id = at.y * groups.x * 64u + at.x;
    if id >= words[0].x { return; }
    for (var slot = 0u; slot < words[0].y; slot++) {
        if m2[slot].x != 0xffffffffu { return; }
    }
    m1[id] = m0[id];
}
";

/// The state of the generator behind the keys of a run.
pub const NEXT: &str = "\
@group(0) @binding(0) var<storage, read_write> m0: array<u32>;
@group(0) @binding(1) var<storage, read_write> m1: array<u32>;
@group(0) @binding(2) var<uniform> words: array<vec4<u32>, 1>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    if at.x > 0u { return; }
    let low = m0[2] + words[0].x;
    m1[0] = m0[0];
    m1[1] = m0[1];
    m1[2] = low;
    m1[3] = m0[3] + select(0u, 1u, low < words[0].x);
}
";

/// A key of the generator: the block of the count of keys drawn, with the high bit set, under the
/// key of the seed.
pub fn key() -> String {
    let memory = "\
@group(0) @binding(0) var<storage, read_write> m0: array<u32>;
@group(0) @binding(1) var<storage, read_write> m1: array<u32>;
";
    let body = "    if id > 0u { return; }
    let low = m0[2] + words[0].x;
    let high = m0[3] + select(0u, 1u, low < words[0].x);
    let drawn = threefry(vec2<u32>(m0[0], m0[1]), vec2<u32>(high | 0x80000000u, low));
    m1[0] = drawn.x;
    m1[1] = drawn.y;
";
    format!("{memory}\n{THREEFRY}{}", entry(2, 1, body))
}

/// Which body a branch takes: an integer of 64 bits, clamped. Words 4 to 6 are its position, the
/// body that asks, and the last body.
fn taken(binding: usize) -> String {
    format!(
        "@group(0) @binding({binding}) var<storage, read_write> chosen: array<u32>;

fn is_taken(at: u32, body: u32, last: u32) -> bool {{
    let low = chosen[at];
    let high = chosen[at + 1u];
    let above = select(min(low, last), last, high != 0u);
    return select(above, 0u, (high >> 31u) != 0u) == body;
}}

"
    )
}

const UNLESS_TAKEN: &str = "    if !is_taken(words[1].x, words[1].y, words[1].z) { return; }\n";

/// Copies words: a count, from where, to where.
pub fn copy_words(guarded: bool) -> String {
    copy(
        guarded,
        "    if id >= words[0].x { return; }\n",
        "    m1[words[0].z + id] = m0[words[0].y + id];\n",
    )
}

/// Copies bytes: a count, from where, to where.
pub fn copy_bytes(guarded: bool) -> String {
    let head = "    let start = words[0].z;
    let end = start + words[0].x;
    let word = (start >> 2u) + id;
    if 4u * word >= end { return; }
";
    let body = "    var value = m1[word];
    for (var k = 0u; k < 4u; k++) {
        let to = 4u * word + k;
        if to >= start && to < end {
            let source = to - start + words[0].y;
            let byte = (m0[source >> 2u] >> (8u * (source & 3u))) & 0xffu;
            value = (value & ~(0xffu << (8u * k))) | (byte << (8u * k));
        }
    }
    m1[word] = value;
";
    copy(guarded, head, body)
}

fn copy(guarded: bool, head: &str, body: &str) -> String {
    let memory = "\
@group(0) @binding(0) var<storage, read_write> m0: array<u32>;
@group(0) @binding(1) var<storage, read_write> m1: array<u32>;
";
    match guarded {
        true => {
            let body = format!("{head}{UNLESS_TAKEN}{body}");
            format!("{memory}{}{}", taken(2), entry(3, 2, &body))
        }
        false => format!("{memory}{}", entry(2, 1, &format!("{head}{body}"))),
    }
}

/// Keeps what a round or a body of a branch refused in slots of the loop's own, unless there is
/// something already, and clears the slots of the round: a count, from where, to where.
pub fn keep(guarded: bool) -> String {
    let memory = "@group(0) @binding(0) var<storage, read_write> m0: array<vec4<u32>>;\n";
    let head = "    if id >= words[0].x { return; }
    let here = m0[words[0].y + id];
    m0[words[0].y + id] = vec4<u32>(0xffffffffu);
    if here.x == 0xffffffffu { return; }
";
    let body = "    let to = words[0].z + id;
    if m0[to].x == 0xffffffffu { m0[to] = here; }
";
    match guarded {
        true => {
            let body = format!("{head}{UNLESS_TAKEN}{body}");
            format!("{memory}{}{}", taken(1), entry(2, 2, &body))
        }
        false => format!("{memory}{}", entry(1, 1, &format!("{head}{body}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::tests::validate;

    #[test]
    fn texts_of_programs_are_translated_for_every_backend() {
        for text in [RESET, COMMIT, NEXT] {
            validate(text);
        }
        validate(&key());
        for guarded in [false, true] {
            for text in [copy_words(guarded), copy_bytes(guarded), keep(guarded)] {
                validate(&text);
            }
        }
    }
}
