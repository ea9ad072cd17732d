//! What is done at every unit of a step: gates from their sums, and slopes from cotangents.
//!
//! Every operation is rounded once, in the order of the formulas in `ops::composite::nn_recurrent`.

use crate::cpu::dense::Real;
use crate::multiversion;
use crate::scalar::{by_fma, sigmoid, tanh};

/// Units that are worked on at a time.
const LANES: usize = 16;

/// Some units at a time.
type Units<T> = [T; LANES];

/// Where the units of rows lie, for each gate.
#[derive(Clone, Copy)]
pub struct Lines<T> {
    /// Unit 0 of gate 0 of row 0
    pub ptr: *mut T,
    /// Elements from row to row
    pub row: usize,
    /// Elements from gate to gate
    pub gate: usize,
}

impl<T: Real> Lines<T> {
    /// So many units from there on; what is behind them is 0.
    ///
    /// # Safety
    /// They can be read.
    #[inline(always)]
    unsafe fn load(self, [row, gate, unit]: [usize; 3], n: usize) -> Units<T> {
        // SAFETY: by contract.
        unsafe {
            let at = self.ptr.add(row * self.row + gate * self.gate + unit);
            if n == LANES {
                return at.cast::<Units<T>>().read_unaligned();
            }
            let mut all = [T::ZERO; LANES];
            for (i, x) in all[..n].iter_mut().enumerate() {
                *x = *at.add(i);
            }
            all
        }
    }

    /// Writes so many units there.
    ///
    /// # Safety
    /// They can be written.
    #[inline(always)]
    unsafe fn store(self, [row, gate, unit]: [usize; 3], all: Units<T>, n: usize) {
        // SAFETY: by contract.
        unsafe {
            let at = self.ptr.add(row * self.row + gate * self.gate + unit);
            if n == LANES {
                return at.cast::<Units<T>>().write_unaligned(all);
            }
            for (i, x) in all[..n].iter().enumerate() {
                *at.add(i) = *x;
            }
        }
    }
}

#[inline(always)]
fn map<T: Copy>(mut a: Units<T>, f: impl Fn(T) -> T) -> Units<T> {
    a.iter_mut().for_each(|a| *a = f(*a));
    a
}

#[inline(always)]
fn zip<T: Copy>(mut a: Units<T>, b: Units<T>, f: impl Fn(T, T) -> T) -> Units<T> {
    a.iter_mut().zip(b).for_each(|(a, b)| *a = f(*a, b));
    a
}

#[inline(always)]
fn add<T: Real>(a: Units<T>, b: Units<T>) -> Units<T> {
    zip(a, b, |a, b| a + b)
}

#[inline(always)]
fn mul<T: Real>(a: Units<T>, b: Units<T>) -> Units<T> {
    zip(a, b, |a, b| a * b)
}

/// `1 − x`
#[inline(always)]
fn rest<T: Real>(x: Units<T>) -> Units<T> {
    map(x, |x| T::ONE - x)
}

/// `x (1 − x)`, the slope of a sigmoid.
#[inline(always)]
fn bend<T: Real>(x: Units<T>) -> Units<T> {
    mul(x, rest(x))
}

/// `1 − x²`, the slope of a hyperbolic tangent.
#[inline(always)]
fn tilt<T: Real>(x: Units<T>) -> Units<T> {
    map(x, |x| T::ONE - x * x)
}

/// `σ(x)`
#[inline(always)]
fn sigmoids<T: Real, const FMA: bool>(x: Units<T>) -> Units<T> {
    map(x, |x| by_fma!(FMA, sigmoid(x)))
}

/// `tanh x`
#[inline(always)]
fn tanhs<T: Real, const FMA: bool>(x: Units<T>) -> Units<T> {
    map(x, |x| by_fma!(FMA, tanh(x)))
}

