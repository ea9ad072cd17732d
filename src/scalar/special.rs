//! The error function and its relatives.

use super::exponential::{
    decay_parts, decay_product, exp_times, gated, gated_normal, gated_slope, normal_parts,
};
use super::logarithm::log1p_pair;
use super::pair::{Pair, ordered_sum, product, split, sum};
use super::polynomial::Polynomial;
use super::{Float, Scalar};

/// `erf x / x − 1` in `x²`, for `|x| ≤ 1`.
const ERF: Polynomial<7, 13> = Polynomial(
    [0.12837917, -0.37612626, 0.11283579, -0.026853347, 0.005187162, -0.0007997853, 7.806904e-05],
    [
        0.1283791670955126,
        -0.376126389031841,
        0.11283791670971115,
        -0.026866170648037587,
        0.0052239776527867165,
        -0.0008548328542940488,
        0.00012055386513840694,
        -1.4926890531261172e-05,
        1.6481225084434273e-06,
        -1.6559100163670648e-07,
        1.602781104135763e-08,
        -1.6525971862816492e-09,
        1.445492276143071e-10,
    ],
);

/// `e^(x²)·erfc x·(1 + 2x) − 5/4` in `(x − 2)/(x + 2)` (binary32) and `(x − 3)/(x + 3)` (binary64),
/// for `x` from 0.39 to where `erfc` vanishes.
const ERFC: Polynomial<10, 22> = Polynomial(
    [
        0.026978388,
        -0.09276379,
        -0.16603118,
        0.16404986,
        -0.05420604,
        -0.008018293,
        0.008635071,
        0.0011971166,
        -0.0012313584,
        -0.00029144206,
    ],
    [
        0.0030080582697296406,
        -0.1356211061245813,
        -0.04756229435344636,
        0.1296451587027761,
        -0.11927366341559253,
        0.06830802734342062,
        -0.02377051491144989,
        0.002529391825186602,
        0.0018886902647440643,
        -0.0007798323529589142,
        -0.00010515906926834764,
        0.0001250997739557749,
        4.9459301146261565e-06,
        -2.0101893116295485e-05,
        -7.203070002090836e-07,
        3.474834203335251e-06,
        3.3390926270515337e-07,
        -6.187619688777695e-07,
        -1.1192510684961153e-07,
        1.0168876238720412e-07,
        1.9209181450693686e-08,
        -1.152315158240228e-08,
    ],
);

/// `Φ(−a)·e^(a²/2)·(a + 13/4) − 1` with the normal distribution function Φ, in `(a − 13/4)/(a + 13/4)`,
/// for `a` from 0 to where `a Φ(−a)` vanishes.
const MILLS: Polynomial<10, 25> = Polynomial(
    [
        -0.2625616,
        -0.5394867,
        0.27445343,
        -0.08092481,
        0.0011008197,
        0.008306634,
        -0.0011732457,
        -0.001058142,
        0.0001515837,
        0.00013404177,
    ],
    [
        -0.2625615961595588,
        -0.5394866619907699,
        0.2744535454651709,
        -0.08092601818425368,
        0.0011017860659863334,
        0.00831663035637378,
        -0.0011831575055256086,
        -0.001094166341926492,
        0.00017285079589069707,
        0.00019357811656152082,
        -8.645256100240864e-06,
        -3.812835712769396e-05,
        -6.002657881548441e-06,
        6.544044169701184e-06,
        3.1267160441935634e-06,
        -5.174206272334488e-07,
        -9.167744139046014e-07,
        -2.113023153384452e-07,
        1.5430528599885146e-07,
        1.1683900489981948e-07,
        1.7728722354888478e-09,
        -2.8760061929781204e-08,
        -8.014987157211878e-09,
        3.2013845115649906e-09,
        1.4476290589778532e-09,
    ],
);

/// `erfinv x / x − 7/8` in `w`, for `w` up to 5 (6.25).
const ERFINV_NEAR: Polynomial<10, 25> = Polynomial(
    [
        0.01122692,
        0.23201382,
        0.011548627,
        -0.0023342283,
        -0.00012756341,
        4.4618857e-05,
        3.9629535e-06,
        -1.9720492e-06,
        2.2051805e-07,
        -8.766406e-09,
    ],
    [
        0.01122692545275801,
        0.2320136665346552,
        0.011549342038245767,
        -0.002335101641251615,
        -0.000128043296981451,
        4.661145306243903e-05,
        2.0199493980263734e-06,
        -1.0124671175156445e-06,
        -3.7438041198914634e-08,
        2.297172210915318e-08,
        5.810950520677533e-10,
        -3.9071822699075575e-10,
        -9.868025699468572e-11,
        5.3317755495899294e-11,
        -1.615849837954395e-11,
        5.0724120974891625e-12,
        -1.4037643055865336e-12,
        2.9409351618209147e-13,
        -4.5366249405644975e-14,
        5.164772269776384e-15,
        -4.321475362172189e-16,
        2.60041591240929e-17,
        -1.0703403266739556e-18,
        2.7079484170647052e-20,
        -3.184665095153887e-22,
    ],
);

