//! Random numbers of further laws, and draws of elements and counts.
//!
//! As in [`random`](super::random), a key and a shape determine every element.

use super::creation::static_number;
use super::indexing::take;
use super::ordering::searchsorted;
use super::random::{self, bits_of, floating, full_of, unit};
use super::{shape_of, within};
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::{Cumulation, Reduction};
use crate::ops::emit::{Expr, throw};
use crate::ops::op::{Op, Type};
use crate::shape::{Dim, Extent, Shape};

composite! {
    /// Numbers of the exponential law: `-scale log(1 - u)`, whose mean is `scale`.
    ///
    /// `scale` broadcasts to `shape`. `dtype`: floating, float32 where None. `key`: None draws one
    /// from the global generator.
    random function exponential(
        shape: Shape = (); scale: Number = 1.0, dtype: MaybeDtype = None, key: Key = None,
        device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline {
        let law = Law::new("exponential", &shape, dtype, &[scale]);
        let u = unit(key, law.full, law.shape, "exponential");
        (-(-u).log1p() * scale.cast(law.full)).cast(law.dtype)
    }

    /// Numbers of Gumbel's law: `loc - scale log(-log u)`.
    ///
    /// `loc` and `scale` broadcast to `shape`. `dtype`: floating, float32 where None. `key`: None
    /// draws one from the global generator.
    random function gumbel(
        shape: Shape = (); loc: Number = 0.0, scale: Number = 1.0, dtype: MaybeDtype = None,
        key: Key = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline {
        let law = Law::new("gumbel", &shape, dtype, &[loc, scale]);
        let y = random::gumbel(key, law.full, law.shape);
        (y * scale.cast(law.full) + loc.cast(law.full)).cast(law.dtype)
    }

    /// Normal numbers of the shape and dtype of `x`, as `normal` makes them.
    ///
    /// `dtype`: another floating one. `key`: None draws one from the global generator.
    random function normal_like(
        x: FloatTensor; mean: Number = 0.0, std: Number = 1.0, dtype: MaybeDtype = None, key: Key = None,
        requires_grad: Bool = False,
    ) -> One inline {
        let (shape, dtype) = (sizes_of(x), dtype.unwrap_or(x.dtype()));
        random::normal(x.cx(), shape, mean, std, Some(dtype), key, (), false)[0]
    }

    /// Uniform numbers of the shape and dtype of `x`, as `uniform` makes them.
    ///
    /// `dtype`: another floating one. `key`: None draws one from the global generator.
    random function uniform_like(
        x: FloatTensor; low: Number = 0.0, high: Number = 1.0, dtype: MaybeDtype = None, key: Key = None,
        requires_grad: Bool = False,
    ) -> One inline {
        let (shape, dtype) = (sizes_of(x), dtype.unwrap_or(x.dtype()));
        random::uniform(x.cx(), shape, low, high, Some(dtype), key, (), false)[0]
    }

    /// How often each class came in `n` draws with probabilities `p`: (…, K), int64.
    ///
    /// `p`: (…, K), whose first axes broadcast to `shape`; it need not add up to 1. The result is
    /// `shape` and K. `key`: None draws one from the global generator.
    ///
    /// >>> import wengert as wg
    /// >>> wg.random.multinomial((5,), n=7, p=wg.tensor([0.2, 0.8])).sum(axis=1).tolist()
    /// [7, 7, 7, 7, 7]
    random function multinomial(shape: Shape = (); n: Size, p: FloatTensor, key: Key = None) -> One {
        let op = "multinomial";
        if p.rank() == 0 {
            throw(error::bad_rank(op, "p", "1 or more", p.shape()));
        }
        let (last, n) = (p.rank() - 1, super::size_of(n, 0, "n", op));
        let (mut sizes, classes) = (shape_of(&shape, op), p.size(last));
        if classes.equals(0) {
            throw(error::bad_shape(op, "there is no class to draw", format!("p is {}", p.shape())));
        }
        within(op, &p.shape().reduce(&[last], false), &sizes);
        sizes.dims_mut().push(n);
        let axis = sizes.rank() - 1;
        let full = full_of(p.dtype());
        let ends = p.cast(full).cumulate(Cumulation::Sum, last, false);
        let u = unit(key, full, sizes, op).unsqueeze(axis + 1);
        let total = ends.narrow(last, classes - Dim::ONE, Dim::ONE);
        // How many draws lie below the end of each class; all below the last.
        let below = (u * total.unsqueeze(last)).less(ends.unsqueeze(last)).cast(DType::I64);
        let below = below.reduce(Reduction::Sum, &[axis]);
        let place = p.iota(DType::I64, Shape::from_dims(&[classes]), 0);
        let is_last = place.equal(place.whole(classes - Dim::ONE));
        let below = is_last.select(below.whole(n), below);
        let mut first = below.shape();
        first.dims_mut()[axis] = Dim::ONE;
        let first = below.scalar(0).full(DType::I64, first);
        below - first.concat(&[first, below.narrow(axis, 0, classes - Dim::ONE)], axis)
    }

    /// Elements of `a` along its first axis, drawn at random; of a number, integers below it.
    ///
    /// The result is `shape` and the other axes of `a`. `replace`: whether an element can be drawn
    /// again. `p`: how probable each is, (n,); it need not add up to 1. `key`: None draws one from
    /// the global generator. Raises ValueError for more draws than elements without `replace`.
    random function choice(
        a: Tensor, shape: Shape = (); replace: Bool = True, p: MaybeFloatTensor = None,
        key: Key = None,
    ) -> One {
        let op = "choice";
        let sizes = shape_of(&shape, op);
        let n = match a.rank() {
            0 => super::size_of((static_number(a, op).as_f64() as i64).into(), 0, "a", op),
            _ => a.size(0),
        };
        let count = sizes.elements();
        if let Some(p) = p.filter(|p| !p.shape().equals(&Shape::from_dims(&[n]))) {
            let facts = format!("got {}, wanted ({n},)", p.shape());
            throw(error::bad_shape(op, "p must have one number for each element", facts));
        }
        if n.equals(0) && !count.equals(0) {
            throw(error::bad_value(op, "there is nothing to draw", format!("for shape {sizes}")));
        }
        let flat = Shape::from_dims(&[count]);
        let place = match (replace, p) {
            (true, None) => {
                let bits = bits_of(op, key, Type::new(DType::U64, flat));
                bits.cast(DType::I64).remainder(bits.whole(n))
            }
            (true, Some(p)) => {
                let full = full_of(p.dtype());
                let ends = p.cast(full).cumulate(Cumulation::Sum, 0, false);
                let total = ends.narrow(0, n - Dim::ONE, Dim::ONE);
                let u = unit(key, full, flat, op) * total;
                let place = searchsorted(p.cx(), ends, u, "right".into(), None)[0];
                place.minimum(place.whole(n - Dim::ONE))
            }
            (false, p) => {
                if !count.is_at_most(n) {
                    let facts = format!("got {count} of {n}; pass replace=True");
                    throw(error::bad_value(op, "more draws than elements", facts));
                }
                match p {
                    None => {
                        let bits = bits_of(op, key, Type::new(DType::U64, Shape::from_dims(&[n])));
                        bits.emit(Op::ArgSort { axis: 0, descending: false }).narrow(0, 0, count)
                    }
                    Some(p) => {
                        let full = full_of(p.dtype());
                        let noise = random::gumbel(key, full, Shape::from_dims(&[n]));
                        (p.cast(full).log() + noise)
                            .emit(Op::ArgSort { axis: 0, descending: true })
                            .narrow(0, 0, count)
                    }
                }
            }
        };
        let place = place.reshape(sizes);
        if a.rank() == 0 { place } else { take(a.cx(), a, place, Some(0))[0] }
    }

    /// The slices of `x` along `axis` in random order; `x` stays as it is.
    ///
    /// `key`: None draws one from the global generator.
    random function shuffle(x: Tensor, axis: Int = 0; key: Key = None) -> One inline {
        let place = x.axis(axis, "shuffle");
        let line = Shape::from_dims(&[x.size(place)]);
        let bits = bits_of("shuffle", key, Type::new(DType::U64, line));
        take(x.cx(), x, bits.emit(Op::ArgSort { axis: 0, descending: false }), Some(axis))[0]
    }
}

/// What a law's numbers are, and what they are calculated in.
pub(super) struct Law {
    pub dtype: DType,
    pub full: DType,
    pub shape: Shape,
}

impl Law {
    pub fn new(op: &str, sizes: &[Extent], dtype: Option<DType>, parameters: &[Expr<'_>]) -> Law {
        let dtype = floating(op, dtype);
        let full = full_of(dtype);
        let shape = shape_of(sizes, op);
        parameters.iter().for_each(|x| within(op, &x.shape(), &shape));
        Law { dtype, full, shape }
    }
}

fn sizes_of(x: Expr<'_>) -> smallvec::SmallVec<[Extent; 6]> {
    x.shape().dims().iter().map(|&n| Extent::Size(n)).collect()
}
