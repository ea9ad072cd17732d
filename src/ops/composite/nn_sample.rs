//! Images sampled at places that a grid names, and grids of affine maps.

use super::nn_norm::wide;
use super::nn_resize::cubic_weights;
use super::{promoted, size_of};
use crate::dtype::DType;
use crate::error;
use crate::ops::emit::{Expr, OrThrow, throw};
use crate::shape::{Dim, Shape};

composite! {
    /// Images sampled at the places of a grid.
    ///
    /// `x` (N, C, H, W) and `grid` (N, H', W', 2), or `x` (N, C, D, H, W) and `grid`
    /// (N, D', H', W', 3), floating. The last axis of the grid has a place (x, y) or (x, y, z), from
    /// -1 to 1 across the image: from the outer edges of the outer elements, or with `align_corners`
    /// from their middles. `mode`: "bilinear", "nearest" or, for (N, C, H, W), "bicubic".
    /// `padding_mode` says what lies outside: "zeros", the "border", or the "reflection" at it.
    /// Gradients flow to `x` and `grid`. Raises ShapeError for other shapes.
    ///
    /// Source: Jaderberg et al.: Spatial transformer networks, 2015.
    nn function grid_sample(
        x: FloatTensor, grid: FloatTensor, mode: SampleMode = "bilinear",
        padding_mode: SamplePadding = "zeros", align_corners: Bool = False,
    ) -> One {
        let parts = promoted(&[x, grid], "grid_sample");
        let dtype = parts[0].dtype();
        let sampled = Sampled {
            x: wide(parts[0]),
            grid: wide(parts[1]),
            mode: &mode,
            padding: &padding_mode,
            align: align_corners,
        };
        sampled.all().cast(dtype)
    }

    /// A grid for `grid_sample` by affine maps.
    ///
    /// `theta` (N, 2, 3) with `size` (N, C, H, W) gives (N, H, W, 2); `theta` (N, 3, 4) with `size`
    /// (N, C, D, H, W) gives (N, D, H, W, 3). A place of the result is `theta` times its own place
    /// (x, y, 1) or (x, y, z, 1). `align_corners` as for `grid_sample`. Raises ShapeError for other
    /// shapes.
    nn function affine_grid(
        theta: FloatTensor, size: Sizes, align_corners: Bool = False,
    ) -> One {
        let op = "affine_grid";
        let spatial = size.len().wrapping_sub(2);
        let fits = matches!(spatial, 2 | 3)
            && theta.rank() == 3
            && theta.size(1).equals(spatial)
            && theta.size(2).equals(spatial + 1);
        if !fits {
            let facts = format!("theta {} for {} sizes", theta.shape(), size.len());
            throw(error::bad_shape(op, "theta must be (N, 2, 3) or (N, 3, 4)", facts));
        }
        let sizes: Vec<Dim> = size.iter().map(|&n| size_of(n, 1, "a size", op)).collect();
        if !sizes[0].equals(theta.size(0)) {
            let facts = format!("theta {} and {} images", theta.shape(), sizes[0]);
            throw(error::bad_shape(op, "the batch differs", facts));
        }
        // By coordinate of a place: its column of theta, laid along the last axis.
        let column = |k: usize| {
            let mut shape = Shape::of(&vec![1; spatial + 2]);
            shape.dims_mut()[0] = theta.size(0);
            shape.dims_mut()[spatial + 1] = spatial.into();
            theta.narrow(2, k, Dim::ONE).reshape(shape)
        };
        let sum = (0..spatial).fold(column(spatial), |sum, k| {
            let axis = spatial - 1 - k;
            let line = places(theta, sizes[axis + 2], align_corners);
            let mut shape = Shape::of(&vec![1; spatial + 2]);
            shape.dims_mut()[axis + 1] = sizes[axis + 2];
            sum + column(k) * line.reshape(shape)
        });
        let mut shape = Shape::of(&vec![1; spatial + 2]);
        shape.dims_mut()[0] = theta.size(0);
        shape.dims_mut()[1..=spatial].copy_from_slice(&sizes[2..]);
        shape.dims_mut()[spatial + 1] = spatial.into();
        shape.check(op).or_throw();
        sum.broadcast(shape)
    }
}

/// The places of `n` elements from -1 to 1.
fn places(like: Expr<'_>, n: Dim, align: bool) -> Expr<'_> {
    let at = like.iota(DType::I64, Shape::from_dims(&[n]), 0);
    let int = |k: i64| like.scalar(k);
    let (over, under) = match align {
        true => (at * int(2) - (like.whole(n) - int(1)), (like.whole(n) - int(1)).maximum(int(1))),
        false => (at * int(2) + int(1) - like.whole(n), like.whole(n)),
    };
    over.cast(like.dtype()) / under.cast(like.dtype())
}

/// A call of `grid_sample`.
struct Sampled<'e, 'a> {
    x: Expr<'e>,
    grid: Expr<'e>,
    mode: &'a str,
    padding: &'a str,
    align: bool,
}

/// What one neighbour of a place gives along an axis.
struct Tap<'e> {
    index: Expr<'e>,
    weight: Option<Expr<'e>>,
    /// Where the image has it; everywhere where None
    inside: Option<Expr<'e>>,
}