multiversion! {
    /// The gates of an LSTM in the place of what was fed to them, and the next cells and states.
    ///
    /// # Safety
    /// All that is named can be read or written, for so many rows and units.
    pub unsafe fn lstm[T](
        size: [usize; 2],
        lines: [Lines<T>; 3],
        states: [Lines<T>; 3],
    )
    where [T: Real]
    {
        let ([rows, units], [sums, gates, bias], [c, cells, h]) = (size, lines, states);
        for r in 0..rows {
            for u in (0..units).step_by(LANES) {
                let (n, at) = (LANES.min(units - u), [r, 0, u]);
                // SAFETY: by contract.
                unsafe {
                    let sum = |k: usize| {
                        let fed = add(gates.load([r, k, u], n), bias.load([0, k, u], n));
                        add(fed, sums.load([r, k, u], n))
                    };
                    let (i, f) = (sigmoids::<T, FMA>(sum(0)), sigmoids::<T, FMA>(sum(1)));
                    let (g, o) = (tanhs::<T, FMA>(sum(2)), sigmoids::<T, FMA>(sum(3)));
                    let c = add(mul(f, c.load(at, n)), mul(i, g));
                    for (k, x) in [i, f, g, o].into_iter().enumerate() {
                        gates.store([r, k, u], x, n);
                    }
                    cells.store(at, c, n);
                    h.store(at, mul(o, tanhs::<T, FMA>(c)), n);
                }
            }
        }
    }

    /// The same of gated recurrent units: the gates, `U_n h`, and the next states.
    ///
    /// # Safety
    /// As for [`lstm`].
    pub unsafe fn gru[T](
        size: [usize; 2],
        lines: [Lines<T>; 4],
        states: [Lines<T>; 3],
    )
    where [T: Real]
    {
        let ([rows, units], [sums, gates, bias, own_bias], [before, own, h]) = (size, lines, states);
        for r in 0..rows {
            for u in (0..units).step_by(LANES) {
                let (n, at) = (LANES.min(units - u), [r, 0, u]);
                // SAFETY: by contract.
                unsafe {
                    let fed = |k: usize| add(gates.load([r, k, u], n), bias.load([0, k, u], n));
                    let sum = |k: usize| add(sums.load([r, k, u], n), own_bias.load([0, k, u], n));
                    let (x, z) = (add(fed(0), sum(0)), add(fed(1), sum(1)));
                    let (x, z, m) = (sigmoids::<T, FMA>(x), sigmoids::<T, FMA>(z), sum(2));
                    let c = tanhs::<T, FMA>(add(fed(2), mul(x, m)));
                    let next = add(mul(rest(z), c), mul(z, before.load(at, n)));
                    for (k, x) in [x, z, c].into_iter().enumerate() {
                        gates.store([r, k, u], x, n);
                    }
                    own.store(at, m, n);
                    h.store(at, next, n);
                }
            }
        }
    }

    /// The same of a simple recurrent net: the next states.
    ///
    /// # Safety
    /// As for [`lstm`].
    pub unsafe fn rnn[T; const RELU: bool](
        size: [usize; 2],
        lines: [Lines<T>; 4],
    )
    where [T: Real]
    {
        let ([rows, units], [sums, fed, bias, h]) = (size, lines);
        for r in 0..rows {
            for u in (0..units).step_by(LANES) {
                let (n, at) = (LANES.min(units - u), [r, 0, u]);
                // SAFETY: by contract.
                unsafe {
                    let sum = add(add(fed.load(at, n), bias.load([0, 0, u], n)), sums.load(at, n));
                    let next = match RELU {
                        true => map(sum, |x| x.maximum(T::ZERO)),
                        false => tanhs::<T, FMA>(sum),
                    };
                    h.store(at, next, n);
                }
            }
        }
    }

    /// The slopes of an LSTM, to two places, and the cotangents of the cells before, in the place of
    /// those behind.
    ///
    /// # Safety
    /// As for [`lstm`].
    pub unsafe fn lstm_slopes[T](
        size: [usize; 2],
        lines: [Lines<T>; 4],
        states: [Lines<T>; 2],
        saved: [Option<Lines<T>>; 2],
        to: [Lines<T>; 2],
    )
    where [T: Real]
    {
        let ([rows, units], [dh, dc, g, gates], [cells, before]) = (size, lines, states);
        for r in 0..rows {
            for u in (0..units).step_by(LANES) {
                let (n, at) = (LANES.min(units - u), [r, 0, u]);
                // SAFETY: by contract.
                unsafe {
                    let gate = |k: usize| gates.load([r, k, u], n);
                    let (i, f, c, o) = (gate(0), gate(1), gate(2), gate(3));
                    let (dh, t) = (add(dh.load(at, n), g.load(at, n)), tanhs::<T, FMA>(cells.load(at, n)));
                    let mut d = add(dc.load(at, n), mul(mul(dh, o), tilt(t)));
                    if let Some(more) = saved[1] {
                        d = add(d, more.load(at, n));
                    }
                    let mut all = [mul(d, c), mul(d, before.load(at, n)), mul(d, i), mul(dh, t)];
                    if let Some(more) = saved[0] {
                        for (k, x) in all.iter_mut().enumerate() {
                            *x = add(*x, more.load([r, k, u], n));
                        }
                    }
                    let [di, df, dg, d_o] = all;
                    let all = [mul(di, bend(i)), mul(df, bend(f)), mul(dg, tilt(c)), mul(d_o, bend(o))];
                    for (k, x) in all.into_iter().enumerate() {
                        to[0].store([r, k, u], x, n);
                        to[1].store([r, k, u], x, n);
                    }
                    dc.store(at, mul(d, f), n);
                }
            }
        }
    }

    /// The slopes of gated recurrent units: by what the state gives, to two places, and by what was
    /// fed; and the part of the cotangents of the states before that comes to them directly, in the
    /// place of that of the states behind.
    ///
    /// # Safety
    /// As for [`lstm`].
    pub unsafe fn gru_slopes[T](
        size: [usize; 2],
        lines: [Lines<T>; 4],
        states: [Lines<T>; 2],
        saved: [Option<Lines<T>>; 2],
        others: [Lines<T>; 3],
    )
    where [T: Real]
    {
        let ([rows, units], [dh, direct, g, gates], [own, before], [to, to_own, to_fed]) = (size, lines, states, others);
        for r in 0..rows {
            for u in (0..units).step_by(LANES) {
                let (n, at) = (LANES.min(units - u), [r, 0, u]);
                // SAFETY: by contract.
                unsafe {
                    let gate = |k: usize| gates.load([r, k, u], n);
                    let (x, z, c) = (gate(0), gate(1), gate(2));
                    let (m, h) = (own.load(at, n), before.load(at, n));
                    let dh = add(add(direct.load(at, n), dh.load(at, n)), g.load(at, n));
                    let mut dz = mul(dh, zip(h, c, |h, c| h - c));
                    let mut dn = mul(dh, rest(z));
                    if let Some(more) = saved[0] {
                        dz = add(dz, more.load([r, 1, u], n));
                        dn = add(dn, more.load([r, 2, u], n));
                    }
                    let dn = mul(dn, tilt(c));
                    let (mut dr, mut dm) = (mul(dn, m), mul(dn, x));
                    if let Some(more) = saved[0] {
                        dr = add(dr, more.load([r, 0, u], n));
                    }
                    if let Some(more) = saved[1] {
                        dm = add(dm, more.load(at, n));
                    }
                    let (dr, dz) = (mul(dr, bend(x)), mul(dz, bend(z)));
                    for (k, x) in [dr, dz, dm].into_iter().enumerate() {
                        to.store([r, k, u], x, n);
                        to_own.store([r, k, u], x, n);
                    }
                    for (k, x) in [dr, dz, dn].into_iter().enumerate() {
                        to_fed.store([r, k, u], x, n);
                    }
                    direct.store(at, mul(dh, z), n);
                }
            }
        }
    }

    /// The slopes of a simple recurrent net, to two places.
    ///
    /// # Safety
    /// As for [`lstm`].
    pub unsafe fn rnn_slopes[T; const RELU: bool](
        size: [usize; 2],
        lines: [Lines<T>; 3],
        to: [Lines<T>; 2],
    )
    where [T: Real]
    {
        let ([rows, units], [dh, g, y]) = (size, lines);
        for r in 0..rows {
            for u in (0..units).step_by(LANES) {
                let (n, at) = (LANES.min(units - u), [r, 0, u]);
                // SAFETY: by contract.
                unsafe {
                    let (dh, y) = (add(dh.load(at, n), g.load(at, n)), y.load(at, n));
                    let slopes = match RELU {
                        true => zip(dh, y, |d, y| if y > T::ZERO { d } else { T::ZERO }),
                        false => mul(dh, tilt(y)),
                    };
                    to[0].store(at, slopes, n);
                    to[1].store(at, slopes, n);
                }
            }
        }
    }
}
