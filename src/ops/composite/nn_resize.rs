//! Resizing of images, axis by axis.
//!
//! Where an element of the result lies in the operand is worked out in integers, as a fraction: so
//! places are exact for every size and on every device.

use super::nn_norm::wide;
use super::nn_pool::averaged;
use super::size_of;
use crate::dtype::DType;
use crate::error;
use crate::ops::declare::Extents;
use crate::ops::emit::{Expr, OrThrow, throw};
use crate::shape::{Dim, Shape};

composite! {
    /// Images resized to `size`, or by `scale_factor`.
    ///
    /// `x` (N, C, L), (N, C, H, W) or (N, C, D, H, W), floating; `size` is one int or one for each
    /// axis behind C, and a scale factor n gives ⌊size · n⌋. `mode`: "nearest" (as PyTorch's, which
    /// rounds down), "nearest-exact", "linear", "bilinear" and "trilinear" by the number of axes,
    /// "bicubic" (Keys' kernel with a = -0.75), "area" (means, as `adaptive_avg_pool2d`). Elements
    /// are areas; with `align_corners` they are points, and the outer ones stay where they are.
    /// Raises ShapeError for other ranks and ValueError for other arguments.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nn.interpolate(wg.tensor([[[0.0, 1.0]]]), size=4, mode="linear").tolist()
    /// [[[0.0, 0.25, 0.75, 1.0]]]
    nn function interpolate(
        x: FloatTensor, size: MaybeSizes = None, scale_factor: MaybeFloat = None,
        mode: ResizeMode = "nearest", align_corners: MaybeBool = None,
    ) -> One {
        resized(x.tensor(), size, scale_factor, &mode, align_corners)
    }
}

const OP: &str = "interpolate";

/// An axis of `from` elements that gets `to`, where an element of the result is `step.0 / step.1`
/// elements of the operand wide.
struct Axis<'e> {
    from: Dim,
    to: Dim,
    step: (Expr<'e>, Expr<'e>),
}

fn resized<'e>(
    x: Expr<'e>,
    size: Option<Extents>,
    scale: Option<f64>,
    mode: &str,
    align: Option<bool>,
) -> Expr<'e> {
    let rank = x.rank();
    if !(3..=5).contains(&rank) {
        throw(error::bad_rank(OP, "x", "3, 4 or 5", x.shape()));
    }
    let spatial = rank - 2;
    let fits = match mode {
        "linear" => spatial == 1,
        "bilinear" | "bicubic" => spatial == 2,
        "trilinear" => spatial == 3,
        "nearest" | "nearest-exact" | "area" => true,
        _ => throw(error::bad_value(OP, "mode is not known", format!("got {mode:?}"))),
    };
    if !fits {
        throw(error::bad_shape(
            OP,
            format!("mode {mode:?} is of another rank"),
            x.shape().to_string(),
        ));
    }
    let blends = !matches!(mode, "nearest" | "nearest-exact" | "area");
    if align.is_some() && !blends {
        let facts = format!("got mode {mode:?}");
        throw(error::bad_value(OP, "align_corners is of linear and cubic modes", facts));
    }
    if x.shape().dims()[2..].iter().any(|n| n.equals(0)) {
        throw(error::bad_shape(OP, "an axis is empty", x.shape().to_string()));
    }
    let axes = axes(x, spatial, size, scale);
    let lead = x.shape();
    let lead = lead.dims()[..2].iter().copied();
    lead.chain(axes.iter().map(|axis| axis.to)).collect::<Shape>().check(OP).or_throw();
    if mode == "area" {
        // Each product moves the axis behind the others, so the first is always axis 2.
        let mean = |y: Expr<'e>, axis: &Axis<'e>| averaged(y, 2, axis.to);
        return axes.iter().fold(wide(x), mean).cast(x.dtype());
    }
    let align = align.unwrap_or(false);
    let start = if blends { wide(x) } else { x };
    let each = axes.iter().enumerate().fold(start, |y, (i, axis)| {
        let place = Place::new(x, axis, mode, align);
        place.taken(y, i + 2)
    });
    each.cast(x.dtype())
}

/// What becomes of the axes behind the first two.
fn axes<'e>(
    x: Expr<'e>,
    spatial: usize,
    size: Option<Extents>,
    scale: Option<f64>,
) -> Vec<Axis<'e>> {
    let whole = |n: Dim| x.whole(n);
    match (size, scale) {
        (Some(sizes), None) => {
            if sizes.len() != 1 && sizes.len() != spatial {
                let what = format!("size must be one int or {spatial}");
                throw(error::bad_value(OP, what, format!("got {}", sizes.len())));
            }
            let one = |i: usize| {
                let (from, given) = (x.size(i + 2), sizes[i.min(sizes.len() - 1)]);
                let to = size_of(given, 1, "size", OP);
                Axis { from, to, step: (whole(from), whole(to)) }
            };
            (0..spatial).map(one).collect()
        }
        (None, Some(scale)) => {
            if !(scale > 0.0 && scale.is_finite()) {
                let facts = format!("got {scale}");
                throw(error::bad_value(OP, "scale_factor must be positive", facts));
            }
            let (over, under) = fraction(1.0 / scale);
            let one = |i: usize| {
                let from = x.size(i + 2);
                let to = (from.value() as f64 * scale).floor();
                if to < 1.0 || to > f64::from(i32::MAX) {
                    let facts = format!("{} times {scale}", x.shape());
                    throw(error::bad_shape(OP, "the result has no such size", facts));
                }
                let step = (x.scalar(over), x.scalar(under));
                Axis { from, to: Dim::new(to as usize), step }
            };
            (0..spatial).map(one).collect()
        }
        (None, None) | (Some(_), Some(_)) => {
            let what = "give either size or scale_factor";
            throw(error::bad_value(OP, what, "got both or neither"))
        }
    }
}

