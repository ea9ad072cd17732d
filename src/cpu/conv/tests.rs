//! Convolutions against their trilinear form, and against each other.

use super::transposed::{Transposed, input_windows, phase_of_views};
use super::*;
use crate::cpu::gemm::Packed;
use crate::cpu::sweep::{chosen, combinations};
use crate::cpu::testing::{array, bytes, conv, layouts, noise, random, values};
use crate::dtype::DType;
use crate::ops::op::{Op, Type};
use crate::target::ChannelsLast;

struct Case {
    n: usize,
    c: usize,
    o: usize,
    x: Vec<usize>,
    k: Vec<usize>,
    spec: ConvSpec,
}

impl Case {
    #[allow(clippy::too_many_arguments)]
    fn new(
        (n, c, o, groups): (usize, usize, usize, usize),
        x: &[usize],
        k: &[usize],
        stride: &[usize],
        dilation: &[usize],
        low: &[usize],
        high: &[usize],
    ) -> Case {
        let spec = ConvSpec {
            stride: stride.into(),
            pad_low: low.into(),
            pad_high: high.into(),
            dilation: dilation.into(),
            groups,
            input: x.iter().map(|&n| n.into()).collect(),
            kernel: k.iter().map(|&n| n.into()).collect(),
        };
        Case { n, c, o, x: x.into(), k: k.into(), spec }
    }

    fn places(&self) -> Vec<usize> {
        let s = &self.spec;
        (0..self.x.len())
            .map(|i| {
                let n = self.x[i] + s.pad_low[i] + s.pad_high[i];
                positions(n, self.k[i], s.stride[i], s.dilation[i])
            })
            .collect()
    }

    fn shapes(&self) -> [Vec<usize>; 3] {
        let with = |a: usize, b: usize, rest: &[usize]| [&[a, b], rest].concat();
        [
            with(self.n, self.c, &self.x),
            with(self.o, self.c / self.spec.groups, &self.k),
            with(self.n, self.o, &self.places()),
        ]
    }

