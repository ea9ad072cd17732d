use super::backward::Saved;
use super::{backward_into, forward_into};
use crate::array::Array;
use crate::cpu::copy;
use crate::cpu::gemm;
use crate::cpu::testing::{array, bytes, layouts, noise, values};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Layout;
use crate::memory;
use crate::shape::Shape;
use crate::threads;

/// Sizes of a problem: examples, queries, keys, and elements of a key and of a value.
type Sizes = [usize; 5];

/// What may be looked at besides the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Masks {
    None,
    /// One row for all queries and examples
    Keys,
    /// Truth values for each score
    Bool,
    /// Numbers to add
    Float,
}

const MASKS: [Masks; 4] = [Masks::None, Masks::Keys, Masks::Bool, Masks::Float];

/// The kernel into fresh results.
fn forward(
    q: &Array,
    k: &Array,
    v: &Array,
    mask: Option<&Array>,
    causal: bool,
    scale: f64,
) -> Result<(Array, Array)> {
    let mut sizes = q.shape().sizes();
    let rank = sizes.len();
    sizes[rank - 1] = v.shape()[rank - 1].value();
    let y = Array::uninit(q.dtype, Shape::of(&sizes))?;
    let logsums = Array::uninit(gemm::accumulator(q.dtype), Shape::of(&sizes[..rank - 1]))?;
    // SAFETY: fresh.
    unsafe { forward_into(q, k, v, mask, causal, scale, [&y, &logsums])? };
    Ok((y, logsums))
}

/// The kernel into fresh results, as far as they are wanted.
fn backward(
    [q, k, v]: [&Array; 3],
    mask: Option<&Array>,
    causal: bool,
    scale: f64,
    saved: Saved<'_>,
    wanted: [bool; 4],
) -> Result<[Option<Array>; 4]> {
    let scores = || {
        let mut sizes = q.shape().sizes();
        let rank = sizes.len();
        sizes[rank - 1] = k.shape()[rank - 2].value();
        Shape::of(&sizes)
    };
    let fresh = |i: usize| -> Result<Option<Array>> {
        let like = match i {
            0 => Some((q.dtype, q.shape().clone())),
            1 => Some((k.dtype, k.shape().clone())),
            2 => Some((v.dtype, v.shape().clone())),
            _ => mask.filter(|mask| mask.dtype.is_float()).map(|mask| (mask.dtype, scores())),
        };
        let like = like.filter(|_| wanted[i]);
        like.map(|(dtype, shape)| Array::uninit(dtype, shape)).transpose()
    };
    let to = [fresh(0)?, fresh(1)?, fresh(2)?, fresh(3)?];
    // SAFETY: fresh.
    unsafe {
        backward_into([q, k, v], mask, causal, scale, saved, to.each_ref().map(Option::as_ref))?
    };
    Ok(to)
}

struct Problem {
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    g_logsums: Array,
    mask: Option<Array>,
    causal: bool,
    scale: f64,
    sizes: Sizes,
}

fn problem(dtype: DType, sizes: Sizes, masks: Masks, causal: bool) -> Problem {
    let [b, l, s, e, f] = sizes;
    let part = |sizes: &[usize], seed| noise(dtype, sizes, seed);
    // Every row but the last lets something through: the first key, or the last.
    let open = |i: usize, j: usize| j == 0 || j + 1 == s || (i * 7 + j * 3) % 5 < 3;
    let mask = match masks {
        Masks::None => None,
        Masks::Keys => {
            let row: Vec<f64> = (0..s).map(|j| f64::from(open(0, j))).collect();
            let row = array(DType::Bool, &[1, 1, s], &row);
            Some(row.view(Layout::strided(Shape::of(&[b, l, s]), &[0, 0, 1], 0)))
        }
        Masks::Bool => {
            let all: Vec<f64> = (0..b * l * s).map(|i| f64::from(open(i / s, i % s))).collect();
            Some(array(DType::Bool, &[b, l, s], &all))
        }
        Masks::Float => Some(noise(dtype, &[b, l, s], 9)),
    };
    Problem {
        q: part(&[b, l, e], 1),
        k: part(&[b, s, e], 2),
        v: part(&[b, s, f], 3),
        g: part(&[b, l, f], 4),
        g_logsums: noise(gemm::accumulator(dtype), &[b, l], 5),
        mask,
        causal,
        scale: 1.5 / (e.max(1) as f64).sqrt(),
        sizes,
    }
}

