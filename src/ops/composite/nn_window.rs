//! Images rearranged: windows laid side by side and put together again, pixels from channels.

use super::nn_conv::per_axis;
use super::nn_pool::Pool;
use super::size_of;
use crate::error;
use crate::ops::declare::Extents;
use crate::ops::emit::{Expr, throw};
use crate::shape::{Dim, Shape};

composite! {
    /// The windows of images, side by side: (N, C, H, W) to (N, C · window, count).
    ///
    /// Geometry is one int or a pair; `padding` adds zeros on both sides. Each column has a window,
    /// channel by channel in C order; windows come in C order too. Also without N. Raises ShapeError
    /// for other ranks and where the window does not fit.
    nn function unfold(
        x: FloatTensor, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1,
    ) -> One {
        let (x, batched) = with_batch("unfold", x.tensor(), 4);
        let pool = Pool::any("unfold", 2, &kernel_size, Some(&stride), &padding, &dilation);
        let (windows, _) = pool.windows(x, 0.0);
        // (I, J, N, C, H', W') to (N, C, I, J, H', W')
        let all = windows.permute([2, 3, 0, 1, 4, 5].into_iter().collect());
        let size = |axes: std::ops::Range<usize>| axes.fold(Dim::ONE, |n, i| n * all.size(i));
        let columns = all.reshape(Shape::from_dims(&[all.size(0), size(1..4), size(4..6)]));
        without_batch(columns, batched)
    }

    /// The sum of windows that lie over images.
    ///
    /// The reverse of `unfold`, but that elements of several windows add up. `x`
    /// (N, C · window, count) to (N, C, *output_size); geometry is that of `unfold`. Also without N.
    /// Raises ShapeError where the count is not that of `unfold`.
    nn function fold(
        x: FloatTensor, output_size: Sizes, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0,
        stride: Ints = 1,
    ) -> One {
        let (x, batched) = with_batch("fold", x.tensor(), 3);
        let pool = Pool::any("fold", 2, &kernel_size, Some(&stride), &padding, &dilation);
        without_batch(folded(&pool, x, &output_size), batched)
    }

    /// Pixels from channels: (…, C r², H, W) to (…, C, H r, W r), r being `upscale_factor`.
    ///
    /// Raises ShapeError where the channels do not divide. Source: Shi et al.: Real-time single image
    /// and video super-resolution using an efficient sub-pixel convolutional neural network, 2016.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nn.pixel_shuffle(wg.arange(4).reshape(1, 4, 1, 1), 2).tolist()
    /// [[[[0, 1], [2, 3]]]]
    nn function pixel_shuffle(x: Tensor, upscale_factor: Int) -> One inline {
        let (op, r) = ("pixel_shuffle", Dim::new(positive("pixel_shuffle", upscale_factor)));
        let (x, lead) = (x.tensor(), leading(op, x, 3));
        let [c, h, w] = [0, 1, 2].map(|i| x.size(lead + i));
        let deep = divided(op, x, c, r * r);
        let split = laid(x, lead, &[deep, r, r, h, w]);
        let order = (0..lead).chain([0, 3, 1, 4, 2].map(|i| lead + i)).collect();
        laid(split.permute(order), lead, &[deep, h * r, w * r])
    }

    /// Channels from pixels: (…, C, H r, W r) to (…, C r², H, W), r being `downscale_factor`.
    ///
    /// The reverse of `pixel_shuffle`. Raises ShapeError where the sizes do not divide.
    nn function pixel_unshuffle(x: Tensor, downscale_factor: Int) -> One inline {
        let (op, r) = ("pixel_unshuffle", Dim::new(positive("pixel_unshuffle", downscale_factor)));
        let (x, lead) = (x.tensor(), leading(op, x, 3));
        let [c, h, w] = [0, 1, 2].map(|i| x.size(lead + i));
        let (h, w) = (divided(op, x, h, r), divided(op, x, w, r));
        let split = laid(x, lead, &[c, h, r, w, r]);
        let order = (0..lead).chain([0, 2, 4, 1, 3].map(|i| lead + i)).collect();
        laid(split.permute(order), lead, &[c * r * r, h, w])
    }

    /// Channels (axis 1) dealt out: group by group to one after another of each group.
    ///
    /// `x` (N, C, …). Raises ShapeError where the channels do not divide into `groups`. Source: Zhang
    /// et al.: ShuffleNet, 2017.
    nn function channel_shuffle(x: Tensor, groups: Int) -> One inline {
        let (op, x) = ("channel_shuffle", x.tensor());
        if x.rank() < 2 {
            throw(error::bad_rank(op, "x", "2 or more", x.shape()));
        }
        let groups = Dim::new(positive(op, groups));
        let deep = divided(op, x, x.size(1), groups);
        let own = x.shape();
        let rest = || own.dims()[2..].iter().copied();
        let shape = |a, b| [x.size(0), a, b].into_iter().chain(rest()).collect();
        let split: Shape = shape(groups, deep);
        let order = [0, 2, 1].into_iter().chain(3..split.rank()).collect();
        x.reshape(split).permute(order).reshape(x.shape())
    }
}

