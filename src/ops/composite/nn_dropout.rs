//! Dropout of whole channels, and dropout that keeps the moments of a self-normalising net.

use super::random::bits_of;
use crate::dtype::DType;
use crate::error;
use crate::ops::emit::{Expr, throw};
use crate::ops::op::Type;
use crate::shape::{Dim, Shape};

composite! {
    /// Zeroes each channel with probability `p` and divides the others by `1 - p`.
    ///
    /// `x` (N, C, L) or (C, L), floating; unchanged where `training` is False. `key`: random key, None
    /// draws one. Raises ValueError for `p` outside [0, 1]. Source: Tompson et al.: Efficient object
    /// localization using convolutional networks, 2015.
    nn function dropout1d(
        x: FloatTensor, p: Float = 0.5; training: Bool = True, key: Key = None,
    ) -> One {
        dropped("dropout1d", x, p, training, key, channels("dropout1d", x, 1))
    }

    /// Zeroes each channel with probability `p` and divides the others by `1 - p`.
    ///
    /// `x` (N, C, H, W) or (C, H, W), floating; as `dropout1d`.
    nn function dropout2d(
        x: FloatTensor, p: Float = 0.5; training: Bool = True, key: Key = None,
    ) -> One {
        dropped("dropout2d", x, p, training, key, channels("dropout2d", x, 2))
    }

    /// Zeroes each channel with probability `p` and divides the others by `1 - p`.
    ///
    /// `x` (N, C, D, H, W) or (C, D, H, W), floating; as `dropout1d`.
    nn function dropout3d(
        x: FloatTensor, p: Float = 0.5; training: Bool = True, key: Key = None,
    ) -> One {
        dropped("dropout3d", x, p, training, key, channels("dropout3d", x, 3))
    }

    /// Sets elements to the least value of `selu` with probability `p`.
    ///
    /// All are scaled and shifted so that mean 0 and variance 1 stay. Floating, any shape; unchanged
    /// where `training` is False. `key`: random key, None draws one. Raises ValueError for `p` outside
    /// [0, 1]. Source: Klambauer et al.: Self-normalizing neural networks, 2017.
    nn function alpha_dropout(
        x: FloatTensor, p: Float = 0.5; training: Bool = True, key: Key = None,
    ) -> One {
        alpha_dropped("alpha_dropout", x, p, training, key, x.shape())
    }

    /// `alpha_dropout` of whole channels.
    ///
    /// `x` (N, C, …), floating.
    nn function feature_alpha_dropout(
        x: FloatTensor, p: Float = 0.5; training: Bool = True, key: Key = None,
    ) -> One {
        let op = "feature_alpha_dropout";
        let Some(spatial) = x.rank().checked_sub(2) else {
            throw(error::bad_rank(op, "x", "2 or more", x.shape()));
        };
        alpha_dropped(op, x, p, training, key, channels(op, x, spatial))
    }
}

/// The shape in which a channel is one number.
fn channels(op: &str, x: Expr<'_>, spatial: usize) -> Shape {
    let rank = x.rank();
    if rank != spatial + 2 && rank != spatial + 1 {
        throw(error::bad_rank(op, "x", format!("{} or {}", spatial + 1, spatial + 2), x.shape()));
    }
    let size = |axis| if axis + spatial < rank { x.size(axis) } else { Dim::ONE };
    (0..rank).map(size).collect()
}

/// Which of the elements of a shape are kept: those where 32 random bits reach `p · 2³²`. `None`
/// where all are.
fn kept<'e>(op: &str, p: f64, training: bool, key: Expr<'e>, shape: Shape) -> Option<Expr<'e>> {
    if !(0.0..=1.0).contains(&p) {
        throw(error::bad_value(op, "p is a probability", format!("got {p}")));
    }
    if !training || p == 0.0 {
        return None;
    }
    let limit = (p * 2f64.powi(32)).round() as i64;
    let bits = bits_of(op, key, Type::new(DType::U32, shape.clone()));
    Some(match limit > u32::MAX.into() {
        true => bits.scalar(false).full(DType::Bool, shape),
        false => bits.greater_equal(bits.scalar(limit)),
    })
}

fn dropped<'e>(
    op: &str,
    x: Expr<'e>,
    p: f64,
    training: bool,
    key: Expr<'e>,
    noise: Shape,
) -> Expr<'e> {
    let x = x.tensor();
    let Some(kept) = kept(op, p, training, key, noise) else { return x };
    let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
    kept.select(x * scale, x.scalar(0.0))
}

/// `-λ α` of `selu`.
const LEAST: f64 = -1.758_099_340_847_376_6;

fn alpha_dropped<'e>(
    op: &str,
    x: Expr<'e>,
    p: f64,
    training: bool,
    key: Expr<'e>,
    noise: Shape,
) -> Expr<'e> {
    let x = x.tensor();
    let Some(kept) = kept(op, p, training, key, noise) else { return x };
    if p >= 1.0 {
        return x.zeros_like();
    }
    let scale = 1.0 / ((1.0 - p) * (1.0 + p * LEAST * LEAST)).sqrt();
    kept.select(x, x.scalar(LEAST)) * scale + -LEAST * p * scale
}