impl Problem {
    fn forward(&self) -> (Array, Array) {
        forward(&self.q, &self.k, &self.v, self.mask.as_ref(), self.causal, self.scale).unwrap()
    }

    fn backward(&self) -> [Array; 4] {
        let (y, logsums) = self.forward();
        let all = self.wanted(&y, &logsums, [true; 4]);
        all.map(|x| x.unwrap_or_else(|| array(DType::F32, &[0], &[])))
    }

    fn wanted(&self, y: &Array, logsums: &Array, wanted: [bool; 4]) -> [Option<Array>; 4] {
        let saved = Saved { y, logsums, g: &self.g, g_logsums: Some(&self.g_logsums) };
        let operands = [&self.q, &self.k, &self.v];
        backward(operands, self.mask.as_ref(), self.causal, self.scale, saved, wanted).unwrap()
    }

    /// The bytes of everything.
    fn all(&self) -> Vec<Vec<u8>> {
        let (y, logsums) = self.forward();
        [y, logsums].iter().chain(&self.backward()).map(bytes).collect()
    }
}

/// What plain loops give, in double precision.
struct Plain {
    y: Vec<f64>,
    logsums: Vec<f64>,
    gradients: [Vec<f64>; 4],
    /// The largest `Σ |q k|` scaled and shifted, `Σ |g v|`, and sum of the weights of a key
    scores: f64,
    slopes: f64,
    weights: f64,
}

fn plain(p: &Problem) -> Plain {
    let [b, l, s, e, f] = p.sizes;
    let [q, k, v, g, gl] = [&p.q, &p.k, &p.v, &p.g, &p.g_logsums].map(values);
    let is_bool = p.mask.as_ref().is_some_and(|mask| mask.dtype == DType::Bool);
    let mask = p.mask.as_ref().map(values);
    let mut out = Plain {
        y: vec![0.0; b * l * f],
        logsums: vec![0.0; b * l],
        gradients: [b * l * e, b * s * e, b * s * f, b * l * s].map(|n| vec![0.0; n]),
        scores: 0.0,
        slopes: 0.0,
        weights: 0.0,
    };
    let mut columns = vec![0.0; b * s];
    for row in 0..b * l {
        let (item, i) = (row / l, row % l);
        let dot = |x: &[f64], y: &[f64]| -> (f64, f64) {
            let terms = x.iter().zip(y).map(|(x, y)| x * y);
            terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()))
        };
        let key = |j: usize| &k[(item * s + j) * e..][..e];
        let value = |j: usize| &v[(item * s + j) * f..][..f];
        let (query, cotangent) = (&q[row * e..][..e], &g[row * f..][..f]);
        let mut scores = vec![0.0; s];
        for (j, score) in scores.iter_mut().enumerate() {
            let (sum, size) = dot(query, key(j));
            *score = sum * p.scale;
            let shift = mask.as_ref().map_or(1.0, |mask| mask[row * s + j]);
            let is_hidden = is_bool && shift == 0.0 || p.causal && j > i;
            *score += if is_bool || mask.is_none() { 0.0 } else { shift };
            out.scores = out.scores.max(size * p.scale + shift.abs());
            *score = if is_hidden { f64::NEG_INFINITY } else { *score };
        }
        let top = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
        let logsum = top + scores.iter().map(|x| (x - top).exp()).sum::<f64>().ln();
        out.logsums[row] = logsum;
        let weights: Vec<f64> = scores.iter().map(|x| (x - logsum).exp()).collect();
        let mut offset = -gl[row];
        for (j, w) in weights.iter().enumerate() {
            for c in 0..f {
                out.y[row * f + c] += w * value(j)[c];
            }
            let (sum, size) = dot(cotangent, value(j));
            offset += w * sum;
            out.slopes = out.slopes.max(size + gl[row].abs());
            columns[item * s + j] += w;
        }
        for (j, w) in weights.iter().enumerate() {
            let slope = w * (dot(cotangent, value(j)).0 - offset);
            out.gradients[3][row * s + j] = slope;
            for (c, (q, k)) in query.iter().zip(key(j)).enumerate() {
                out.gradients[0][row * e + c] += slope * p.scale * k;
                out.gradients[1][(item * s + j) * e + c] += slope * p.scale * q;
            }
            for (c, g) in cotangent.iter().enumerate() {
                out.gradients[2][(item * s + j) * f + c] += w * g;
            }
        }
    }
    out.weights = columns.into_iter().fold(0.0, f64::max);
    out
}

