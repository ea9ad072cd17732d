//! How near the result of an executor must come to the reference.
//!
//! Most ops have one right answer, to the bit. What is left are sums and products of many terms,
//! whose order an executor may choose. Those are computed here in twice the precision of float64,
//! and held against the usual bound (Higham: Accuracy and Stability of Numerical Algorithms, §4.2):
//! in whatever order `n` terms are summed, a sum in which no term goes through more than `d`
//! roundings is off by at most `γ(d) Σ|terms|`, where `γ(d) = d·u / (1 − d·u)` and `u` is half an
//! ULP of 1. The executor says what its `d` is. A product of `n` factors is off by `γ(n − 1)` of
//! itself in any order.

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attributes::{Contraction, ConvRole, ConvSpec, Reduction};
use crate::ops::op::Op;
use crate::ops::structural::{Agreement, OpKind};

use super::elements::{Elements, each_index};
use super::number::{Number, of_element, of_register};
use super::sums::{Pairs, contract_pairs, conv_pairs};
use super::{Operand, reduce, run};

/// How near a result must come.
#[derive(Clone, Copy, Debug)]
pub enum Bound<'a> {
    /// The same bits; NaN for NaN
    Bits,
    /// The same numbers; zeros of either sign are one number
    Values,
    /// As near as rounding in some order allows
    Rounding(Terms<'a>),
}

/// Where the terms of a sum, or the factors of a product, come from.
#[derive(Clone, Copy, Debug)]
pub enum Terms<'a> {
    /// A general product
    Contract(&'a Contraction),
    /// A convolution
    Conv(ConvRole, &'a ConvSpec),
    /// A sum along axes
    Sum(&'a [usize]),
    /// A product along axes
    Prod(&'a [usize]),
}

/// The most roundings between a term and the sum of `n` terms that an op forms, that of the term
/// itself included where it is a rounded product.
pub type Depth = fn(&Op, usize) -> usize;

/// The bound of an op on a dtype, with its reason.
pub fn bound(op: &Op, dtype: DType) -> Bound<'_> {
    let agreement = match op.kind() {
        // One formula without contraction, rounded once to the dtype.
        OpKind::Map(_) => Agreement::Bits,
        // Expanded before anything runs.
        OpKind::Call(_) => Agreement::Bits,
        OpKind::Structural(def) => def.agreement,
    };
    match agreement {
        // Wrapping arithmetic and logic do not see the order.
        _ if !dtype.is_float() => Bound::Bits,
        Agreement::Bits => Bound::Bits,
        Agreement::Values => Bound::Values,
        Agreement::Order => terms(op).map_or(Bound::Bits, Bound::Rounding),
    }
}

/// The terms of an op whose order is the executor's.
fn terms(op: &Op) -> Option<Terms<'_>> {
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "without terms the bound is the strictest, which a test of every op would show"
    )]
    match op {
        Op::Reduce(Reduction::Sum, axes) => Some(Terms::Sum(axes)),
        Op::Reduce(Reduction::Prod, axes) => Some(Terms::Prod(axes)),
        Op::Contract(spec) => Some(Terms::Contract(spec)),
        Op::Conv(role, spec) => Some(Terms::Conv(*role, spec)),
        _ => None,
    }
}

