use super::{Moments, backward, forward, result};
use crate::array::Array;
use crate::cpu::testing::{array, bytes, layouts, noise, reduce, values};
use crate::dtype::DType;
use crate::ops::attributes::Reduction;
use crate::threads;

/// Shapes and how many axes are normalised, on both sides of every bound that chooses an order.
const CASES: [(&[usize], usize); 15] = [
    (&[3, 5], 1),
    (&[2, 3, 40], 1),
    (&[7, 32], 1),
    (&[33, 33], 1),
    (&[2, 3, 4, 5], 2),
    (&[70, 1100], 1),
    (&[200, 70], 1),
    (&[2, 50, 6, 20], 2),
    (&[40, 1], 1),
    (&[20, 1, 1], 2),
    (&[2050, 1], 1),
    (&[3, 5000], 1),
    (&[90], 1),
    (&[4, 0], 1),
    (&[0, 4], 1),
];

const EPS: f64 = 1e-5;

/// An elementwise op, rounded to a dtype once; operands repeat as they are indexed.
fn map<const N: usize>(
    dtype: DType,
    sizes: &[usize],
    operands: [&[f64]; N],
    index: [&dyn Fn(usize) -> usize; N],
    f: impl Fn([f64; N]) -> f64,
) -> Array {
    let n: usize = sizes.iter().product();
    let at = |i: usize| f(std::array::from_fn(|k| operands[k][index[k](i)]));
    array(dtype, sizes, &(0..n).map(at).collect::<Vec<_>>())
}

/// A problem: the operands of both passes.
struct Problem {
    sizes: Vec<usize>,
    trailing: usize,
    x: Array,
    g: Array,
    weight: Option<Array>,
    bias: Option<Array>,
}

fn problem(dtype: DType, (sizes, trailing): (&[usize], usize), parts: [bool; 2]) -> Problem {
    let own = &sizes[sizes.len() - trailing..];
    Problem {
        sizes: sizes.to_vec(),
        trailing,
        x: noise(dtype, sizes, 1),
        g: noise(dtype, sizes, 2),
        weight: parts[0].then(|| noise(dtype, own, 3)),
        bias: parts[1].then(|| noise(dtype, own, 4)),
    }
}

impl Problem {
    fn forward(&self) -> (Array, Moments) {
        let parameters = [self.weight.as_ref(), self.bias.as_ref()];
        let (y, moments) = forward(&self.x, self.trailing, parameters, EPS, true).unwrap();
        (y, moments.unwrap())
    }

    fn backward(&self, moments: &Moments) -> [Array; 3] {
        let weight = self.weight.as_ref();
        let all = [true; 3];
        backward(&self.g, &self.x, self.trailing, weight, self.x.dtype, moments, all)
            .unwrap()
            .map(Option::unwrap)
    }

    fn all(&self) -> Vec<Vec<u8>> {
        let (y, moments) = self.forward();
        let gradients = self.backward(&moments);
        [y, moments.mean, moments.scale].iter().chain(&gradients).map(bytes).collect()
    }

    /// The body and its gradient, op by op: every op but a sum rounds once, and sums are those of
    /// reductions.
    fn plain(&self) -> Vec<Vec<u8>> {
        let dtype = if self.x.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let sizes = &self.sizes[..];
        let lead = sizes.len() - self.trailing;
        let n: usize = sizes[lead..].iter().product();
        let (rows, axes) = (&sizes[..lead], (lead..sizes.len()).collect::<Vec<_>>());
        let (same, row, column) = (|i: usize| i, |i: usize| i / n.max(1), |i: usize| i % n.max(1));
        let full =
            |operands: [&Array; 2], index: [&dyn Fn(usize) -> usize; 2], f: fn(f64, f64) -> f64| {
                let operands = operands.map(values);
                map(dtype, sizes, operands.each_ref().map(Vec::as_slice), index, |[a, b]| f(a, b))
            };
        let each =
            |x: &Array, f: &dyn Fn(f64) -> f64| map(dtype, rows, [&values(x)], [&same], |[x]| f(x));
        // The dtype itself rounds a quotient or a root of two of its numbers as a rounded double
        // would not always: a double holds the result of float32 exactly enough for all of them.
        let mean = |x: &Array| each(&reduce(Reduction::Sum, x, &axes).unwrap(), &|x| x / n as f64);
        let wide = |x: &Array| array(dtype, &x.shape().sizes(), &values(x));
        let x = wide(&self.x);
        let average = mean(&x);
        let centred = full([&x, &average], [&same, &row], |x, m| x - m);
        let squares = full([&centred, &centred], [&same, &same], |a, b| a * b);
        let eps = if dtype == DType::F64 { EPS } else { f64::from(EPS as f32) };
        let shifted = each(&mean(&squares), &|x| x + eps);
        let root = each(&shifted, &f64::sqrt);
        let scale = each(&root, &|x| 1.0 / x);
        let normal = full([&centred, &scale], [&same, &row], |x, s| x * s);
        let mut y = normal.clone();
        if let Some(weight) = &self.weight {
            y = full([&y, &wide(weight)], [&same, &column], |y, w| y * w);
        }
        if let Some(bias) = &self.bias {
            y = full([&y, &wide(bias)], [&same, &column], |y, b| y + b);
        }
        let g = wide(&self.g);
        let weighted = match &self.weight {
            Some(weight) => full([&g, &wide(weight)], [&same, &column], |g, w| g * w),
            None => g.clone(),
        };
        let products = full([&weighted, &normal], [&same, &same], |a, b| a * b);
        let dx = full([&weighted, &mean(&weighted)], [&same, &row], |g, m| g - m);
        let pulled = full([&normal, &mean(&products)], [&same, &row], |n, m| n * m);
        let dx = full([&dx, &pulled], [&same, &same], |a, b| a - b);
        let dx = full([&scale, &dx], [&row, &same], |s, x| s * x);
        let lead_axes: Vec<usize> = (0..lead).collect();
        let dw = full([&g, &normal], [&same, &same], |a, b| a * b);
        let dw = reduce(Reduction::Sum, &dw, &lead_axes).unwrap();
        let db = reduce(Reduction::Sum, &g, &lead_axes).unwrap();
        let narrow = |x: &Array| array(self.x.dtype, &x.shape().sizes(), &values(x));
        let results = [narrow(&y), average, scale, narrow(&dx), narrow(&dw), narrow(&db)];
        results.iter().map(bytes).collect()
    }
}