fn positive(op: &str, n: i64) -> usize {
    per_axis(op, "the factor", &[n], 1, 1)[0]
}

/// How many axes stand before the last `own`.
fn leading(op: &str, x: Expr<'_>, own: usize) -> usize {
    match x.rank().checked_sub(own) {
        Some(lead) => lead,
        None => throw(error::bad_rank(op, "x", format!("{own} or more"), x.shape())),
    }
}

fn divided(op: &str, x: Expr<'_>, n: Dim, by: Dim) -> Dim {
    if !(n % by).equals(0) {
        let facts = format!("{n} of {} by {by}", x.shape());
        throw(error::bad_shape(op, "a size does not divide", facts));
    }
    n / by
}

/// `x` with the axes behind the leading ones under other sizes.
fn laid<'e>(x: Expr<'e>, lead: usize, sizes: &[Dim]) -> Expr<'e> {
    let shape = x.shape();
    x.reshape(shape.dims()[..lead].iter().chain(sizes).copied().collect())
}

/// `x` of one rank, which may lack the batch; and whether it had one.
pub(super) fn with_batch<'e>(op: &str, x: Expr<'e>, rank: usize) -> (Expr<'e>, bool) {
    match x.rank() {
        n if n == rank => (x, true),
        n if n + 1 == rank => (x.unsqueeze(0), false),
        _ => throw(error::bad_rank(op, "x", format!("{} or {rank}", rank - 1), x.shape())),
    }
}

/// The result without the batch that was added.
pub(super) fn without_batch(y: Expr<'_>, batched: bool) -> Expr<'_> {
    if batched { y } else { y.reshape(Shape::from_dims(&y.shape().dims()[1..])) }
}

fn folded<'e>(pool: &Pool, x: Expr<'e>, size: &Extents) -> Expr<'e> {
    let op = "fold";
    let sizes = match size.len() {
        1 => [size[0], size[0]],
        2 => [size[0], size[1]],
        n => throw(error::bad_value(op, "output_size must be one int or 2", format!("got {n}"))),
    };
    let sizes = sizes.map(|n| size_of(n, 1, "output_size", op));
    let window = pool.area();
    if !(x.size(1) % window.into()).equals(0) {
        let facts = format!("{} and windows of {window}", x.shape());
        throw(error::bad_shape(op, "channels do not divide into windows", facts));
    }
    let channels = x.size(1) / window.into();
    let shape = Shape::from_dims(&[x.size(0), channels, sizes[0], sizes[1]]);
    let counts: Vec<Dim> = (0..2).map(|i| pool.count(i, sizes[i])).collect();
    if !x.size(2).equals(counts[0] * counts[1]) {
        let facts = format!("{} for {} by {} windows", x.shape(), counts[0], counts[1]);
        throw(error::bad_shape(op, "the count of windows differs", facts));
    }
    let [i, j] = [0, 1].map(|k| Dim::new(pool.size[k]));
    let all = [x.size(0), channels, i, j, counts[0], counts[1]];
    let windows = x.reshape(Shape::from_dims(&all));
    shape.check(op).unwrap_or_else(|error| throw(error));
    pool.joined(windows.permute([2, 3, 0, 1, 4, 5].into_iter().collect()), shape)
}