/// `erfinv x / x − 3` in `√w − 3.1` (`√w − 3.25`), for `w` from 5 to 16 (`√w` from 2.5 to 4).
const ERFINV_FAR: Polynomial<10, 21> = Polynomial(
    [
        -0.06676835,
        1.0033561,
        0.0074612554,
        -0.005695155,
        0.0041088974,
        -0.0027228843,
        0.0013647624,
        -0.00028306092,
        -0.00020332761,
        0.00012764613,
    ],
    [
        0.08388561049222068,
        1.0052589676941655,
        0.005370914553555095,
        -0.0037512085082240555,
        0.002491442097953155,
        -0.0016882755354695213,
        0.0009532893416704369,
        -0.0003550378134998592,
        2.403151176701957e-05,
        6.828711526198108e-05,
        -4.732067309124772e-05,
        1.2465037550141785e-05,
        2.9325468163577167e-06,
        -3.985730573471875e-06,
        1.4816792810757614e-06,
        -2.7578582925552118e-08,
        -2.456246559874143e-07,
        1.3155364957063894e-07,
        -2.0806145048551023e-08,
        -1.5293545334752515e-08,
        7.640800734775662e-09,
    ],
);

/// `erfinv x / x − 5` in `√w − 5`, for `√w` from 4 to 6.01: beyond what binary32 can reach.
const ERFINV_FARTHEST: Polynomial<1, 19> = Polynomial(
    [0.0],
    [
        -0.15009359859141566,
        1.0103004648645453,
        -0.0001387193183808391,
        -0.00021503011982657868,
        7.599527811431156e-05,
        -1.9681770717499295e-05,
        4.5260523546285e-06,
        -9.930292917924645e-07,
        2.2905366143756398e-07,
        -6.755641871715354e-08,
        2.9016308021390307e-08,
        -1.5254855875265723e-08,
        7.825257472729394e-09,
        -3.4713139657252325e-09,
        1.3123627637424698e-09,
        -4.3770942131961926e-10,
        7.141961587580928e-11,
        4.2934270521502864e-11,
        -2.078234977463462e-11,
    ],
);

/// `e^(a²)·erfc a` for `a` from 0.39 to where `erfc` vanishes.
#[inline(always)]
fn erfc_scaled<S: Float>(a: S) -> Pair<S> {
    let center = S::pick(2.0, 3.0);
    let top = ordered_sum(S::lit(1.25), ERFC.fused((a - center) / (a + center)));
    let bottom = sum(S::whole(1), a + a);
    // The quotient and what it leaves, so that only the last sum rounds.
    let inverse = S::whole(1) / bottom.hi;
    let q = top.hi * inverse;
    let p = product(q, bottom.hi);
    let rest = ((top.hi - p.hi) - p.lo) + (top.lo - q * bottom.lo);
    Pair { hi: q, lo: rest * inverse }
}

/// `erfc a` for `a ≥ 0.39`.
#[inline(always)]
fn erfc_tail<S: Float>(a: S) -> S {
    let a = a.at_most(S::pick(10.1, 27.3));
    let square = product(a, a);
    exp_times(erfc_scaled(a), Pair { hi: -square.hi, lo: -square.lo })
}

/// The error function. Error ≤ 1.5 ULP.
#[inline(always)]
pub fn erf<S: Float>(x: S) -> S {
    let a = x.abs();
    let small = x.multiply_add(ERF.fused(x * x), x);
    let large = (S::whole(1) - erfc_tail(a)).copysign(x);
    let value = S::select(a.lt(S::whole(1)), small, large);
    S::select(x.is_nan(), x, value)
}