const PARTS: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

/// Whether two results are the same; a NaN has no particular payload.
fn is_same(dtypes: [DType; 6], got: &[Vec<u8>], want: &[Vec<u8>]) -> bool {
    let number = |dtype: DType, x: &[u8]| array_of(dtype, x);
    dtypes.iter().zip(got.iter().zip(want)).all(|(&dtype, (got, want))| {
        let (a, b) = (number(dtype, got), number(dtype, want));
        a.len() == b.len()
            && a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
    })
}

fn array_of(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let x = Array::uninit(dtype, crate::shape::Shape::of(&[bytes.len() / dtype.size()])).unwrap();
    // SAFETY: fresh, and of this size.
    unsafe { x.ptr_mut().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    values(&x)
}

#[test]
fn bits_are_those_of_the_body() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        for case in CASES {
            for parts in PARTS {
                let p = problem(dtype, case, parts);
                let dtypes = [dtype, wide, wide, dtype, dtype, dtype];
                assert!(is_same(dtypes, &p.all(), &p.plain()), "{dtype} {case:?} {parts:?}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_layouts_or_threads() {
    let before = threads::num_threads();
    for dtype in [DType::F32, DType::BF16] {
        for case in [(&[2, 70, 6, 20][..], 2), (&[150, 300], 1)] {
            let p = problem(dtype, case, [true, true]);
            let want = p.all();
            let count = layouts(&p.x).len();
            for i in 0..count {
                threads::set_num_threads(1 + i % 3);
                let lay = |x: &Array, by: usize| layouts(x)[(i + by) % count].clone();
                let p = Problem {
                    sizes: p.sizes.clone(),
                    trailing: p.trailing,
                    x: lay(&p.x, 0),
                    g: lay(&p.g, 3),
                    weight: p.weight.as_ref().map(|w| lay(w, 5)),
                    bias: p.bias.as_ref().map(|b| lay(b, 7)),
                };
                assert!(p.all() == want, "{dtype} {case:?} layout {i}");
            }
            threads::set_num_threads(before);
        }
    }
}

#[test]
fn cotangents_are_the_same_whichever_are_wanted() {
    let p = problem(DType::F32, (&[200, 70], 1), [true, true]);
    let (_, moments) = p.forward();
    let all = p.backward(&moments).map(|x| bytes(&x));
    for some in 0..8 {
        let wanted: [bool; 3] = std::array::from_fn(|i| some >> i & 1 == 1);
        let got = backward(&p.g, &p.x, 1, p.weight.as_ref(), DType::F32, &moments, wanted).unwrap();
        for i in 0..3 {
            assert_eq!(got[i].is_some(), wanted[i]);
            assert!(got[i].as_ref().is_none_or(|x| bytes(x) == all[i]), "{some} {i}");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_beside_others() {
    let p = problem(DType::F32, (&[50, 300], 1), [true, true]);
    let (y, moments) = p.forward();
    let (y, dx) = (bytes(&y), bytes(&p.backward(&moments)[0]));
    let one = |x: &Array, i: usize| array(DType::F32, &[1, 300], &values(x)[i * 300..][..300]);
    for i in [0, 17, 49] {
        let own = Problem {
            sizes: vec![1, 300],
            trailing: 1,
            x: one(&p.x, i),
            g: one(&p.g, i),
            weight: p.weight.clone(),
            bias: p.bias.clone(),
        };
        let (alone, moments) = own.forward();
        assert!(bytes(&alone) == y[i * 1200..][..1200]);
        assert!(bytes(&own.backward(&moments)[0]) == dx[i * 1200..][..1200]);
    }
}

#[test]
fn a_parameter_may_be_of_another_dtype_but_not_widen_the_sums() {
    let (f16, f32, f64) = (DType::F16, DType::F32, DType::F64);
    assert_eq!(result(f16, [Some(f32), None]), Some(f32));
    assert_eq!(result(f16, [Some(DType::BF16), None]), Some(f32));
    assert_eq!(result(f64, [Some(f32), Some(f16)]), Some(f64));
    assert_eq!(result(f32, [None, Some(f64)]), None);
    assert_eq!(result(DType::I32, [None, None]), None);
    let (x, w) = (noise(f16, &[6, 40], 1), noise(f32, &[40], 2));
    let (y, _) = forward(&x, 1, [Some(&w), None], EPS, false).unwrap();
    let wide = array(f32, &[6, 40], &values(&x));
    let (want, _) = forward(&wide, 1, [Some(&w), None], EPS, false).unwrap();
    assert_eq!((y.dtype, bytes(&y)), (f32, bytes(&want)));
    let wide = noise(f64, &[40], 2);
    assert!(forward(&x, 1, [Some(&wide), None], EPS, false).is_err());
}
