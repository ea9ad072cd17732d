//! Tensors with borders.

use smallvec::SmallVec;

use super::indexing::take;
use super::{one_number, size_of};
use crate::dtype::{DType, Scalar};
use crate::error;
use crate::ops::declare::{Extents, Whole};
use crate::ops::emit::{Expr, throw};
use crate::ops::op::{Op, SliceAxis};
use crate::ops::structural::whole;
use crate::shape::{Dim, Extent, Shape};

composite! {
    /// A tensor with a border.
    ///
    /// `widths`: an int for all sides, a pair (before, after) for all axes, or a pair for each
    /// axis; a negative one cuts off as many elements. `mode`: "constant" fills with `value`, which
    /// is cast to the tensor's dtype, as in `full_like`; "edge" ("replicate") repeats the outermost
    /// elements, "reflect" mirrors the tensor at them, "symmetric" at its edge, and "wrap"
    /// ("circular") begins again at the other end.
    ///
    /// >>> import wengert as wg
    /// >>> wg.pad(wg.tensor([1, 2]), (1, 2)).tolist()
    /// [0, 1, 2, 0, 0]
    /// >>> wg.pad(wg.tensor([1, 2, 3]), (1, 2), mode="reflect").tolist()
    /// [2, 1, 2, 3, 2, 1]
    top function pad(
        x: Tensor, widths: Pairs; value: Number = 0, mode: PadMode = "constant",
    ) -> One inline {
        let x = x.tensor();
        let value = one_number(value, "value", "pad");
        if let Some(number) = value.as_scalar().filter(|v: &Scalar| !v.fits(x.dtype())) {
            throw(error::overflow("pad", number, x.dtype()));
        }
        let widths = borders(x, widths);
        let x = cropped(x, &widths);
        match mode.as_str() {
            "constant" => padded(x, &widths, value),
            mode => {
                let border = Border::named(mode);
                (0..x.rank()).fold(x, |x, axis| extended(x, axis, &widths[axis], border))
            }
        }
    }
}

/// What stands around a tensor.
#[derive(Clone, Copy)]
enum Border {
    Edge,
    Reflect,
    Symmetric,
    Wrap,
}

impl Border {
    fn named(mode: &str) -> Border {
        match mode {
            "edge" | "replicate" => Border::Edge,
            "reflect" => Border::Reflect,
            "symmetric" => Border::Symmetric,
            "wrap" | "circular" => Border::Wrap,
            other => {
                let facts = format!(
                    "got {other:?}, wanted \"constant\", \"reflect\", \"symmetric\", \"edge\", \
                     \"replicate\", \"wrap\" or \"circular\""
                );
                throw(error::bad_value("pad", "unknown mode", facts))
            }
        }
    }
}

/// How much a side grows, or is cut off.
struct Width {
    more: Dim,
    less: Dim,
}

/// Widths before and after each axis.
fn borders(x: Expr<'_>, widths: Whole) -> SmallVec<[[Width; 2]; 4]> {
    let rank = x.rank();
    let flat: Extents = match widths {
        Whole::One(n) => SmallVec::from_elem(n, 2 * rank),
        Whole::Many(pair) if pair.len() == 2 => pair.repeat(rank).into(),
        Whole::Many(pairs) => pairs,
    };
    if flat.len() != 2 * rank {
        let facts = format!("got {} numbers for shape {}", flat.len(), x.shape());
        throw(error::bad_value("pad", "widths must be a pair for each axis", facts));
    }
    let width = |n: Extent| match n.known() {
        Some(n) if n < 0 => Width { more: Dim::new(0), less: Dim::new(n.unsigned_abs() as usize) },
        _ => Width { more: size_of(n, 0, "a width", "pad"), less: Dim::new(0) },
    };
    let pair = |pair: &[Extent]| [width(pair[0]), width(pair[1])];
    let pairs: SmallVec<[[Width; 2]; 4]> = flat.chunks_exact(2).map(pair).collect();
    for (axis, [low, high]) in pairs.iter().enumerate() {
        let cut = low.less + high.less;
        if !cut.is_at_most(x.size(axis)) {
            let facts = format!("{cut} elements from axis {axis} of {}", x.shape());
            throw(error::bad_shape("pad", "more is cut off than there is", facts));
        }
    }
    pairs
}

/// Without what is cut off.
fn cropped<'e>(x: Expr<'e>, widths: &[[Width; 2]]) -> Expr<'e> {
    let mut at = whole(&x.shape());
    for (axis, [low, high]) in at.iter_mut().zip(widths) {
        *axis = SliceAxis { start: low.less, step: 1, size: axis.size - low.less - high.less };
    }
    x.slice(at)
}

fn padded<'e>(x: Expr<'e>, widths: &[[Width; 2]], value: Expr<'e>) -> Expr<'e> {
    let shape = x.shape();
    let sizes = shape.dims().iter().copied().zip(widths);
    let wide = sizes.clone().map(|(n, [low, high])| n + low.more + high.more).collect();
    let at = sizes.map(|(size, [low, _])| SliceAxis { start: low.more, step: 1, size });
    let value = if value.is_number() { value } else { value.cast(x.dtype()) };
    x.emit_with(Op::Pad(wide, at.collect()), &[x.arg(), value.arg()])
}

/// An axis with a border of its own elements, by the position that each comes from.
fn extended<'e>(x: Expr<'e>, axis: usize, [low, high]: &[Width; 2], border: Border) -> Expr<'e> {
    let zero = Dim::new(0);
    let n = x.size(axis);
    if [low, high].iter().all(|side| side.more.same(zero)) {
        return x;
    }
    if n.equals(0) {
        let facts = format!("axis {axis} of {}", x.shape());
        throw(error::bad_shape("pad", "there is nothing to repeat", facts));
    }
    let size = n + low.more + high.more;
    let i = x.iota(DType::I64, Shape::from_dims(&[size]), 0);
    let i = i - i.whole(low.more);
    let end = n - Dim::ONE;
    let place = match border {
        Border::Edge => i.maximum(i.scalar(0)).minimum(i.whole(end)),
        Border::Wrap => i.remainder(i.whole(n)),
        Border::Reflect if n.equals(1) => i * i.scalar(0),
        Border::Reflect => mirrored(i, end * Dim::new(2), end * Dim::new(2)),
        Border::Symmetric => mirrored(i, n * Dim::new(2), n * Dim::new(2) - Dim::ONE),
    };
    take(x.cx(), x, place, Some(axis as i64))[0]
}

/// Positions on a way there and back again, of a period: the smaller of `i` and `turn - i`.
fn mirrored<'e>(i: Expr<'e>, period: Dim, turn: Dim) -> Expr<'e> {
    let i = i.remainder(i.whole(period));
    i.minimum(i.whole(turn) - i)
}
