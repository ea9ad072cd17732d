//! Convolutions against their trilinear form, and against each other.

use super::*;
use crate::cpu::copy::fill;
use crate::cpu::testing::{bytes, conv, layouts, noise, random, values};
use crate::dtype::DType;

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
    for (i, case) in cases().iter().enumerate() {
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
                        ConvRole::Input | ConvRole::Weight => input(g, w, &case.spec, &want),
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
    let more = [
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
    ];
    let mut seen = 0;
    for (i, case) in cases().iter().chain(&more).enumerate() {
        for dtype in [DType::F32, DType::F64, DType::I64] {
            let [x, w, g] = case.shapes().map(|s| noise(dtype, &s, 3 + s[1] as u64));
            let is_direct = with_accumulator!(dtype, T => {
                direct::scratch::<T>(&x.layout, &w.layout, &case.spec).is_some()
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
            }
        }
    }
    assert!(seen >= 24, "{seen}");
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
fn padding_takes_no_part_in_sums_by_channel() {
    let case = Case::new((1, 2, 2, 2), &[5, 5], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]);
    let [x, w, _] = case.shapes().map(|s| Shape::of(&s));
    let x = fill(Scalar::Float(1.0), DType::F32, &x).unwrap();
    let w = fill(Scalar::Float(f64::INFINITY), DType::F32, &w).unwrap();
    for role in [ConvRole::Output, ConvRole::Input] {
        let y = values(&conv(role, &x, &w, &case.spec).unwrap());
        assert!(y.iter().all(|y| *y == f64::INFINITY), "{role:?}: {y:?}");
    }
}