/// What is wrong with a result, if it is further from the reference than the op's bound.
pub fn difference(
    op: &Op,
    args: &[Operand<'_>],
    got: &Array,
    depth: Depth,
) -> Result<Option<String>> {
    let found = Elements::read(got);
    if let Some(sums) = exact(op, args, got)? {
        let range = |i: usize| sums[i].range(found.dtype, depth(op, sums[i].terms));
        return Ok(outside(&found, |i| range(i).map(|(low, high)| (sums[i].value, low, high))));
    }
    let wanted = run(op, args)?;
    if (wanted.dtype, wanted.shape()) != (got.dtype, got.shape()) {
        let (want, is) = (wanted.shape(), got.shape());
        return Ok(Some(format!("got {} {is}, wanted {} {want}", got.dtype, wanted.dtype)));
    }
    let (wanted, bound) = (Elements::read(&wanted), bound(op, got.dtype));
    let dtype = found.dtype;
    let mut at = 0;
    let mut first = None;
    each_index(&found.sizes, |index| {
        let (got, want) = (found.words[at], wanted.words[at]);
        if first.is_none() && !agrees(bound, dtype, got, want) {
            let [got, want] = [got, want].map(|word| show(dtype, word));
            first = Some(format!("element {index:?}: got {got}, wanted {want}"));
        }
        at += 1;
    });
    Ok(first)
}

fn agrees(bound: Bound<'_>, dtype: DType, got: u64, want: u64) -> bool {
    if got == want {
        return true;
    }
    let [got, want] = [got, want].map(|word| of_element(dtype, word).as_f64());
    dtype.is_float()
        && (got.is_nan() && want.is_nan() || matches!(bound, Bound::Values) && got == want)
}

/// The first element outside its range, if it has one: the exact value and the two ends.
fn outside(found: &Elements, range: impl Fn(usize) -> Option<(f64, f64, f64)>) -> Option<String> {
    let mut at = 0;
    let mut first = None;
    each_index(&found.sizes, |index| {
        let got = of_element(found.dtype, found.words[at]).as_f64();
        if first.is_none()
            && let Some((value, low, high)) = range(at)
        {
            let inside = (low..=high).contains(&got) || low.is_nan() && got.is_nan();
            if !inside {
                let bounds = format!("from {low:?} to {high:?}");
                first = Some(format!("element {index:?}: got {got:?}, wanted {value:?}, {bounds}"));
            }
        }
        at += 1;
    });
    first
}

/// An element for a message: its bits where it is a float, since two may print alike.
fn show(dtype: DType, word: u64) -> String {
    match of_element(dtype, word) {
        Number::Int(i) => i.to_string(),
        Number::Single(x) => format!("{x:?} ({word:#x})"),
        Number::Double(x) => format!("{x:?} ({word:#x})"),
    }
}

/// A sum or product in twice the precision of float64, with what an error bound needs.
pub struct Exact {
    /// The value, rounded to float64
    pub value: f64,
    /// How many terms, or factors, there are
    pub terms: usize,
    /// Whether they are factors
    is_product: bool,
    /// `Σ|terms|`, or the size of the product; of the finite ones only
    magnitude: f64,
    /// What underflow may add to the error, in units of the smallest number
    underflow: f64,
    /// The largest number that may come up on the way
    largest: f64,
    /// The smallest number but zero that may come up on the way
    smallest: f64,
    /// Whether some term is infinite or NaN
    special: bool,
    /// Whether some operand is NaN
    nan: bool,
}

impl Exact {
    /// Between which results an executor's must be whose terms are rounded at most `depth` times in
    /// the registers of a dtype, and the sum once more to the dtype. None where the order decides
    /// whether numbers on the way overflow.
    pub fn range(&self, dtype: DType, depth: usize) -> Option<(f64, f64)> {
        let (unit, tiny, max) = if dtype == DType::F64 {
            (2f64.powi(-53), 2f64.powi(-1074), f64::MAX)
        } else {
            (2f64.powi(-24), 2f64.powi(-149), f32::MAX.into())
        };
        if self.nan {
            return Some((f64::NAN, f64::NAN));
        }
        if self.largest >= max / 2.0 || self.special && self.smallest < tiny / unit {
            return None;
        }
        if self.special {
            return Some((self.value, self.value));
        }
        let roundings = if self.is_product { self.terms.saturating_sub(1) } else { depth };
        let share = roundings as f64 * unit;
        let gamma = if share < 1.0 { share / (1.0 - share) } else { f64::INFINITY };
        // The last part is what rounding the exact value to float64 may have moved it.
        let rounded = self.value.abs() * 2f64.powi(-52);
        let error = gamma * self.magnitude + self.underflow * tiny + rounded;
        // Rounding keeps the order of numbers, so the ends of the range may be rounded.
        let end = |x: f64| of_element(dtype, Number::Double(x).word(dtype)).as_f64();
        Some((end(self.value - error), end(self.value + error)))
    }
}

/// The exact value of each element of a result, where only rounding bounds it.
pub fn exact(op: &Op, args: &[Operand<'_>], got: &Array) -> Result<Option<Vec<Exact>>> {
    let Bound::Rounding(terms) = bound(op, got.dtype) else { return Ok(None) };
    let sizes = got.shape().sizes();
    let a = args[0].elements(op)?;
    let b = || args[1].elements(op);
    let number = |word: u64| of_register(a.dtype, word).as_f64();
    let sum = |terms: &Vec<u64>| {
        let mut sum = Wide::default();
        terms.iter().for_each(|&word| sum.add(number(word), 1.0));
        sum.finish(0.0)
    };
    let product = |factors: &Vec<u64>| product(factors.iter().map(|&word| number(word)));
    Ok(Some(match terms {
        Terms::Contract(spec) => sums(a.dtype, &sizes, &contract_pairs(spec, &a, &b()?)),
        Terms::Conv(role, spec) => sums(a.dtype, &sizes, &conv_pairs(role, spec, &a, &b()?)),
        Terms::Sum(axes) => reduce::terms(&a, axes, &sizes).iter().map(sum).collect(),
        Terms::Prod(axes) => reduce::terms(&a, axes, &sizes).iter().map(product).collect(),
    }))
}

/// The sums of products of registers of a dtype.
fn sums(dtype: DType, sizes: &[usize], pairs: &Pairs<'_>) -> Vec<Exact> {
    let mut out = Vec::new();
    let number = |word: u64| of_register(dtype, word).as_f64();
    each_index(sizes, |index| {
        let mut sum = Wide::default();
        pairs(index, &mut |a, b| sum.add(number(a), number(b)));
        // Each product may underflow.
        let products = sum.terms as f64;
        out.push(sum.finish(products));
    });
    out
}

/// A sum in two doubles.
#[derive(Default)]
struct Wide {
    high: f64,
    low: f64,
    magnitude: f64,
    terms: usize,
    special: bool,
    nan: bool,
}

impl Wide {
    /// Adds `a · b`.
    fn add(&mut self, a: f64, b: f64) {
        self.terms += 1;
        self.nan |= a.is_nan() | b.is_nan();
        let (product, rest) = exact_product(a, b);
        if !(a.is_finite() && b.is_finite()) {
            self.special = true;
            self.high += product;
            return;
        }
        self.magnitude += product.abs();
        let (high, lost) = exact_sum(self.high, product);
        self.high = high;
        self.low += lost + rest;
    }

    fn finish(self, underflow: f64) -> Exact {
        let value = if self.high.is_finite() { self.high + self.low } else { self.high };
        Exact {
            value,
            terms: self.terms,
            is_product: false,
            magnitude: self.magnitude,
            underflow,
            largest: self.magnitude,
            smallest: f64::INFINITY,
            special: self.special,
            nan: self.nan,
        }
    }
}

/// The product of numbers, and how large and small one over some of them may be.
fn product(factors: impl Iterator<Item = f64>) -> Exact {
    let mut out = Exact {
        value: 1.0,
        terms: 0,
        is_product: true,
        magnitude: 0.0,
        underflow: 0.0,
        largest: 1.0,
        smallest: 1.0,
        special: false,
        nan: false,
    };
    let (mut high, mut low) = (1.0f64, 0.0f64);
    for x in factors {
        out.terms += 1;
        out.nan |= x.is_nan();
        if !x.is_finite() {
            out.special = true;
            (high, low) = (high * x, 0.0);
            continue;
        }
        out.largest *= x.abs().max(1.0);
        out.smallest *= if x == 0.0 { 1.0 } else { x.abs().min(1.0) };
        let (product, rest) = exact_product(high, x);
        (high, low) = exact_sum(product, low * x + rest);
    }
    out.value = if high.is_finite() { high + low } else { high };
    out.magnitude = out.value.abs();
    // What underflow loses is multiplied by what follows.
    out.underflow = out.terms as f64 * out.largest;
    out
}

/// `a + b`, rounded, and the rest.
fn exact_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    if !sum.is_finite() {
        return (sum, 0.0);
    }
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// `a · b`, rounded, and the rest.
fn exact_product(a: f64, b: f64) -> (f64, f64) {
    let product = a * b;
    let rest = if product.is_finite() { a.mul_add(b, -product) } else { 0.0 };
    (product, rest)
}