/// Half a unit in the last place of 1.
fn unit(dtype: DType) -> f64 {
    #[allow(clippy::wildcard_enum_match_arm, reason = "operands are floating")]
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        DType::F32 => 2f64.powi(-24),
        _ => 2f64.powi(-53),
    }
}

fn compare(what: &str, got: &Array, want: &[f64], bound: f64, dtype: DType) {
    for (i, (got, want)) in values(got).into_iter().zip(want).enumerate() {
        let bound = bound + unit(dtype) * want.abs();
        let both_infinite = got == *want;
        assert!(
            both_infinite || (got - want).abs() <= bound,
            "{what} {i}: {got}, wanted {want} within {bound:e}"
        );
    }
    assert_eq!(got.count(), want.len(), "{what}");
}

/// Holds a problem against plain loops. With `u` the unit of the accumulator: a score is off by
/// `δ = (e + 3) u Σ|q k|`, a weight by `ε = 2 δ + (s + 16) u` of itself, and so on along the
/// formulas. The results that backward reads are rounded to their dtype.
fn check(dtype: DType, sizes: Sizes, masks: Masks, causal: bool) {
    let p = problem(dtype, sizes, masks, causal);
    let [_, l, s, e, f] = sizes.map(|n| n as f64);
    let want = plain(&p);
    let u = unit(gemm::accumulator(dtype));
    let delta = (e + 3.0) * u * want.scores.max(1.0);
    let weight = 2.0 * delta + (s + 16.0) * u;
    let (y, logsums) = p.forward();
    assert_eq!((y.dtype, logsums.dtype), (dtype, gemm::accumulator(dtype)));
    let case = format!("{dtype} {sizes:?} {masks:?} causal {causal}:");
    compare(&format!("{case} y"), &y, &want.y, 2.0 * weight, dtype);
    let bound = delta + (s + 16.0) * u * (1.0 + s.ln().abs());
    compare(&format!("{case} logsums"), &logsums, &want.logsums, bound, gemm::accumulator(dtype));
    let [dq, dk, dv, dm] = p.wanted(&y, &logsums, [true; 4]);
    let slope = want.slopes.max(1.0) * (2.0 * weight + (4.0 * f + 16.0) * u + 2.0 * unit(dtype));
    let rows = want.weights.max(1.0);
    let bounds = [
        p.scale * (slope + s * u * want.slopes),
        p.scale * rows * (slope + l * u * want.slopes),
        rows * (weight + l * u),
        slope,
    ];
    for (i, (got, name)) in [dq, dk, dv, dm].into_iter().zip(["dq", "dk", "dv", "dm"]).enumerate() {
        let Some(got) = got else {
            assert!(i == 3 && masks != Masks::Float);
            continue;
        };
        compare(&format!("{case} {name}"), &got, &want.gradients[i], 2.0 * bounds[i], dtype);
    }
}