/// `1 − erf x`, accurate where it is small. Error ≤ 2 ULP in binary32, 1.5 in binary64.
#[inline(always)]
pub fn erfc<S: Float>(x: S) -> S {
    let a = x.abs();
    let small = S::whole(1) - x.multiply_add(ERF.fused(x * x), x);
    let tail = erfc_tail(a);
    let large = S::select(x.lt(S::whole(0)), S::whole(2) - tail, tail);
    let value = S::select(a.lt(S::lit(0.4)), small, large);
    S::select(x.is_nan(), x, value)
}

/// `Φ(−a)·e^(a²/2)` for `a ≥ 0`: Mills' ratio by a constant.
#[inline(always)]
fn mills<S: Float>(a: S) -> Pair<S> {
    let one = S::whole(1);
    let d = sum(a, S::lit(3.25));
    let inverse = one / d.hi;
    // By how much that is too large, relative to itself.
    let off = inverse.multiply_add(d.lo, inverse.lost(d.hi, one));
    // (a − c)/(a + c)
    let u = inverse.multiply_add(S::lit(-6.5), one);
    let top = ordered_sum(one, MILLS.fused(u));
    let p = product(inverse, top.hi);
    // The polynomial goes with the inverse: by about 1.5·c/(a + c) as much again.
    let rest = off * inverse.multiply_add(S::lit(-4.875), S::whole(-1));
    Pair { hi: p.hi, lo: p.hi.multiply_add(rest, inverse.multiply_add(top.lo, p.lo)) }
}

/// `|x|` held where Φ(−|x|) is surely 0.
#[inline(always)]
fn hold_normal<S: Float>(x: S) -> S {
    x.abs().at_most(S::pick(14.6, 39.0))
}

/// `a·2ᵏ`, rounded once, for `a` of at most some binades above 1 and a `k` that is not positive.
#[inline(always)]
fn shrink<S: Float>(a: S, k: S::Bits) -> S {
    let far = if S::DOUBLE { 128 } else { 64 };
    let power = S::power_of_two(k + S::Bits::whole(far));
    a * power * S::power_of_two(S::Bits::whole(-far))
}

/// `x Φ(x)` with the normal distribution function Φ; its limits at ±∞ are −0 and ∞. Error ≤ 2 ULP.
#[inline(always)]
pub fn gelu<S: Float>(x: S) -> S {
    let a = hold_normal(x);
    let f = mills(a);
    let (k, em1) = normal_parts(a);
    let rest = f.hi.multiply_add(em1, f.lo.multiply_add(em1, f.lo));
    let tail = shrink(a.multiply_add(f.hi, a * rest), k);
    // −0 stays, and is what negative numbers leave of a tail that vanishes.
    x.at_least(S::lit(-0.0)) - tail
}

/// The derivative of [`gelu`], `Φ(x) + x φ(x)` with the density `φ = exp(−x²/2) / √(2π)`. Error ≤ 2
/// ULP of the result, or for `x ≥ −1.5` (near its zero at −0.75) of the larger of the result and ½.
#[inline(always)]
pub fn gelu_slope<S: Float>(x: S) -> S {
    let a = hold_normal(x);
    let c = Pair::constant(
        (0.3989422917366028, -1.133517e-08),
        (0.3989422804014327, -2.49232720227773e-17),
    );
    // a φ(a) − Φ(−a)
    let (m, f) = (product(a, c.hi), mills(a));
    let far = sum(m.hi, -f.hi);
    let lo = far.lo + (a.multiply_add(c.lo, m.lo) - f.lo);
    let (k, em1) = normal_parts(a);
    let rest = far.hi.multiply_add(em1, lo.multiply_add(em1, lo));
    let g = shrink(far.hi + rest, k);
    S::select(x.lt(S::whole(0)), -g, S::whole(1) + g)
}

/// `2√(2/π)` and that times 0.044715, each as a number of half the digits and the rest; the second
/// of all digits for numbers that fuse.
#[inline(always)]
fn tanh_form<S: Float>() -> [Pair<S>; 2] {
    let linear =
        Pair::constant((1.595703125, 6.59966e-05), (1.5957691073417664, 1.426396435433791e-08));
    if S::FUSES {
        return [linear, Pair { hi: S::lit(0.07135481387376785), lo: S::lit(2.3988325e-09) }];
    }
    let cubic = Pair::constant(
        (0.07135009765625, 4.7186163e-06),
        (0.071354815736413, 5.361872467621785e-10),
    );
    [linear, cubic]
}

/// `−|x|` held where `x σ(v)` is surely 0 for negative numbers.
#[inline(always)]
fn hold_tail<S: Float>(x: S) -> S {
    (-x.abs()).at_least(S::pick(-12.5, -23.0))
}