/// A fraction of small integers that is equal to a number, or next to it.
fn fraction(x: f64) -> (i64, i64) {
    const MOST: f64 = (1 << 24) as f64;
    let (mut before, mut last) = ((0.0, 1.0), (1.0, 0.0));
    let mut rest = x;
    loop {
        let whole: f64 = rest.floor();
        let next = (whole * last.0 + before.0, whole * last.1 + before.1);
        if next.1 > MOST || next.0 > MOST * MOST {
            break;
        }
        (before, last) = (last, next);
        if last.0 / last.1 == x || rest == whole {
            break;
        }
        rest = 1.0 / (rest - whole);
    }
    (last.0 as i64, last.1 as i64)
}

/// Which elements of an axis an element of the result is made of, each with its weight, if there is
/// more than one.
struct Place<'e> {
    taps: Vec<(Expr<'e>, Option<Expr<'e>>)>,
}

impl<'e> Place<'e> {
    fn new(x: Expr<'e>, axis: &Axis<'e>, mode: &str, align: bool) -> Place<'e> {
        let int = |n: i64| x.scalar(n);
        let out = x.iota(DType::I64, Shape::from_dims(&[axis.to]), 0);
        let last = x.whole(axis.from) - int(1);
        let (over, under) = axis.step;
        let within = |i: Expr<'e>| i.maximum(int(0)).minimum(last);
        if !matches!(mode, "linear" | "bilinear" | "trilinear" | "bicubic") {
            let place = match mode == "nearest" {
                true => (out * over).floor_divide(under),
                false => ((out * int(2) + int(1)) * over).floor_divide(under * int(2)),
            };
            return Place { taps: vec![(within(place), None)] };
        }
        let cubic = mode == "bicubic";
        let (over, under) = match align {
            true => (out * last, (x.whole(axis.to) - int(1)).maximum(int(1))),
            false => ((out * int(2) + int(1)) * over - under, under * int(2)),
        };
        // A line ends at the middle of the outer elements; a cubic goes on.
        let over = if cubic { over } else { over.maximum(int(0)) };
        let low = over.floor_divide(under);
        let dtype = wide(x).dtype();
        let t = (over - low * under).cast(dtype) / under.cast(dtype);
        let weights = if cubic { cubic_weights(t).to_vec() } else { vec![1.0 - t, t] };
        let first = if cubic { -1 } else { 0 };
        let taps = (first..).zip(weights).map(|(k, w)| (within(low + int(k)), Some(w)));
        Place { taps: taps.collect() }
    }

    /// `x` with an axis replaced. What lies before the axis is indexed too, so that the axes keep
    /// their order in memory.
    fn taken(&self, x: Expr<'e>, axis: usize) -> Expr<'e> {
        let shape = x.shape();
        let (before, behind) = (&shape.dims()[..axis], &shape.dims()[axis + 1..]);
        let lead = before.iter().fold(Dim::ONE, |n, &d| n * d);
        let from = [lead, shape[axis]].iter().chain(behind).copied().collect::<Shape>();
        let rows = x.reshape(from);
        let row = x.iota(DType::I64, Shape::from_dims(&[lead, Dim::ONE]), 0);
        let tap = |(index, weight): &(Expr<'e>, Option<Expr<'e>>)| {
            let n = index.size(0);
            let taken = rows.gather(&[row, index.reshape(Shape::from_dims(&[Dim::ONE, n]))]);
            let mut line = Shape::of(&vec![1; taken.rank()]);
            line.dims_mut()[1] = n;
            weight.map_or(taken, |w| taken * w.reshape(line))
        };
        let parts: Vec<Expr<'e>> = self.taps.iter().map(tap).collect();
        let sum = parts[1..].iter().fold(parts[0], |sum, &part| sum + part);
        let to = before.iter().chain([&sum.size(1)]).chain(behind).copied().collect();
        sum.reshape(to)
    }
}

/// The weights of the four neighbours of a place, `t` behind the second: Keys' kernel.
pub(super) fn cubic_weights(t: Expr<'_>) -> [Expr<'_>; 4] {
    [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]
}

/// Keys' `a`, as PyTorch has it.
const A: f64 = -0.75;

/// The kernel up to a distance of 1.
fn near(u: Expr<'_>) -> Expr<'_> {
    ((A + 2.0) * u - (A + 3.0)) * u * u + 1.0
}

/// The kernel from a distance of 1 to 2.
fn far(u: Expr<'_>) -> Expr<'_> {
    ((A * u - 5.0 * A) * u + 8.0 * A) * u - 4.0 * A
}
