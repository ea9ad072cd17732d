@group(0) @binding(0) var<storage, read_write> m0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> m1: array<u32>;
@group(0) @binding(2) var<storage, read_write> m2: array<vec4<u32>>;
@group(0) @binding(3) var<uniform> words: array<vec4<u32>, 2>;

fn multiply_f32(a: f32, b: f32) -> f32 {
    let v0 = a * b;
    return v0;
}

fn add_f32(a: f32, b: f32) -> f32 {
    let v0 = a + b;
    return v0;
}

struct Out { y0: u32 }

fn element(i: u32, l0: u32) -> Out {
    var out: Out;
    let n0 = bitcast<f32>(words[0].z);
    let t0 = i % words[0].w;
    let t1 = i / words[0].w;
    let x0 = bitcast<f32>(l0);
    let at1 = (words[1].x + t0 * words[1].y);
    let x1 = ((m1[at1 >> 2u] >> ((at1 & 3u) * 8u)) & 0xffu);
    let v3 = f32(x1);
    let v4 = multiply_f32(x0, n0);
    let v5 = add_f32(v4, v3);
    out.y0 = bitcast<u32>(v5);
    return out;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group = at.y * groups.x + at.x;
    let id = group * 64u + local;
    let pack = id;
    if pack >= words[0].x { return; }
    let p0 = words[1].z + pack;
    let d0 = m0[p0];
    let e0 = element(min(pack * 4u + 0u, words[0].y), d0.x);
    let e1 = element(min(pack * 4u + 1u, words[0].y), d0.y);
    let e2 = element(min(pack * 4u + 2u, words[0].y), d0.z);
    let e3 = element(min(pack * 4u + 3u, words[0].y), d0.w);
    m2[pack] = vec4<u32>(e0.y0, e1.y0, e2.y0, e3.y0);
}