/// The square of `a = −|x|`, and the parts of `e^(−|v|)` with `v = 2√(2/π) (x + 0.044715 x³)`.
#[inline(always)]
fn tanh_parts<S: Float>(a: S) -> (S, (S::Bits, S)) {
    let [linear, cubic] = tanh_form::<S>();
    let square = a * a;
    if S::FUSES {
        // The upper part of the constant is short, so that the difference is exact.
        let hi = cubic.hi.multiply_add(square, linear.hi);
        let lost = cubic.hi.multiply_add(square, linear.hi - hi);
        let lo = cubic.hi.multiply_add(a.lost(a, square), cubic.lo.multiply_add(square, linear.lo));
        return (square, decay_product(a, Pair { hi, lo: lost + lo }));
    }
    let (a1, a0) = split(a);
    // a² = s1 + s0, where products by numbers of half the digits are exact.
    let (s1, _) = split(square);
    let s0 = (a1 * a1 - s1) + a0 * (a + a1);
    let w = sum(cubic.hi * s1, linear.hi);
    let lo = w.lo + ((linear.lo + cubic.lo * s1) + (cubic.hi + cubic.lo) * s0);
    let (w1, w0) = split(w.hi);
    let minus = ordered_sum(a1 * w1, a1 * (w0 + lo) + a0 * (w.hi + lo));
    (square, decay_parts(minus))
}

/// `x σ(v)` with `v = 2√(2/π) (x + 0.044715 x³)`: the approximation of [`gelu`] by tanh,
/// `½x (1 + tanh v/2)`. Its limits at ±∞ are −0 and ∞. Error ≤ 3 ULP.
#[inline(always)]
pub fn gelu_tanh<S: Float>(x: S) -> S {
    let held = hold_tail(x);
    gated(x, held, tanh_parts(held).1)
}

/// [`gelu_tanh`], with the same bits, but where [`gelu_tanh_is_rare`].
#[inline(always)]
pub fn gelu_tanh_often<S: Float>(x: S) -> S {
    if !S::HAS_RARE {
        return gelu_tanh(x);
    }
    let minus = -x.abs();
    gated_normal(x, minus, tanh_parts(minus).1)
}

/// Whether `x σ(v)` may be no normal number, or needs care to be one.
#[inline(always)]
pub fn gelu_tanh_is_rare<S: Float>(x: S) -> bool {
    x.is_beyond(if S::DOUBLE { 20.0 } else { 9.9 })
}

/// The derivative of [`gelu_tanh`]. Error ≤ 8 ULP of the result, or for `x ≥ −1.5` (near its zero
/// at −0.75) of the larger of the result and ½.
#[inline(always)]
pub fn gelu_tanh_slope<S: Float>(x: S) -> S {
    let [linear, cubic] = tanh_form::<S>();
    let held = hold_tail(x);
    let (square, parts) = tanh_parts(held);
    let three = S::whole(3) * (cubic.hi + cubic.lo);
    gated_slope(x, held * ((linear.hi + linear.lo) + three * square), parts)
}

/// The inverse of [`erf`]; NaN outside [−1, 1], infinite at its ends. Error ≤ 2.5 ULP.
///
/// With `w = −log(1 − x²)`, `erfinv x / x` is smooth in `w` near 0, and in `√w` far from it.
#[inline(always)]
pub fn erfinv<S: Float>(x: S) -> S {
    let one = S::whole(1);
    let a = x.abs();
    // 1 − x² = 1 + hi + lo
    let square = product(a, a);
    let w = -log1p_pair(Pair { hi: -square.hi, lo: -square.lo });
    let root = w.sqrt();
    let is_near = w.lt(S::pick(5.0, 6.25));
    let near = ERFINV_NEAR.at(w);
    let far = ERFINV_FAR.at(root - S::pick(3.1, 3.25));
    let mut lead = S::select(is_near, S::lit(0.875), S::whole(3));
    let mut rest = S::select(is_near, near, far);
    if S::DOUBLE {
        let is_farthest = root.ge(S::whole(4));
        lead = S::select(is_farthest, S::whole(5), lead);
        rest = S::select(is_farthest, ERFINV_FARTHEST.at(root - S::whole(5)), rest);
    }
    let ratio = sum(lead, rest);
    let value = x * ratio.hi + x * ratio.lo;
    let value = S::select(a.eq(one), S::infinity(), value).copysign(x);
    S::select(a.le(one), value, S::nan())
}