const SIZES: [Sizes; 9] = [
    [1, 1, 1, 1, 1],
    [2, 3, 5, 4, 7],
    [1, 48, 128, 16, 32],
    [2, 49, 129, 17, 33],
    [1, 100, 300, 64, 24],
    [1, 300, 70, 8, 40],
    [3, 1, 200, 24, 12],
    [1, 97, 1, 5, 5],
    [1, 13, 260, 300, 3],
];

#[test]
fn results_agree_with_plain_loops() {
    for sizes in SIZES {
        for masks in MASKS {
            for causal in [false, true] {
                check(DType::F32, sizes, masks, causal);
            }
        }
    }
}

#[test]
fn results_of_every_floating_dtype_agree_with_plain_loops() {
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        for sizes in [[2, 3, 5, 4, 7], [1, 100, 140, 20, 33]] {
            for masks in MASKS {
                check(dtype, sizes, masks, masks == Masks::Keys);
            }
        }
    }
}

#[test]
fn large_scores_neither_overflow_nor_vanish() {
    let mut p = problem(DType::F32, [1, 60, 300, 16, 8], Masks::None, true);
    p.scale = 400.0;
    let want = plain(&p);
    let (y, logsums) = p.forward();
    let delta = 2f64.powi(-24) * 40.0 * want.scores;
    compare("y", &y, &want.y, 4.0 * delta, DType::F32);
    compare("logsums", &logsums, &want.logsums, 2.0 * delta, DType::F32);
}

#[test]
fn bits_do_not_depend_on_layouts() {
    for (dtype, sizes) in [(DType::F32, [2, 50, 131, 18, 35]), (DType::BF16, [2, 9, 20, 5, 7])] {
        for masks in [Masks::Bool, Masks::Float] {
            let p = problem(dtype, sizes, masks, true);
            let want = p.all();
            let count = layouts(&p.q).len();
            for i in 0..count {
                // Another layout for each.
                let lay = |x: &Array, by: usize| layouts(x)[(i + by) % count].clone();
                let p = Problem {
                    q: lay(&p.q, 0),
                    k: lay(&p.k, 3),
                    v: lay(&p.v, 5),
                    g: lay(&p.g, 7),
                    g_logsums: lay(&p.g_logsums, 2),
                    mask: p.mask.as_ref().map(|mask| lay(mask, 4)),
                    ..p
                };
                assert!(p.all() == want, "{dtype} {masks:?} layout {i}");
                let (y, logsums) = p.forward();
                let saved = p.wanted(&lay(&y, 1), &lay(&logsums, 6), [true; 4]);
                let saved = saved.iter().flatten().map(bytes);
                assert!(saved.zip(&want[2..]).all(|(got, want)| got == *want));
            }
        }
    }
}

