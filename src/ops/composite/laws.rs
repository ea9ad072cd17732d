//! Random numbers of further laws: by inversion where the inverse is elementary, by rejection
//! elsewhere.
//!
//! Rejection draws a fixed number of candidates for every element and takes the first that is
//! accepted, so that a key and a shape determine every element, on every device and in every mode.
//! The number of rounds makes it unlikely beyond notice (less than 10⁻⁹) that none is.

use std::f64::consts::{FRAC_PI_2, SQRT_2, TAU};

use smallvec::SmallVec;

use super::random::{self, bits_of, full_of, open_unit, symmetric, unit};
use super::sampling::Law;
use super::{shape_of, within};
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Expr, throw};
use crate::ops::op::Type;
use crate::shape::{Dim, Shape};

composite! {
    /// Numbers of Laplace's law, whose density is `exp(-|x - loc| / scale) / (2 scale)`.
    ///
    /// `loc` and `scale` broadcast to `shape`. `dtype`: floating, float32 where None. `key`: None
    /// draws one from the global generator.
    random function laplace(
        shape: Shape = (); loc: Number = 0.0, scale: Number = 1.0, dtype: MaybeDtype = None,
        key: Key = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline {
        let law = Law::new("laplace", &shape, dtype, &[loc, scale]);
        let s = symmetric(key, law.full, law.shape);
        law_at(-(-s.abs()).log1p().copysign(-s), loc, scale, law.full).cast(law.dtype)
    }

    /// Numbers of Cauchy's law, whose density is `1 / (π scale (1 + ((x - loc) / scale)²))`.
    ///
    /// It has neither mean nor variance. `loc` and `scale` broadcast to `shape`. `dtype`: floating,
    /// float32 where None. `key`: None draws one from the global generator.
    random function cauchy(
        shape: Shape = (); loc: Number = 0.0, scale: Number = 1.0, dtype: MaybeDtype = None,
        key: Key = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline {
        let law = Law::new("cauchy", &shape, dtype, &[loc, scale]);
        let s = symmetric(key, law.full, law.shape);
        law_at((s * FRAC_PI_2).tan(), loc, scale, law.full).cast(law.dtype)
    }

    /// Numbers whose logarithm is normal, of mean `mean` and standard deviation `sigma`.
    ///
    /// Both broadcast to `shape`. `dtype`: floating, float32 where None. `key`: None draws one from
    /// the global generator.
    random function lognormal(
        shape: Shape = (); mean: Number = 0.0, sigma: Number = 1.0, dtype: MaybeDtype = None,
        key: Key = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline {
        let law = Law::new("lognormal", &shape, dtype, &[mean, sigma]);
        let z = standard_normal(key, law.full, law.shape);
        law_at(z, mean, sigma, law.full).exp().cast(law.dtype)
    }

    /// Standard normal numbers that lie in [low, high].
    ///
    /// `√2 erfinv(u)` of `u` uniform between the bounds' `erf`; so bounds that lie beyond 5 on one
    /// side give few different numbers in float32. Both broadcast to `shape`. `dtype`: floating,
    /// float32 where None. `key`: None draws one from the global generator.
    random function truncated_normal(
        shape: Shape = (); low: Number = -2.0, high: Number = 2.0, dtype: MaybeDtype = None,
        key: Key = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline {
        let op = "truncated_normal";
        let law = Law::new(op, &shape, dtype, &[low, high]);
        random::ordered(op, low, high);
        let (low, high) = (low.cast(law.full), high.cast(law.full));
        let [first, last] = [low, high].map(|x| (x / SQRT_2).erf());
        let share = open_unit(key, law.full, law.shape);
        let z = (share * (last - first) + first).erfinv() * SQRT_2;
        z.maximum(low).minimum(high).cast(law.dtype)
    }

    /// How many trials it takes until one succeeds, each with probability `p`: 1, 2, … (int64).
    ///
    /// `p` broadcasts to `shape`. Calculated in float32 (float64 where `p` is), so that counts
    /// above 2²⁴ are coarse. `key`: None draws one from the global generator. Raises ValueError
    /// for a number that is not in (0, 1].
    random function geometric(
        shape: Shape = (); p: Number, key: Key = None, device: MaybeDevice = None,
    ) -> One inline {
        let op = "geometric";
        known(op, "p", "in (0, 1]", p, |p| p > 0.0 && p <= 1.0);
        let (sizes, full) = (shape_of(&shape, op), full_of_all(&[p]));
        within(op, &p.shape(), &sizes);
        let u = unit(key, full, sizes, op);
        let failures = (-u).log1p() / (-p.cast(full)).log1p();
        (failures.floor() + 1.0).minimum(failures.scalar(MOST)).cast(DType::I64)
    }

    /// Numbers of the gamma law, whose density is `x^(a-1) exp(-x / scale) / (Γ(a) scale^a)`.
    ///
    /// `a` and `scale` broadcast to `shape`; NaN where `a` is not positive. `dtype`: floating,
    /// float32 where None. `key`: None draws one from the global generator. A gradient reaches
    /// `scale`; for `a` it raises GradientError. Raises ValueError for a number `a` that is not
    /// positive.
    ///
    /// Marsaglia and Tsang, A simple method for generating gamma variables, 2000.
    random function gamma(
        shape: Shape = (); a: Number, scale: Number = 1.0, dtype: MaybeDtype = None,
        key: Key = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One {
        positive("gamma", "a", a);
        let law = Law::new("gamma", &shape, dtype, &[a, scale]);
        let x = Gamma::draw("gamma", key, a.cast(law.full), law.shape);
        (x.value() * scale.cast(law.full)).cast(law.dtype)
    }
    vjp(g, y) { a: unknown("gamma", "a"), scale: g * (y / scale.cast(y.dtype())), key: zero }

    /// Numbers of the beta law, whose density is proportional to `x^(a-1) (1 - x)^(b-1)`.
    ///
    /// `a` and `b` broadcast to `shape`; NaN where one is not positive. `dtype`: floating, float32
    /// where None. `key`: None draws one from the global generator. A gradient for `a` or `b`
    /// raises GradientError. Raises ValueError for numbers that are not positive.
    random function beta(
        shape: Shape = (); a: Number, b: Number, dtype: MaybeDtype = None, key: Key = None,
        device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One {
        let op = "beta";
        positive(op, "a", a);
        positive(op, "b", b);
        let law = Law::new(op, &shape, dtype, &[a, b]);
        let keys = keys_of(op, key, 2);
        let x = Gamma::draw(op, keys[0], a.cast(law.full), law.shape.clone());
        let y = Gamma::draw(op, keys[1], b.cast(law.full), law.shape);
        (x.logarithm() - y.logarithm()).sigmoid().cast(law.dtype)
    }
    vjp(g, y) { a: unknown("beta", "a"), b: unknown("beta", "b"), key: zero }

    /// Numbers of Student's law with `df` degrees of freedom.
    ///
    /// `df` broadcasts to `shape`; NaN where it is not positive. `dtype`: floating, float32 where
    /// None. `key`: None draws one from the global generator. A gradient for `df` raises
    /// GradientError. Raises ValueError for a number that is not positive.
    random function student_t(
        shape: Shape = (); df: Number, dtype: MaybeDtype = None, key: Key = None,
        device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One {
        let op = "student_t";
        positive(op, "df", df);
        let law = Law::new(op, &shape, dtype, &[df]);
        let (keys, half) = (keys_of(op, key, 2), df.cast(law.full) * 0.5);
        let z = standard_normal(keys[0], law.full, law.shape.clone());
        let x = Gamma::draw(op, keys[1], half, law.shape);
        (z * ((half.log() - x.logarithm()) * 0.5).exp()).cast(law.dtype)
    }
    vjp(g, y) { df: unknown("student_t", "df"), key: zero }

    /// Shares that add up to 1, of Dirichlet's law with concentrations `alpha`: `shape` and K.
    ///
    /// `alpha`: (…, K), whose first axes broadcast to `shape`; NaN where one is not positive.
    /// `dtype`: floating; where None that of `alpha`, or float32 where that is no float. `key`: None
    /// draws one from the global generator. A gradient for `alpha` raises GradientError.
    random function dirichlet(
        shape: Shape = (); alpha: Number, dtype: MaybeDtype = None, key: Key = None,
    ) -> One {
        let op = "dirichlet";
        if alpha.rank() == 0 {
            throw(error::bad_rank(op, "alpha", "1 or more", alpha.shape()));
        }
        let own = Some(alpha.dtype()).filter(|dtype| dtype.is_float());
        let (last, dtype) = (alpha.rank() - 1, random::floating(op, dtype.or(own)));
        let full = full_of(dtype);
        let (mut sizes, parts) = (shape_of(&shape, op), alpha.size(last));
        within(op, &alpha.shape().reduce(&[last], false), &sizes);
        sizes.dims_mut().push(parts);
        let axis = [sizes.rank() - 1];
        let logarithms = Gamma::draw(op, key, alpha.cast(full), sizes).logarithm();
        let most = logarithms.reduce(Reduction::Max, &axis).unsqueeze(axis[0]);
        let x = (logarithms - most).exp();
        (x / x.reduce(Reduction::Sum, &axis).unsqueeze(axis[0])).cast(dtype)
    }
    vjp(g, y) { alpha: unknown("dirichlet", "alpha"), key: zero }

    /// Numbers of Poisson's law: how many events come where `lam` are expected (int64).
    ///
    /// `lam` broadcasts to `shape`; -1 where it is negative or NaN. Calculated in float32 (float64
    /// where `lam` is), so that numbers above 2²⁴ are coarse. `key`: None draws one from the
    /// global generator. Raises ValueError for a number that is negative.
    ///
    /// Up to 10 by adding up probabilities; above by Hörmann's PTRS (The transformed rejection
    /// method for generating Poisson random variables, 1993).
    random function poisson(
        shape: Shape = (); lam: Number, key: Key = None, device: MaybeDevice = None,
    ) -> One {
        let op = "poisson";
        known(op, "lam", "not negative", lam, |lam| lam >= 0.0);
        let (sizes, full) = (shape_of(&shape, op), full_of_all(&[lam]));
        within(op, &lam.shape(), &sizes);
        let (is_few, lam) = (known_few(&[lam], |of| of[0]), lam.cast(full));
        let keys = keys_of(op, key, 2);
        let few = || {
            searched(op, keys[0], (-lam).exp(), sizes.clone(), |k| lam / f64::from(k))
        };
        let many = || {
            // Where the other branch is taken the constants are those of 10: nothing overflows.
            let much = lam.maximum(lam.scalar(FEW));
            let b = much.sqrt() * 2.53 + 0.931;
            let hat = Hat {
                a: b * 0.02483 - 0.059,
                b,
                center: much + 0.43,
                scale: (b - 3.4).reciprocal() * 1.1328 + 1.1239,
            };
            let likely = |k| -deviance(k, much) - excess(k);
            hat.draw(op, keys[1], sizes.clone(), much.floor(), likely)
        };
        let drawn = match is_few {
            Some(true) => few(),
            Some(false) => many(),
            None => lam.less(lam.scalar(FEW)).select(few(), many()),
        };
        counted(lam, drawn)
    }

    /// How many of `n` trials succeed, each with probability `p` (int64).
    ///
    /// Both broadcast to `shape`; -1 where `n` is negative or `p` not in [0, 1]. Calculated in
    /// float32 (float64 where `n` or `p` is), so that numbers above 2²⁴ are coarse. `key`: None
    /// draws one from the global generator. Raises ValueError for numbers that are out of range.
    ///
    /// Where fewer than 10 are expected, of successes or of failures, by adding up probabilities;
    /// elsewhere by Hörmann's BTRS (The generation of binomial random variates, 1993).
    random function binomial(
        shape: Shape = (); n: Number, p: Number, key: Key = None, device: MaybeDevice = None,
    ) -> One {
        let op = "binomial";
        known(op, "n", "not negative", n, |n| n >= 0.0);
        known(op, "p", "in [0, 1]", p, |p| (0.0..=1.0).contains(&p));
        let (sizes, full) = (shape_of(&shape, op), full_of_all(&[n, p]));
        [n, p].iter().for_each(|x| within(op, &x.shape(), &sizes));
        let is_known = known_few(&[n, p], |of| of[0] * of[1].min(1.0 - of[1]));
        let (n, given) = (n.cast(full), p.cast(full));
        // Of the rarer of success and failure.
        let p = given.minimum(-given + 1.0);
        let (keys, mean) = (keys_of(op, key, 2), n * p);
        let is_few = mean.less(mean.scalar(FEW));
        let few = || {
            let (odds, none) = (p / (-p + 1.0), (n * (-p).log1p()).exp());
            let drawn = searched(op, keys[0], none, sizes.clone(), |k| {
                (n + f64::from(1 - k)).maximum(n.scalar(0.0)) * odds / f64::from(k)
            });
            drawn.minimum(n)
        };
        let many = || {
            // Where the other branch is taken the numbers are those of 40 and 1/2.
            let (p, n) = (is_few.select(p.scalar(0.5), p), is_few.select(n.scalar(40.0), n));
            let (q, mean) = (-p + 1.0, n * p);
            let deviation = (mean * q).sqrt();
            let b = deviation * 2.53 + 1.15;
            let hat = Hat {
                a: b * 0.0248 - 0.0873 + p * 0.01,
                b,
                center: mean + 0.5,
                scale: (b.reciprocal() * 5.1 + 2.83) * deviation,
            };
            let likely = |k: Expr<'e>| {
                let left = n - k;
                -(deviance(k, mean) + deviance(left, n * q)) - (excess(k) + excess(left))
            };
            let mode = ((n + 1.0) * p).floor();
            let best = likely(mode);
            hat.draw(op, keys[1], sizes.clone(), mode, |k| {
                k.less_equal(n).select(likely(k) - best, k.scalar(f64::NEG_INFINITY))
            })
        };
        let drawn = match is_known {
            Some(true) => few(),
            Some(false) => many(),
            None => is_few.select(few(), many()),
        };
        let drawn = given.greater(given.scalar(0.5)).select(n - drawn, drawn);
        let fits = given.greater_equal(given.scalar(0.0));
        let fits = fits.logical_and(given.less_equal(given.scalar(1.0)));
        counted(fits.select(n, n.scalar(-1.0)), drawn)
    }
}

/// Where fewer events are expected than this, probabilities are added up.
const FEW: f64 = 10.0;
/// So many probabilities: with 10 expected, more come with probability 10⁻¹².
const LONGEST: i32 = 40;
/// Rounds of rejection where every second candidate or more is accepted.
const ROUNDS: usize = 16;
/// Rounds for the gamma law, of whose candidates 95 % or more are accepted.
const GAMMA_ROUNDS: usize = 8;
/// The largest count that float32 and int64 both hold.
const MOST: f64 = ((1u64 << 63) - (1 << 39)) as f64;

/// A location and a scale put to standard numbers.
fn law_at<'e>(x: Expr<'e>, loc: Expr<'e>, scale: Expr<'e>, full: DType) -> Expr<'e> {
    x * scale.cast(full) + loc.cast(full)
}

fn standard_normal(key: Expr<'_>, full: DType, shape: Shape) -> Expr<'_> {
    symmetric(key, full, shape).erfinv() * SQRT_2
}

/// Independent keys of one.
fn keys_of<'e>(op: &str, key: Expr<'e>, count: usize) -> SmallVec<[Expr<'e>; 2]> {
    let all = bits_of(op, key, Type::new(DType::U32, Shape::of(&[count, 2])));
    let row = |i: usize| all.narrow(0, i, Dim::ONE).reshape(Shape::of(&[2]));
    (0..count).map(row).collect()
}

/// What counts are calculated in: float64 where a parameter is.
fn full_of_all(parameters: &[Expr<'_>]) -> DType {
    let dtypes = parameters.iter().filter(|x| !x.is_number()).map(|x| full_of(x.dtype()));
    if dtypes.into_iter().any(|dtype| dtype == DType::F64) { DType::F64 } else { DType::F32 }
}

/// Refuses a parameter that is a number out of range.
fn known(op: &str, name: &str, want: &str, x: Expr<'_>, fits: impl Fn(f64) -> bool) {
    if let Some(got) = x.as_scalar()
        && !fits(got.as_f64())
    {
        throw(error::bad_value(op, format!("{name} must be {want}"), format!("got {got}")));
    }
}

/// Whether few events are expected of parameters that are numbers, in their arithmetic.
fn known_few(parameters: &[Expr<'_>], expected: impl Fn(&[f32]) -> f32) -> Option<bool> {
    let numbers = parameters.iter().map(|x| x.as_scalar().map(|x| x.as_f64() as f32));
    let numbers: SmallVec<[f32; 2]> = numbers.collect::<Option<_>>()?;
    Some(expected(&numbers) < FEW as f32)
}

fn positive(op: &str, name: &str, x: Expr<'_>) {
    known(op, name, "positive", x, |x| x > 0.0);
}

/// A gradient that does not follow from how candidates are made: which are accepted depends on the
/// parameter too.
fn unknown<'e>(op: &str, name: &str) -> Expr<'e> {
    let what = format!("draws have no gradient for {name}");
    throw(error::gradient(
        op,
        what,
        format!("pass {name}.detach(), or differentiate a log-density"),
    ))
}

/// A count where the parameter is not negative, -1 elsewhere.
fn counted<'e>(parameter: Expr<'e>, count: Expr<'e>) -> Expr<'e> {
    let fits = parameter.greater_equal(parameter.scalar(0.0));
    let count = count.minimum(count.scalar(MOST));
    fits.select(count, count.scalar(-1.0)).cast(DType::I64)
}

/// Numbers of the gamma law: `body · exp(tail)`. Where `a` is small their logarithms are numbers
/// while they themselves are not.
struct Gamma<'e> {
    body: Expr<'e>,
    tail: Expr<'e>,
}

impl<'e> Gamma<'e> {
    /// Draws with shape parameters `a` of the dtype to calculate in.
    ///
    /// With `d = b - 1/3` and `s = z / √(9 d)` for normal `z`, `d (1 + s)³` is accepted where
    /// `log u < 3 d (log(1 + s) - s + s²/2 - s³/3)`. `b` is at least 1: below it is one more than
    /// `a`, and `u^(1/a)` a further factor.
    fn draw(op: &str, key: Expr<'e>, a: Expr<'e>, shape: Shape) -> Gamma<'e> {
        let full = a.dtype();
        let keys = keys_of(op, key, 2 * GAMMA_ROUNDS + 1);
        let is_small = a.less(a.scalar(1.0));
        let d = is_small.select(a + 1.0, a) - 1.0 / 3.0;
        let c = (d * 9.0).rsqrt();
        let mut cube = d.scalar(1.0).full(full, shape.clone());
        for round in (0..GAMMA_ROUNDS).rev() {
            let s = standard_normal(keys[2 * round], full, shape.clone()) * c;
            let u = unit(keys[2 * round + 1], full, shape.clone(), op);
            let t = s + 1.0;
            let is_inside = t.greater(t.scalar(0.0));
            let s = is_inside.select(s, s.scalar(0.0));
            let rest = s.log1p() - s + s * s * (s * (-1.0 / 3.0) + 0.5);
            let accepted = u.log().less(d * rest * 3.0).logical_and(is_inside);
            cube = accepted.select(t * t * t, cube);
        }
        let u = unit(keys[2 * GAMMA_ROUNDS], full, shape, op);
        let tail = is_small.select((-u).log1p() / a, a.scalar(0.0));
        let is_law = a.greater(a.scalar(0.0));
        Gamma { body: is_law.select(d * cube, d.scalar(f64::NAN)), tail }
    }

    fn value(&self) -> Expr<'e> {
        self.body * self.tail.exp()
    }

    fn logarithm(&self) -> Expr<'e> {
        self.body.log() + self.tail
    }
}

/// How many of the sums `p₀`, `p₀ + p₁`, … lie at or below a uniform number, where `pₖ` is `ratio(k)`
/// times the one before.
///
/// No term below 10⁻⁹ counts: sums that rounding keeps below 1 would count all that follow.
fn searched<'e>(
    op: &str,
    key: Expr<'e>,
    first: Expr<'e>,
    shape: Shape,
    ratio: impl Fn(i32) -> Expr<'e>,
) -> Expr<'e> {
    let u = unit(key, first.dtype(), shape, op);
    let (mut term, mut sum) = (first, first);
    let mut count = u * 0.0;
    for k in 1..=LONGEST {
        term = term * ratio(k);
        let goes_on = u.greater_equal(sum).logical_and(term.greater(term.scalar(1e-9)));
        count = goes_on.select(count.scalar(f64::from(k)), count);
        sum = sum + term;
    }
    count
}

