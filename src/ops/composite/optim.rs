//! Updates of optimizers: one call for each parameter and step.
//!
//! Hyperparameters are runtime operands. Their own arithmetic is done in float64 and then takes the
//! dtype of the parameter.

use super::within;
use crate::dtype::DType;
use crate::ops::emit::{Arg, Expr};
use crate::ops::number::Calculation;

composite! {
    /// A step of gradient descent: the new parameter.
    ///
    /// `p - lr · (g + weight_decay · p)`. All tensors are floating and of one shape.
    optim function sgd(
        p: FloatTensor, g: FloatTensor; lr: Number, weight_decay: Number = 0.0,
    ) -> One {
        [lr, weight_decay].iter().for_each(|x| within("sgd", &x.shape(), &p.shape()));
        p - lr.like(p) * decayed(p, g, weight_decay)
    }

    /// A step of gradient descent with momentum: the new parameter and the new buffer.
    ///
    /// `g ← g + weight_decay · p`; `b ← momentum · b + g`; `p ← p - lr · b`, and with `nesterov`
    /// the step is `g + momentum · b`. All tensors are floating and of one shape.
    optim function sgd_momentum(
        p: FloatTensor, g: FloatTensor, momentum_buffer: FloatTensor;
        lr: Number, momentum: Number, weight_decay: Number = 0.0, nesterov: Bool = False,
    ) -> Exactly(2) {
        for x in [lr, momentum, weight_decay] {
            within("sgd_momentum", &x.shape(), &p.shape());
        }
        let g = decayed(p, g, weight_decay);
        let b = momentum.like(p) * momentum_buffer + g;
        let step = if nesterov { g + momentum.like(p) * b } else { b };
        (p - lr.like(p) * step, b)
    }

    /// A step of Adam: the new parameter and the new moments.
    ///
    /// `m ← beta1 · m + (1 - beta1) g`; `v ← beta2 · v + (1 - beta2) g²`;
    /// `p ← p - lr · m̂ / (√v̂ + eps)` with `m̂ = m / (1 - beta1ᵗ)`, `v̂ = v / (1 - beta2ᵗ)` and
    /// t = `step`, counted from 1. Weight decay is added to the gradient as `weight_decay · p`, or,
    /// where `decoupled`, taken off the parameter first. Source: Kingma, Ba:
    /// Adam, 2015; Loshchilov, Hutter: Decoupled weight decay regularization, 2019.
    optim function adam(
        p: FloatTensor, g: FloatTensor, m: FloatTensor, v: FloatTensor, step: FloatTensor;
        lr: Number, beta1: Number, beta2: Number, eps: Number, weight_decay: Number = 0.0,
        decoupled: Bool = False,
    ) -> Exactly(3) {
        for x in [step, lr, beta1, beta2, eps, weight_decay] {
            within("adam", &x.shape(), &p.shape());
        }
        // Scalars are float32, but for float64 parameters: not every device has float64.
        let is_double = [step, p].iter().any(|x| x.dtype() == DType::F64);
        let wide = if is_double { DType::F64 } else { DType::F32 };
        let step = step.cast(wide);
        let (p, g) = match (is_zero(weight_decay), decoupled) {
            (true, _) => (p, g),
            (_, true) => (p * lr.wide(wide).times(weight_decay.wide(wide)).rest().like(p), g),
            (_, false) => (p, decayed(p, g, weight_decay)),
        };
        // With c = √(1 - beta2ᵗ), the division by c moves from √v to the scalars:
        // m̂ / (√v̂ + eps) = c / (1 - beta1ᵗ) · m / (√v + c · eps).
        let root = grown(beta2, step).sqrt();
        let size = (lr.wide(wide) * root / grown(beta1, step)).cast(p.dtype());
        let m = m * beta1.like(p) + beta1.wide(wide).rest().like(p) * g;
        let v = v * beta2.like(p) + beta2.wide(wide).rest().like(p) * (g * g);
        let floor = (eps.wide(wide) * root).cast(p.dtype());
        (p - size * m / (v.sqrt() + floor), m, v)
    }
}

/// 1 - betaᵗ in the dtype of t. In float64 as it stands; what is narrower would lose the difference
/// from 1.
fn grown<'e>(beta: Expr<'e>, t: Expr<'e>) -> Expr<'e> {
    let beta = beta.wide(t.dtype());
    if t.dtype() == DType::F64 {
        return 1.0 - beta.pow(t);
    }
    let rest = beta.rest();
    let rest = if rest.is_number() { rest.full(t.dtype(), t.shape()) } else { rest };
    -(t * (-rest).log1p()).expm1()
}

/// The gradient with weight decay as an L2 penalty.
fn decayed<'e>(p: Expr<'e>, g: Expr<'e>, weight_decay: Expr<'e>) -> Expr<'e> {
    if is_zero(weight_decay) { g } else { g + weight_decay.like(p) * p }
}

/// A hyperparameter known to be zero.
fn is_zero(x: Expr<'_>) -> bool {
    x.as_scalar().is_some_and(|value| value.as_f64() == 0.0)
}

impl<'e> Expr<'e> {
    /// A number as a floating one; a tensor in a dtype.
    fn wide(self, dtype: DType) -> Expr<'e> {
        match self.arg() {
            Arg::Number(value) => self.scalar(value.as_float()),
            Arg::Node(_) => self.cast(dtype),
        }
    }

    /// One less this.
    fn rest(self) -> Expr<'e> {
        match self.is_number() {
            true => self.scalar(1.0).calculate(Calculation::Sub, self),
            false => 1.0 - self,
        }
    }

    /// The product of two numbers, which is a number, or of tensors.
    fn times(self, b: Expr<'e>) -> Expr<'e> {
        match self.is_number() && b.is_number() {
            true => self.calculate(Calculation::Mul, b),
            false => self * b,
        }
    }

    /// Beside `p`: a number is weak, a tensor takes the dtype.
    fn like(self, p: Expr<'e>) -> Expr<'e> {
        if self.is_number() { self } else { self.cast(p.dtype()) }
    }
}