#[test]
fn a_mask_may_repeat_along_any_axis() {
    let sizes = [3, 50, 131, 8, 8];
    let [b, l, s, ..] = sizes;
    for dtype in [DType::Bool, DType::F32] {
        for repeats in [[false, true, true], [true, false, true], [true, true, false], [true; 3]] {
            let once: Vec<usize> =
                [b, l, s].iter().zip(repeats).map(|(n, r)| if r { 1 } else { *n }).collect();
            let mask = noise(DType::F32, &once, 3);
            let mask = if dtype == DType::Bool {
                let bits: Vec<f64> = values(&mask).iter().map(|x| f64::from(*x > -0.7)).collect();
                array(DType::Bool, &once, &bits)
            } else {
                mask
            };
            let repeated = mask.layout.broadcast_strides(&Shape::of(&[b, l, s]));
            let view = mask.view(Layout::strided(Shape::of(&[b, l, s]), &repeated, 0));
            let full = array(dtype, &[b, l, s], &values(&view));
            let p = problem(DType::F32, sizes, Masks::None, false);
            let [small, view, full] = [mask, view, full].map(|m| Problem {
                mask: Some(m),
                q: p.q.clone(),
                k: p.k.clone(),
                v: p.v.clone(),
                g: p.g.clone(),
                g_logsums: p.g_logsums.clone(),
                ..p
            });
            assert!(view.all() == full.all() && small.all() == full.all(), "{dtype} {repeats:?}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_count_of_threads() {
    let before = threads::num_threads();
    for sizes in [[1, 400, 700, 32, 32], [7, 100, 260, 16, 24]] {
        for (masks, causal) in [(Masks::None, true), (Masks::Bool, false)] {
            let p = problem(DType::F32, sizes, masks, causal);
            let all = [1, 2, 4, 7].map(|n| {
                threads::set_num_threads(n);
                p.all()
            });
            threads::set_num_threads(before);
            assert!(all.iter().all(|x| *x == all[0]), "{sizes:?} {masks:?}");
        }
    }
}

#[test]
fn an_example_has_the_same_bits_alone_and_beside_others() {
    let sizes = [5, 60, 150, 16, 24];
    let [b, l, s, ..] = sizes;
    let p = problem(DType::F32, sizes, Masks::Bool, true);
    let all = p.all();
    for item in 0..b {
        let one = |x: &Array| {
            let sizes: Vec<usize> =
                std::iter::once(1).chain(x.shape().sizes().into_iter().skip(1)).collect();
            let offset = x.layout.offset() + item * x.layout.strides()[0] as usize;
            x.view(Layout::strided(Shape::of(&sizes), &x.layout.strides(), offset))
        };
        let alone = Problem {
            q: one(&p.q),
            k: one(&p.k),
            v: one(&p.v),
            g: one(&p.g),
            g_logsums: one(&p.g_logsums),
            mask: p.mask.as_ref().map(one),
            causal: true,
            scale: p.scale,
            sizes: [1, l, s, sizes[3], sizes[4]],
        };
        for (alone, all) in alone.all().iter().zip(&all) {
            let n = alone.len();
            assert!(all[item * n..(item + 1) * n] == **alone, "{item}");
        }
    }
}

#[test]
fn a_query_has_the_same_bits_alone_and_beside_others() {
    for ([b, s, e, f], masks) in
        [([12, 300, 64, 64], Masks::None), ([16, 77, 300, 40], Masks::Float)]
    {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let p = problem(dtype, [b, 40, s, e, f], masks, false);
            let (all, logsums) = forward(&p.q, &p.k, &p.v, p.mask.as_ref(), false, 0.3).unwrap();
            let first = |x: &Array| {
                let mut sizes = x.shape().sizes();
                sizes[1] = 1;
                let strides = x.layout.strides();
                x.view(Layout::strided(Shape::of(&sizes), &strides, 0))
            };
            let copied = |x: &Array| bytes(&copy::contiguous(&first(x)).unwrap()).to_vec();
            let mask = p.mask.as_ref().map(first);
            let (few, few_logsums) =
                forward(&first(&p.q), &p.k, &p.v, mask.as_ref(), false, 0.3).unwrap();
            assert!(bytes(&few) == copied(&all), "{dtype} {s}");
            assert!(bytes(&few_logsums) == copied(&logsums), "{dtype} {s}");
        }
    }
}

#[test]
fn cotangents_are_the_same_whichever_are_wanted() {
    let p = problem(DType::F32, [2, 60, 150, 16, 24], Masks::Float, true);
    let (y, logsums) = p.forward();
    let all = p.wanted(&y, &logsums, [true; 4]).map(|x| bytes(&x.unwrap()));
    for some in 0..16 {
        let wanted: [bool; 4] = std::array::from_fn(|i| some >> i & 1 == 1);
        let got = p.wanted(&y, &logsums, wanted);
        for i in 0..4 {
            assert_eq!(got[i].is_some(), wanted[i]);
            assert!(got[i].as_ref().is_none_or(|x| bytes(x) == all[i]), "{some} {i}");
        }
    }
}

#[test]
fn a_row_that_attends_to_nothing_is_nan_and_leaves_the_other_rows_alone() {
    let (l, s) = (70, 260);
    let empty = 50;
    for dtype in [DType::Bool, DType::F32] {
        let low = if dtype == DType::Bool { 0.0 } else { f64::NEG_INFINITY };
        let high = if dtype == DType::Bool { 1.0 } else { 0.0 };
        let mask: Vec<f64> = (0..l * s).map(|i| if i / s == empty { low } else { high }).collect();
        let mut p = problem(DType::F32, [1, l, s, 8, 4], Masks::None, false);
        let (want, _) = p.forward();
        p.mask = Some(array(dtype, &[1, l, s], &mask));
        let (y, logsums) = p.forward();
        assert_eq!(values(&logsums)[empty], f64::NEG_INFINITY);
        for (i, (got, want)) in values(&y).into_iter().zip(values(&want)).enumerate() {
            assert!(if i / 4 == empty { got.is_nan() } else { got == want });
        }
        // Its weights are NaN. What a bool mask takes away has no cotangent.
        let [dq, dk, dv, _] = p.backward();
        let is_nan = |x: &Array| values(x).iter().map(|x| x.is_nan()).collect::<Vec<_>>();
        let is_float = dtype != DType::Bool;
        assert!(is_nan(&dv).iter().all(|x| *x) && is_nan(&dk).iter().all(|x| *x == is_float));
        for (i, x) in is_nan(&dq).into_iter().enumerate() {
            assert_eq!(x, is_float && i / 8 == empty);
        }
    }
    let nothing = problem(DType::F32, [2, 3, 0, 4, 5], Masks::None, false);
    let (y, logsums) = nothing.forward();
    assert!(values(&y).iter().all(|x| x.is_nan()));
    assert_eq!(values(&logsums), [f64::NEG_INFINITY; 6]);
}

#[test]
fn sizes_may_be_zero() {
    for at in 0..5 {
        for masks in MASKS {
            let mut sizes = [2, 3, 4, 5, 6];
            sizes[at] = 0;
            let p = problem(DType::F32, sizes, masks, true);
            let [b, l, s, e, f] = sizes;
            let (y, logsums) = p.forward();
            assert_eq!((y.shape(), logsums.shape()), (&Shape::of(&[b, l, f]), &Shape::of(&[b, l])));
            let [dq, dk, dv, _] = p.backward();
            assert_eq!((dq.shape(), dk.shape()), (&Shape::of(&[b, l, e]), &Shape::of(&[b, s, e])));
            assert_eq!(dv.shape(), &Shape::of(&[b, s, f]));
            if l > 0 && s > 0 {
                check(DType::F32, sizes, masks, false);
            }
            if l == 0 {
                assert!(values(&dk).iter().chain(&values(&dv)).all(|x| *x == 0.0));
            }
        }
    }
}

/// The most bytes that were live at once while something was made, beyond those before and after.
fn taken<T>(make: impl Fn() -> T) -> usize {
    drop(make());
    let before = memory::stats().live_bytes;
    memory::reset_peak();
    let made = make();
    let (after, peak) = (memory::stats().live_bytes, memory::stats().peak_bytes);
    drop(made);
    peak - before.max(after)
}

#[test]
fn memory_is_as_predicted_and_does_not_grow_with_the_square_of_the_length() {
    let cases = [[1, 600, 600, 4, 4], [1, 2400, 2400, 4, 4], [9, 40, 300, 8, 5], [3, 100, 0, 4, 4]];
    for sizes in cases {
        for causal in [false, true] {
            let p = problem(DType::F32, sizes, Masks::None, causal);
            let (y, logsums) = p.forward();
            let (q, v) = (p.q.shape(), p.v.shape());
            let forward = super::forward_scratch(DType::F32, q, v, causal);
            assert_eq!(taken(|| p.forward()), forward, "{sizes:?}");
            let backward = super::backward_scratch(DType::F32, q, v, causal);
            assert_eq!(taken(|| p.wanted(&y, &logsums, [true; 4])), backward, "{sizes:?}");
            assert!(forward.max(backward) < 3 << 20, "{sizes:?}");
        }
    }
}