/// `k log(k / m) - k + m`, how far a count lies from its mean: -log of the probability less what
/// `excess` has.
fn deviance<'e>(k: Expr<'e>, m: Expr<'e>) -> Expr<'e> {
    let e = (k - m) / m;
    let is_some = e.greater(e.scalar(-1.0));
    let inside = is_some.select(e, e.scalar(0.0));
    let value = (inside + 1.0) * inside.log1p() - inside;
    m * is_some.select(value, value.scalar(1.0))
}

/// `log k! - (k log k - k)`, by Stirling's series; 0 for none.
fn excess(k: Expr<'_>) -> Expr<'_> {
    let is_some = k.greater(k.scalar(0.5));
    let k = is_some.select(k, k.scalar(1.0));
    let r = k.reciprocal();
    let square = r * r;
    let series = r * (square * (square * (1.0 / 1260.0) - 1.0 / 360.0) + 1.0 / 12.0);
    is_some.select((k * TAU).log() * 0.5 + series, k.scalar(0.0))
}

/// Hörmann's hat over a law of counts: of `u` in (-1/2, 1/2) the candidate is the floor of
/// `(2 a / (1/2 - |u|) + b) u + center`.
struct Hat<'e> {
    a: Expr<'e>,
    b: Expr<'e>,
    center: Expr<'e>,
    scale: Expr<'e>,
}

impl<'e> Hat<'e> {
    /// The first candidate `k` with `log(v · scale / (a / us² + b)) ≤ likely(k)` for uniform `v`.
    fn draw(
        &self,
        op: &str,
        key: Expr<'e>,
        shape: Shape,
        otherwise: Expr<'e>,
        likely: impl Fn(Expr<'e>) -> Expr<'e>,
    ) -> Expr<'e> {
        let (full, keys) = (self.a.dtype(), keys_of(op, key, 2 * ROUNDS));
        let mut count = otherwise;
        for round in (0..ROUNDS).rev() {
            let u = symmetric(keys[2 * round], full, shape.clone()) * 0.5;
            let v = unit(keys[2 * round + 1], full, shape.clone(), op);
            let us = -u.abs() + 0.5;
            let k = ((self.a * 2.0 / us + self.b) * u + self.center).floor();
            let is_count = k.greater_equal(k.scalar(0.0));
            let k = is_count.select(k, k.scalar(0.0));
            let height = (v * self.scale / (self.a / (us * us) + self.b)).log();
            let accepted = height.less_equal(likely(k)).logical_and(is_count);
            count = accepted.select(k, count);
        }
        count
    }
}