    /// Calls `f` with the positions in `x`, `w` and `g` of every term of the trilinear form.
    fn terms(&self, mut f: impl FnMut(usize, usize, usize)) {
        let flat = |index: &[usize], sizes: &[usize]| {
            index.iter().zip(sizes).fold(0, |at, (i, n)| at * n + i)
        };
        let unflat = |mut at: usize, sizes: &[usize]| {
            let mut index = vec![0; sizes.len()];
            for (i, n) in sizes.iter().enumerate().rev() {
                index[i] = at % n;
                at /= n;
            }
            index
        };
        let ([xs, ws, gs], s) = (self.shapes(), &self.spec);
        for wi in 0..ws.iter().product() {
            let w = unflat(wi, &ws);
            let group = w[0] / (self.o / s.groups);
            for pi in 0..gs[2..].iter().product() {
                let p = unflat(pi, &gs[2..]);
                let at = |i: usize| {
                    (p[i] * s.stride[i] + w[2 + i] * s.dilation[i])
                        .checked_sub(s.pad_low[i])
                        .filter(|&at| at < self.x[i])
                };
                let Some(at) = (0..p.len()).map(at).collect::<Option<Vec<_>>>() else {
                    continue;
                };
                for n in 0..self.n {
                    let c = group * (self.c / s.groups) + w[1];
                    let x = flat(&[&[n, c][..], &at].concat(), &xs);
                    f(x, wi, flat(&[&[n, w[0]][..], &p].concat(), &gs));
                }
            }
        }
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case::new((2, 3, 4, 1), &[9], &[3], &[1], &[1], &[0], &[0]),
        Case::new((1, 4, 6, 2), &[13], &[4], &[3], &[2], &[2], &[1]),
        Case::new((2, 3, 5, 1), &[8, 9], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((2, 4, 4, 4), &[9, 70], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((2, 3, 3, 3), &[33, 37], &[3, 3], &[2, 2], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((2, 3, 6, 3), &[12, 51], &[4, 5], &[1, 2], &[2, 3], &[3, 6], &[3, 5]),
        Case::new((3, 2, 2, 2), &[140], &[7], &[3], &[2], &[2], &[9]),
        Case::new(
            (1, 2, 4, 2),
            &[4, 6, 9],
            &[2, 3, 3],
            &[2, 1, 2],
            &[1, 2, 1],
            &[1, 2, 1],
            &[0, 2, 1],
        ),
        Case::new((2, 2, 2, 2), &[3, 5], &[9, 20], &[1, 1], &[1, 1], &[5, 12], &[4, 9]),
        Case::new((9, 2, 2, 2), &[17, 2100], &[1, 3], &[1, 1], &[1, 1], &[0, 70], &[0, 0]),
        Case::new((2, 2, 8, 2), &[9, 7], &[2, 3], &[2, 3], &[3, 1], &[0, 2], &[1, 3]),
        Case::new((3, 6, 4, 1), &[7, 5], &[1, 1], &[1, 1], &[1, 1], &[0, 0], &[0, 0]),
        Case::new((2, 3, 4, 1), &[10, 11], &[1, 2], &[3, 2], &[1, 1], &[0, 0], &[0, 0]),
        Case::new((1, 40, 30, 1), &[12, 40], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        Case::new(
            (2, 2, 3, 1),
            &[5, 6, 7],
            &[2, 3, 2],
            &[1, 2, 1],
            &[2, 1, 1],
            &[1, 0, 1],
            &[0, 1, 1],
        ),
        Case::new((2, 4, 2, 2), &[6, 6], &[4, 4], &[4, 6], &[2, 4], &[3, 3], &[2, 5]),
        Case::new((1, 1, 1, 1), &[2], &[5], &[1], &[1], &[0], &[0]),
        // Strides larger than the input, of which only the phases within the input exist, and
        // an empty input.
        Case::new((2, 2, 3, 1), &[5, 6], &[2, 3], &[1 << 40, 7], &[1, 1], &[1, 0], &[0, 1]),
        Case::new((2, 0, 5, 1), &[8, 9], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        // By channel: lines as long as a vector, and a little shorter or
        // longer; several channels of one; taps that see padding alone.
        Case::new((2, 3, 3, 3), &[6, 16], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((2, 3, 9, 3), &[7, 7], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((2, 2, 4, 2), &[5, 34], &[5, 3], &[2, 2], &[1, 1], &[2, 1], &[2, 1]),
        Case::new((3, 2, 2, 2), &[4, 3], &[3, 3], &[1, 1], &[1, 1], &[3, 4], &[4, 3]),
        Case::new((2, 2, 2, 2), &[9, 10], &[2, 2], &[1, 1], &[7, 6], &[3, 1], &[2, 5]),
        // Sixteen channels at a time: lines of a few squares and of less than one, kept from chunk to
        // chunk, a last task of few channels, results of less than a square, taps from the last to
        // the first (the transpose of a step of one), a step longer than a window.
        Case::new((2, 16, 16, 16), &[7, 7], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((1, 37, 37, 37), &[45, 20], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((2, 20, 20, 20), &[29, 31], &[3, 3], &[2, 2], &[1, 1], &[1, 0], &[0, 1]),
        Case::new((1, 8, 8, 8), &[70, 9], &[5, 4], &[1, 2], &[2, 1], &[3, 6], &[4, 1]),
        Case::new((2, 19, 19, 19), &[300], &[4], &[1], &[3], &[5], &[0]),
        Case::new((1, 16, 16, 16), &[4, 5], &[3, 3], &[2, 2], &[1, 1], &[0, 0], &[0, 0]),
        Case::new((1, 17, 17, 17), &[50, 34], &[2, 2], &[4, 3], &[1, 1], &[7, 0], &[9, 5]),
        Case::new((1, 16, 16, 16), &[21, 3], &[2, 3], &[1, 1], &[1, 1], &[0, 2], &[3, 2]),
        Case::new((1, 2, 2, 1), &[0, 3], &[1, 2], &[1, 1], &[1, 1], &[1, 0], &[1, 0]),
    ]
}

/// The role's result, computed from operands of the case.
fn run(role: ConvRole, case: &Case, [x, w, g]: &[Array; 3]) -> Array {
    match role {
        ConvRole::Output => conv(role, x, w, &case.spec),
        ConvRole::Input => conv(role, g, w, &case.spec),
        ConvRole::Weight => conv(role, x, g, &case.spec),
    }
    .unwrap()
}

const ROLES: [ConvRole; 3] = [ConvRole::Output, ConvRole::Input, ConvRole::Weight];

#[test]
fn every_role_agrees_with_the_trilinear_form() {
    for (i, case) in cases().iter().enumerate() {
        for dtype in [DType::F32, DType::F64, DType::I16] {
            let arrays = case.shapes().map(|s| random(dtype, &s, 1 + s.len() as u64));
            let [x, w, g] = arrays.each_ref().map(values);
            let mut want = [vec![0.0; g.len()], vec![0.0; x.len()], vec![0.0; w.len()]];
            case.terms(|xi, wi, gi| {
                want[0][gi] += x[xi] * w[wi];
                want[1][xi] += g[gi] * w[wi];
                want[2][wi] += x[xi] * g[gi];
            });
            let shapes = [2, 0, 1].map(|i| Shape::of(&case.shapes()[i]));
            for (r, role) in ROLES.into_iter().enumerate() {
                let got = run(role, case, &arrays);
                assert_eq!((got.shape(), got.dtype), (&shapes[r], dtype));
                assert_eq!(values(&got), want[r], "case {i}, {role:?}, {dtype}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_layouts() {
    for (i, case) in cases().iter().enumerate() {
        for dtype in [DType::F32, DType::F16] {
            let [x, w, g] = case.shapes().map(|s| noise(dtype, &s, 7 + s[0] as u64));
            for role in ROLES {
                let want = bytes(&run(role, case, &[x.clone(), w.clone(), g.clone()]));
                for ((x, w), g) in layouts(&x).into_iter().zip(layouts(&w)).zip(layouts(&g)) {
                    assert!(bytes(&run(role, case, &[x, w, g])) == want, "case {i}, {role:?}");
                }
            }
        }
    }
}

#[test]
fn results_by_channel_have_the_bits_of_the_product() {
    let mut seen = 0;
    for (i, case) in cases().iter().chain(&more()).enumerate() {
        for dtype in [DType::F32, DType::F64, DType::I32] {
            let all = case.shapes().map(|s| noise(dtype, &s, 11 + s[1] as u64));
            let [x, w, g] = &all;
            for role in [ConvRole::Output, ConvRole::Input] {
                let a = if role == ConvRole::Output { x } else { g };
                if !is_depthwise(role, &a.layout, &w.layout, &case.spec) {
                    continue;
                }
                seen += 1;
                let got = run(role, case, &all);
                let want = Array::uninit(dtype, got.shape().clone()).unwrap();
                // SAFETY: fresh.
                unsafe {
                    match role {
                        ConvRole::Output => {
                            product_of_views(x, w, &case.spec, &want, Extras::default())
                        }
                        ConvRole::Input | ConvRole::Weight => {
                            copy::copy_into(&want, &input_of_views(g, w, case));
                            Ok(())
                        }
                    }
                    .unwrap();
                }
                assert!(bytes(&got) == bytes(&want), "case {i}, {role:?}, {dtype}");
            }
        }
    }
    assert!(seen >= 30, "{seen}");
}

#[test]
fn outputs_from_patches_have_the_bits_of_the_product() {
    let mut seen = 0;
    for (i, case) in cases().into_iter().chain(more()).enumerate() {
        for dtype in [DType::F32, DType::F64, DType::I64] {
            let [x, w, g] = case.shapes().map(|s| noise(dtype, &s, 3 + s[1] as u64));
            let is_direct = with_accumulator!(dtype, T => {
                let (xs, ws) = (sides(&x), sides(&w));
                direct::scratch::<T>(&output_windows(&xs, &ws, &case.spec), false).is_some()
            });
            if !is_direct || case.shapes()[2].contains(&0) {
                continue;
            }
            seen += 1;
            let want = Array::uninit(dtype, g.shape().clone()).unwrap();
            let none = Extras::default();
            // SAFETY: fresh.
            unsafe { product_of_views(&x, &w, &case.spec, &want, none).unwrap() };
            for (x, w) in layouts(&x).into_iter().zip(layouts(&w)) {
                let got = conv(ConvRole::Output, &x, &w, &case.spec).unwrap();
                assert!(bytes(&got) == bytes(&want), "case {i}, {dtype}");
                // SAFETY: the axes are those of the array; the result is fresh.
                let packed = unsafe { Packed::new(dtype, &columns(&w, &case.spec)) };
                let packed = packed.unwrap().unwrap();
                let extras = Extras { packed: Some(&packed), ..Extras::default() };
                let got = Array::uninit(dtype, g.shape().clone()).unwrap();
                // SAFETY: as above.
                unsafe { output(&x, &w, &case.spec, &got, extras).unwrap() };
                assert!(bytes(&got) == bytes(&want), "case {i}, {dtype}, packed weights");
            }
        }
    }
    assert!(seen >= 24, "{seen}");
}

#[test]
fn outputs_with_channels_innermost_have_the_bits_of_others() {
    // Beside those of all kinds: parts of channels and of lines, and few channels beside whole
    // vectors.
    let own = [
        Case::new((2, 48, 48, 48), &[14, 15], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((1, 70, 70, 70), &[60, 61], &[3, 3], &[2, 2], &[1, 1], &[1, 1], &[0, 1]),
        Case::new((1, 160, 160, 160), &[7, 7], &[5, 5], &[1, 1], &[1, 1], &[2, 2], &[2, 2]),
        Case::new((2, 40, 64, 1), &[14, 14], &[1, 1], &[1, 1], &[1, 1], &[0, 0], &[0, 0]),
        Case::new((3, 300, 24, 1), &[9, 7], &[1, 1], &[2, 3], &[1, 1], &[0, 0], &[0, 0]),
        Case::new((2, 17, 33, 1), &[8, 8], &[1, 1], &[1, 1], &[1, 1], &[1, 0], &[0, 2]),
        Case::new((1, 3, 32, 1), &[57, 60], &[3, 3], &[2, 2], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((2, 3, 24, 1), &[31], &[5], &[1], &[1], &[2], &[2]),
        // Images by channel that are read where they lie, but for their edges.
        Case::new((2, 48, 48, 48), &[40, 37], &[3, 3], &[2, 2], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((1, 160, 160, 160), &[33, 50], &[3, 3], &[2, 2], &[1, 2], &[2, 1], &[1, 0]),
        Case::new((1, 16, 16, 16), &[31, 64], &[5, 5], &[3, 3], &[1, 1], &[4, 5], &[3, 6]),
        Case::new((2, 32, 32, 32), &[90], &[3], &[2], &[1], &[1], &[2]),
        // Steps so long that a line of results is all that a patch holds.
        Case::new((1, 24, 24, 24), &[300, 310], &[3, 3], &[90, 99], &[1, 1], &[1, 1], &[0, 0]),
    ];
    let (mut seen, places) = (0, |x: &Array| x.shape().sizes()[2..].iter().product::<usize>());
    for case in own.into_iter().chain(cases()).chain(more()) {
        let [x, w, g] = case.shapes().map(|s| noise(DType::F32, &s, 3 + s[1] as u64));
        let op = Op::Conv(ConvRole::Output, Box::new(case.spec.clone()));
        let of = |x: &Array| Type::new(x.dtype, x.shape().clone());
        let offer = channels_last(&op, &of(&x), &of(&w));
        if offer == ChannelsLast::Never || g.count() == 0 {
            continue;
        }
        seen += 1;
        let want = conv(ConvRole::Output, &x, &w, &case.spec).unwrap();
        let lying = |x: &Array| {
            let line = Array::uninit(x.dtype, Shape::of(&[x.count()])).unwrap();
            line.view(Layout::channels_last(x.shape()))
        };
        let last = lying(&x);
        // SAFETY: fresh.
        unsafe { copy::copy_into(&last, &x) };
        for x in layouts(&x).into_iter().chain([last]) {
            // SAFETY: the axes are those of the array.
            let packed = unsafe { Packed::new(DType::F32, &columns(&w, &case.spec)).unwrap() };
            for packed in [packed.as_ref().filter(|_| case.spec.groups == 1), None] {
                let count = std::sync::Mutex::new(vec![0; g.count()]);
                let rows = case.o / case.spec.groups;
                let told = |item: usize, channels: Range<usize>, some: Range<usize>| {
                    let mut count = count.lock().unwrap();
                    for at in channels.flat_map(|c| some.clone().map(move |q| (c, q))) {
                        count[(item * rows + at.0) * places(&g) + at.1] += 1;
                    }
                };
                let got = lying(&g);
                let extras = Extras { packed, epilogue: Some(&told), ..Extras::default() };
                // SAFETY: fresh.
                unsafe { output(&x, &w, &case.spec, &got, extras).unwrap() };
                let dense = copy::contiguous(&got).unwrap();
                assert!(bytes(&dense) == bytes(&want), "{:?} {offer:?}", case.shapes());
                assert!(count.lock().unwrap().iter().all(|&n| n == 1), "{:?}", case.shapes());
            }
        }
    }
    assert!(seen >= 20, "{seen}");
}

#[test]
fn packed_weights_of_one_tap_have_the_bits_of_the_product() {
    // Places that are read where they lie: few and many, rows in whole panels, halves of them, and
    // less, sums of several blocks, groups, and as many multiplications as threads share.
    let sizes = [
        ((1, 40, 64, 1), vec![7, 7]),
        ((2, 300, 48, 1), vec![5, 3]),
        ((3, 17, 33, 1), vec![14, 14]),
        ((1, 600, 160, 1), vec![7, 7]),
        ((2, 520, 16, 1), vec![196]),
        ((1, 512, 96, 1), vec![2, 7, 14]),
        ((1, 3, 5, 1), vec![1, 1]),
    ];
    for ((n, c, o, groups), x) in sizes {
        let (ones, none) = (vec![1; x.len()], vec![0; x.len()]);
        let case = Case::new((n, c, o, groups), &x, &ones, &ones, &ones, &none, &none);
        for dtype in [DType::F32, DType::F64] {
            let [x, w, g] = case.shapes().map(|s| noise(dtype, &s, 3 + s[1] as u64));
            let want = Array::uninit(dtype, g.shape().clone()).unwrap();
            // SAFETY: fresh.
            unsafe { product_of_views(&x, &w, &case.spec, &want, Extras::default()).unwrap() };
            for (x, w) in layouts(&x).into_iter().zip(layouts(&w)) {
                // SAFETY: the axes are those of the array.
                let packed = unsafe { Packed::new(dtype, &columns(&w, &case.spec)) };
                let packed = packed.unwrap().unwrap();
                let seen = std::sync::Mutex::new(vec![0; want.count()]);
                let places: usize = case.x.iter().product();
                let count = |item: usize, rows: Range<usize>, some: Range<usize>| {
                    let mut seen = seen.lock().unwrap();
                    for row in rows {
                        for place in some.clone() {
                            seen[(item * o + row) * places + place] += 1;
                        }
                    }
                };
                let extras =
                    Extras { packed: Some(&packed), epilogue: Some(&count), ..Extras::default() };
                let got = Array::uninit(dtype, g.shape().clone()).unwrap();
                // SAFETY: fresh.
                unsafe { output(&x, &w, &case.spec, &got, extras).unwrap() };
                assert!(bytes(&got) == bytes(&want), "{:?}, {dtype}", case.shapes());
                assert!(seen.lock().unwrap().iter().all(|&n| n == 1), "{:?}", case.shapes());
            }
        }
    }
}

/// The input by products of views.
fn input_of_views(g: &Array, w: &Array, case: &Case) -> Array {
    let shape = Shape::of(&case.shapes()[0]);
    let out = Array::uninit(g.dtype, shape).unwrap();
    let phases = phases(&sides(w), &case.spec);
    let (_padded, cx) = Transposed::new(g, w, &phases, &case.spec).unwrap();
    for at in 0..combinations(&phases) {
        // SAFETY: fresh.
        unsafe { phase_of_views(&cx, &chosen(&phases, at), &out).unwrap() };
    }
    out
}

#[test]
fn inputs_from_patches_have_the_bits_of_the_product() {
    let mut seen = 0;
    for (i, case) in cases().into_iter().chain(more()).enumerate() {
        for dtype in [DType::F32, DType::F64, DType::I64] {
            let [_, w, g] = case.shapes().map(|s| noise(dtype, &s, 3 + s[1] as u64));
            let (gs, ws) = (sides(&g), sides(&w));
            let all = phases(&ws, &case.spec);
            seen += with_accumulator!(dtype, T => (0..combinations(&all)).filter(|&at| {
                let sweeps = chosen(&all, at);
                let windows =
                    input_windows(&gs, &ws, case.spec.groups, sweeps, dtype.size());
                direct::scratch::<T>(&windows, false).is_some()
            }).count());
            let want = bytes(&input_of_views(&g, &w, &case));
            for (g, w) in layouts(&g).into_iter().zip(layouts(&w)) {
                let got = conv(ConvRole::Input, &g, &w, &case.spec).unwrap();
                assert!(bytes(&got) == want, "case {i}, {dtype}");
            }
        }
    }
    assert!(seen >= 40, "{seen}");
}

/// Convolutions of several patches.
fn more() -> Vec<Case> {
    vec![
        Case::new((1, 2, 4, 2), &[83, 91], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((2, 3, 6, 1), &[61], &[5], &[1], &[1], &[2], &[2]),
        Case::new((2, 4, 13, 1), &[97], &[4], &[3], &[2], &[5], &[0]),
        Case::new((2, 30, 25, 1), &[9, 14], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((1, 3, 64, 1), &[40, 37], &[7, 7], &[2, 2], &[1, 1], &[3, 3], &[3, 3]),
        Case::new((2, 8, 10, 2), &[23, 19], &[2, 3], &[3, 2], &[2, 3], &[0, 4], &[2, 1]),
        Case::new((1, 64, 5, 1), &[70, 90], &[3, 3], &[1, 1], &[2, 2], &[2, 2], &[2, 2]),
        Case::new(
            (1, 5, 4, 1),
            &[7, 8, 9],
            &[2, 3, 2],
            &[1, 2, 1],
            &[2, 1, 3],
            &[1, 1, 0],
            &[0, 2, 3],
        ),
        Case::new((1, 2, 4, 1), &[5, 50], &[3, 1], &[4, 1], &[3, 1], &[9, 0], &[8, 0]),
        Case::new((2, 40, 33, 1), &[20, 21], &[3, 3], &[2, 2], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((1, 9, 20, 1), &[24, 30], &[4, 5], &[1, 1], &[1, 2], &[0, 3], &[6, 2]),
        // Tiles of several lines: columns over after whole tiles along a line, more lines than those
        // of a tile, less than a panel of rows, sums of several blocks, a further axis.
        Case::new((1, 30, 40, 1), &[7, 7], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((2, 3, 24, 1), &[13, 14], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        Case::new((1, 2, 72, 2), &[25, 15], &[2, 3], &[2, 1], &[1, 1], &[1, 1], &[0, 1]),
        Case::new((1, 6, 16, 1), &[11, 64], &[3, 2], &[1, 1], &[1, 1], &[1, 0], &[1, 0]),
        Case::new((1, 4, 20, 1), &[12, 4], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        Case::new(
            (1, 3, 32, 1),
            &[3, 13, 9],
            &[2, 3, 3],
            &[1, 1, 1],
            &[1, 1, 1],
            &[1, 1, 1],
            &[0, 1, 1],
        ),
    ]
}

#[test]
fn weights_by_channel_keep_to_the_bound_of_products() {
    for (i, case) in cases().iter().enumerate() {
        let [x, _, g] = case.shapes().map(|s| noise(DType::F32, &s, 5 + s[1] as u64));
        if !is_depthwise(ConvRole::Weight, &x.layout, &g.layout, &case.spec) {
            continue;
        }
        let dw = conv(ConvRole::Weight, &x, &g, &case.spec).unwrap();
        let (xs, gs) = (values(&x), values(&g));
        let mut sums = vec![(0.0, 0.0f64, 0); dw.count()];
        case.terms(|xi, wi, gi| {
            let (sum, size, terms) = &mut sums[wi];
            *sum += xs[xi] * gs[gi];
            *size += (xs[xi] * gs[gi]).abs();
            *terms += 1;
        });
        for (got, (want, size, terms)) in values(&dw).into_iter().zip(sums) {
            let bound = size * gemm::depth(terms) as f64 * f64::from(f32::EPSILON) / 2.0;
            assert!((got - want).abs() <= bound, "case {i}: {got} for {want}, bound {bound:e}");
        }
    }
}

#[test]
fn padding_takes_no_part_in_sums() {
    for case in cases().into_iter().chain(more()) {
        let [x, w, g] = case.shapes().map(|s| noise(DType::F32, &s, 21 + s[1] as u64));
        // An infinite weight and gradient now and then, and terms of one sign with them.
        let holed = |x: &Array| {
            let numbers: Vec<f64> = values(x)
                .iter()
                .enumerate()
                .map(|(i, x)| if i % 13 == 5 { f64::INFINITY } else { x.abs() + 0.5 })
                .collect();
            array(DType::F32, &x.shape().sizes(), &numbers)
        };
        let plain = |x: &Array| {
            let numbers: Vec<f64> = values(x).iter().map(|x| x.abs() + 0.5).collect();
            array(DType::F32, &x.shape().sizes(), &numbers)
        };
        for role in ROLES {
            let all = match role {
                ConvRole::Output | ConvRole::Input => [plain(&x), holed(&w), plain(&g)],
                ConvRole::Weight => [plain(&x), plain(&w), holed(&g)],
            };
            let mut want = vec![0.0; run(role, &case, &all).count()];
            let [xs, ws, gs] = all.each_ref().map(values);
            case.terms(|xi, wi, gi| match role {
                ConvRole::Output => want[gi] += xs[xi] * ws[wi],
                ConvRole::Input => want[xi] += gs[gi] * ws[wi],
                ConvRole::Weight => want[wi] += xs[xi] * gs[gi],
            });
            for (got, want) in values(&run(role, &case, &all)).into_iter().zip(want) {
                let is_near = (got - want).abs() <= 1e-4 * want.abs();
                assert!(got == want || is_near, "{role:?}: {got} for {want}");
            }
        }
    }
}