impl<'e> Sampled<'e, '_> {
    fn all(&self) -> Expr<'e> {
        let (x, grid, rank) = (self.x, self.grid, self.x.rank());
        let spatial = rank.wrapping_sub(2);
        let words = [
            ("mode", self.mode, &["bilinear", "nearest", "bicubic"]),
            ("padding_mode", self.padding, &["zeros", "border", "reflection"]),
        ];
        for (name, word, known) in words {
            if !known.contains(&word) {
                let what = format!("{name} must be one of {known:?}");
                throw(error::bad_value("grid_sample", what, format!("got {word:?}")));
            }
        }
        if !matches!(spatial, 2 | 3) || (self.mode == "bicubic" && spatial == 3) {
            throw(error::bad_rank("grid_sample", "x", "4, or 5 but for bicubic", x.shape()));
        }
        let fits = grid.rank() == rank
            && grid.size(rank - 1).equals(spatial)
            && grid.size(0).equals(x.size(0));
        if !fits {
            let facts = format!("x {} and grid {}", x.shape(), grid.shape());
            throw(error::bad_shape("grid_sample", "the grid does not fit", facts));
        }
        if x.shape().dims()[2..].iter().any(|n| n.equals(0)) {
            throw(error::bad_shape("grid_sample", "an axis is empty", x.shape().to_string()));
        }
        let axes: Vec<Vec<Tap<'e>>> = (0..spatial).map(|axis| self.taps(axis, spatial)).collect();
        let channels_last =
            x.permute(std::iter::once(0).chain(2..rank).chain(std::iter::once(1)).collect());
        let mut lead = Shape::of(&vec![1; spatial + 1]);
        lead.dims_mut()[0] = x.size(0);
        let image = x.iota(DType::I64, lead, 0);
        let mut sum: Option<Expr<'e>> = None;
        let count: usize = axes.iter().map(Vec::len).product();
        for k in 0..count {
            let mut rest = k;
            let mut indices = vec![image];
            let (mut weight, mut inside): (Option<Expr<'e>>, Option<Expr<'e>>) = (None, None);
            for taps in &axes {
                let tap = &taps[rest % taps.len()];
                rest /= taps.len();
                indices.push(tap.index);
                weight = joined(weight, tap.weight, |a, b| a * b);
                inside = joined(inside, tap.inside, |a, b| a.logical_and(b));
            }
            let taken = channels_last.gather(&indices);
            let wide = |v: Expr<'e>| v.unsqueeze(spatial + 1);
            let taken = inside.map_or(taken, |m| wide(m).select(taken, taken.scalar(0.0)));
            let part = weight.map_or(taken, |w| taken * wide(w));
            sum = joined(sum, Some(part), |a, b| a + b);
        }
        let Some(sum) = sum else { return x };
        let last = spatial + 1;
        sum.permute([0, last].into_iter().chain(1..last).collect())
    }

    /// The neighbours of the places along an axis of the image.
    fn taps(&self, axis: usize, spatial: usize) -> Vec<Tap<'e>> {
        let grid = self.grid;
        let one = grid.narrow(spatial + 1, spatial - 1 - axis, Dim::ONE);
        let g = one.reshape(Shape::from_dims(&grid.shape().dims()[..=spatial]));
        let n = self.x.size(axis + 2);
        let count = self.x.count(n);
        let at = match self.align {
            true => (g + 1.0) * 0.5 * (count - 1.0),
            false => ((g + 1.0) * count - 1.0) * 0.5,
        };
        if self.mode == "bicubic" {
            let low = at.floor();
            let weights = cubic_weights(at - low);
            let tap = |(k, w): (i32, Expr<'e>)| self.tap(self.moved(low + f64::from(k), n), w, n);
            return (-1..).zip(weights).map(tap).collect();
        }
        let at = self.moved(at, n);
        if self.mode == "nearest" {
            let tap = self.tap(at.round(), at, n);
            return vec![Tap { weight: None, ..tap }];
        }
        let low = at.floor();
        let t = at - low;
        vec![self.tap(low, 1.0 - t, n), self.tap(low + 1.0, t, n)]
    }

    fn tap(&self, at: Expr<'e>, weight: Expr<'e>, n: Dim) -> Tap<'e> {
        let last = self.x.count(n) - 1.0;
        let inside = at.greater_equal(at.scalar(0.0)).logical_and(at.less_equal(last));
        let near = at.maximum(at.scalar(0.0)).minimum(last).cast(DType::I64);
        // A place that is no number lies anywhere in the image: its weight is none either.
        let ends = self.x.whole(n) - self.x.scalar(1);
        let index = near.maximum(at.scalar(0)).minimum(ends);
        let inside = (self.padding == "zeros").then_some(inside);
        Tap { index, weight: Some(weight), inside }
    }

    /// A place outside brought to where the image has one.
    fn moved(&self, at: Expr<'e>, n: Dim) -> Expr<'e> {
        let count = self.x.count(n);
        let last = count - 1.0;
        let at = match self.padding {
            "zeros" => return at,
            "reflection" if self.align && n.equals(1) => at * 0.0,
            "reflection" => {
                let (start, span) = match self.align {
                    true => (0.0, last),
                    false => (-0.5, count),
                };
                let away = (at - start).abs();
                let turns = (away / span).floor();
                let rest = away - turns * span;
                let is_odd = (turns - (turns * 0.5).floor() * 2.0).greater(at.scalar(0.5));
                is_odd.select(span - rest, rest) + start
            }
            _ => at,
        };
        // At the border and behind it nothing depends on the place.
        let zero = at.scalar(0.0);
        let at = at.less_equal(zero).select(zero, at);
        at.greater_equal(last).select(last, at)
    }
}

fn joined<'e>(
    a: Option<Expr<'e>>,
    b: Option<Expr<'e>>,
    f: impl Fn(Expr<'e>, Expr<'e>) -> Expr<'e>,
) -> Option<Expr<'e>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(f(a, b)),
        (a, b) => a.or(b),
    }
}
