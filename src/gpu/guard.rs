//! Guards: shaders that write state only if nothing has failed.
//!
//! What data refuses is found on the device, when work that reads the results may have been given
//! already. A *flag* is a word that is not 0 where something has failed: a fault of the work itself,
//! or the flag of work whose results it reads. What writes over state looks at it first.

use smallvec::SmallVec;

use super::kernel::{Dispatch, Word};
use super::shader::START;
use crate::error::{self, Result};
use crate::shape::Dim;

/// Sets a flag (`m0`) to whether some of the slots of faults (`m1`) refuse something.
pub const VERDICT: &str = "\
@group(0) @binding(0) var<storage, read_write> m0: array<u32>;
@group(0) @binding(1) var<storage, read_write> m1: array<vec4<u32>>;
@group(0) @binding(2) var<uniform> words: array<vec4<u32>, 1>;

@compute @workgroup_size(1)
fn main() {
    var failed = 0u;
    for (var slot = 0u; slot < words[0].y; slot++) {
        if m1[words[0].x + slot].x != 0xffffffffu { failed = 1u; }
    }
    m0[0] = failed;
}
";

/// Sets a flag (`m0`) to another (`m1`), or where the word says so, to whether one of them is set.
pub const MERGE: &str = "\
@group(0) @binding(0) var<storage, read_write> m0: array<u32>;
@group(0) @binding(1) var<storage, read_write> m1: array<u32>;
@group(0) @binding(2) var<uniform> words: array<vec4<u32>, 1>;

@compute @workgroup_size(1)
fn main() {
    m0[0] = m1[0] | select(0u, m0[0], words[0].x != 0u);
}
";

/// Copies memory unless a flag is set.
pub const COPY: &str = "\
@group(0) @binding(0) var<storage, read_write> m0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> m1: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> m2: array<u32>;
@group(0) @binding(3) var<uniform> words: array<vec4<u32>, 1>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let id = at.y * groups.x * 64u + at.x;
    if id >= words[0].x { return; }
    if m2[0] != 0u { return; }
    m1[id] = m0[id];
}
";

/// The copy of so many bytes, a multiple of 16.
pub fn copy(bytes: usize) -> Dispatch {
    let vectors = Dim::new(bytes / 16);
    Dispatch {
        text: COPY.into(),
        words: vec![Word::Size(vectors)],
        bindings: SmallVec::new(),
        invocations: vectors,
        rounds: Dim::new(0),
    }
}

/// The same dispatch, which does nothing if a flag is set. The flag is bound behind the other
/// storage. Where invocations wait for each other, or read each other's registers, one of them looks
/// for all of its workgroup, which leaves as a whole.
pub fn guarded(dispatch: Dispatch) -> Result<Dispatch> {
    let at = dispatch.bindings.len();
    let uniform = format!("@group(0) @binding({at}) var<uniform>");
    let behind = format!(
        "@group(0) @binding({at}) var<storage, read_write> failed: array<u32>;\n\
         @group(0) @binding({}) var<uniform>",
        at + 1
    );
    let is_known = |part: &str| dispatch.text.matches(part).count() == 1;
    if !is_known(&uniform) || !is_known(START) {
        return Err(error::internal("a shader cannot be guarded"));
    }
    let is_together =
        ["workgroupBarrier", "subgroupShuffle"].map(|call| dispatch.text.contains(call));
    let (memory, look) = match is_together.contains(&true) {
        false => ("", "    if failed[0] != 0u { return; }\n"),
        true => (
            "var<workgroup> has_failed: u32;\n",
            "    if local == 0u { has_failed = failed[0]; }\n    if workgroupUniformLoad(&has_failed) \
             != 0u { return; }\n",
        ),
    };
    let text = dispatch.text.replacen(&uniform, &(memory.to_owned() + &behind), 1);
    Ok(Dispatch { text: text.replacen(START, &format!("{START}{look}"), 1), ..dispatch })
}
