//! Products of matrices and vectors: what lowers to a contraction.

use super::movement::diagonal_of;
use super::promoted;
use super::reduction::summed;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::{Contraction, Reduction};
use crate::ops::declare::{Whole, numbers};
use crate::ops::emit::{Expr, OrThrow, throw};
use crate::ops::op::Op;
use crate::shape::{Axes, Dim, Extent, Shape};
use crate::small::small;

composite! {
    /// Matrix product: what `@` does.
    ///
    /// Vectors become matrices of one row (on the left) or one column (on the right), and that axis
    /// disappears. Axes before the last two broadcast. Half floats are summed in float32; integers
    /// wrap.
    ///
    /// >>> import wengert as wg
    /// >>> wg.matmul(wg.tensor([[1, 2], [3, 4]]), wg.tensor([1, 1])).tolist()
    /// [3, 7]
    top method matmul(a: NumericTensor, b: NumericTensor) -> One inline {
        let pair = promoted(&[a, b], "matmul");
        product(pair[0], pair[1])
    }
    also(mm, bmm, mv)
    precision(Narrow)

    /// Sum of products of elements along an axis; the other axes broadcast.
    top method vecdot(a: NumericTensor, b: NumericTensor; axis: Int = -1) -> One inline {
        let pair = promoted(&[a, b], "vecdot");
        let (left, right) = (pair[0].axis(axis, "vecdot"), pair[1].axis(axis, "vecdot"));
        let (n, m) = (pair[0].size(left), pair[1].size(right));
        if !n.equals(m) {
            let facts = format!("{} and {}", a.shape(), b.shape());
            throw(error::size_mismatch("vecdot", "sizes along the axis", n, m, facts));
        }
        let both = pair[0] * pair[1];
        let axis = both.axis(axis, "vecdot");
        both.reduce(Reduction::Sum, &[axis])
    }

    /// Sum of products over axes of both operands.
    ///
    /// `axes`: an int joins the last axes of `a` with the first of `b`; a pair of axis lists joins
    /// them one by one. The result has the other axes of `a`, then those of `b`.
    ///
    /// >>> import wengert as wg
    /// >>> wg.tensordot(wg.ones((2, 3, 4)), wg.ones((4, 3, 5)), axes=((1, 2), (1, 0))).shape
    /// (2, 5)
    top function tensordot(a: NumericTensor, b: NumericTensor; axes: Pairs = 2) -> One inline {
        let pair = promoted(&[a, b], "tensordot");
        let (left, right) = paired_axes(pair[0], pair[1], axes);
        contracted(pair[0], pair[1], left, right, "tensordot")
    }
    precision(Narrow)

    /// Products of all pairs of elements of two vectors.
    top function outer(a: NumericTensor, b: NumericTensor) -> One inline {
        if let Some(x) = [a, b].iter().find(|x| x.rank() != 1) {
            throw(error::bad_rank("outer", "each operand", 1, x.shape()));
        }
        a.unsqueeze(1) * b
    }

    /// Sums of products over the last axes of both operands.
    top function inner(a: NumericTensor, b: NumericTensor) -> One inline {
        let pair = promoted(&[a, b], "inner");
        let last = |x: Expr<'_>| -> Axes { [x.axis(-1, "inner")].as_slice().into() };
        contracted(pair[0], pair[1], last(pair[0]), last(pair[1]), "inner")
    }
    precision(Narrow)

    /// Cross product of vectors of three elements along an axis; the other axes broadcast.
    top function cross(a: NumericTensor, b: NumericTensor; axis: Int = -1) -> One {
        let both = promoted(&[a, b], "cross");
        let shape = both[0].shape().broadcast(&both[1].shape(), "cross").or_throw();
        let axis = shape.axis(axis, "cross").or_throw();
        // Counted from the right, since broadcasting aligns there.
        let back = shape.rank() - axis;
        let is_vector = |x: &Expr<'_>| x.rank() >= back && x.size(x.rank() - back).equals(3);
        if !both.iter().all(is_vector) {
            let facts = format!("{} and {}", a.shape(), b.shape());
            throw(error::bad_shape("cross", "the axis must have size 3", facts));
        }
        let rotated = |x: Expr<'e>, first: usize| {
            let x = x.broadcast(shape.clone());
            let part = |i: usize| x.narrow(axis, i % 3, Dim::ONE);
            x.concat(&[part(first), part(first + 1), part(first + 2)], axis)
        };
        rotated(both[0], 1) * rotated(both[1], 2) - rotated(both[0], 2) * rotated(both[1], 1)
    }

    /// Sum of the elements on the `offset`-th diagonal of the first two axes.
    ///
    /// Integers and bools are summed in int64 (uint64 for unsigned).
    top method trace(x: Tensor; offset: Int = 0) -> One inline {
        let diagonal = diagonal_of(x.cast(summed(x.dtype())), offset, 0, 1, "trace");
        diagonal.reduce(Reduction::Sum, &[diagonal.rank() - 1])
    }
}

/// `a @ b` of operands of one dtype.
fn product<'e>(a: Expr<'e>, b: Expr<'e>) -> Expr<'e> {
    if let Some((name, x)) = [("a", a), ("b", b)].into_iter().find(|(_, x)| x.rank() == 0) {
        throw(error::bad_rank("matmul", name, "at least 1", x.shape()));
    }
    let lead = |x: Expr<'_>| x.rank().saturating_sub(2);
    let (inner_a, inner_b) = (a.rank() - 1, lead(b));
    if !a.size(inner_a).equals(b.size(inner_b)) {
        let (n, m, facts) =
            (a.size(inner_a), b.size(inner_b), format!("{} @ {}", a.shape(), b.shape()));
        throw(error::size_mismatch("matmul", "inner dimensions", n, m, facts));
    }
    if lead(a) > 0 && lead(b) > 0 {
        return batched(a, b);
    }
    let y = a.contract(b, along(inner_a, inner_b));
    // The free axes of `b` follow those of `a`: its leading ones belong before the row of a matrix.
    let rows = a.rank() - 1 - lead(a);
    if rows == 0 || lead(b) == 0 {
        return y;
    }
    y.permute((1..=lead(b)).chain([0]).chain(lead(b) + 1..y.rank()).collect())
}

/// A product without a batch, along an axis of each operand.
fn along(inner_a: usize, inner_b: usize) -> Contraction {
    let one = |axis: usize| small(std::iter::once(axis));
    Contraction {
        a_batch: Axes::new(),
        b_batch: Axes::new(),
        a_contract: one(inner_a),
        b_contract: one(inner_b),
    }
}

/// The op that [`matmul`] is for tensors of these types, where it is that one alone: for two
/// matrices of one dtype.
pub fn of_matrices(a: (DType, &Shape), b: (DType, &Shape)) -> Option<Op> {
    let fits = a.0 == b.0
        && a.0 != DType::Bool
        && (a.1.rank(), b.1.rank()) == (2, 2)
        && a.1[1].same(b.1[0]);
    fits.then(|| Op::Contract(Box::new(along(1, 0))))
}

fn batched<'e>(a: Expr<'e>, b: Expr<'e>) -> Expr<'e> {
    let split = |x: Expr<'_>| {
        let shape = x.shape();
        let at = shape.rank() - 2;
        (Shape::from_dims(&shape.dims()[..at]), Shape::from_dims(&shape.dims()[at..]))
    };
    let ((lead_a, matrix_a), (lead_b, matrix_b)) = (split(a), split(b));
    let batch = lead_a.broadcast(&lead_b, "matmul").or_throw();
    let wide = |x: Expr<'e>, matrix: &Shape| {
        x.broadcast(batch.dims().iter().chain(matrix.dims()).copied().collect())
    };
    let n = batch.rank();
    let spec = Contraction {
        a_batch: (0..n).collect(),
        b_batch: (0..n).collect(),
        a_contract: [n + 1].as_slice().into(),
        b_contract: [n].as_slice().into(),
    };
    wide(a, &matrix_a).contract(wide(b, &matrix_b), spec)
}

/// The axes of a `tensordot`, for each operand.
fn paired_axes(a: Expr<'_>, b: Expr<'_>, axes: Whole) -> (Axes, Axes) {
    let odd = |facts: String| -> ! {
        throw(error::bad_value(
            "tensordot",
            "axes must be an int or a pair of equally long lists",
            facts,
        ))
    };
    match axes {
        Whole::One(n) => {
            let n = super::count_of(n, 0, "axes", "tensordot");
            if n > a.rank().min(b.rank()) {
                odd(format!("got {n} for shapes {} and {}", a.shape(), b.shape()));
            }
            ((a.rank() - n..a.rank()).collect(), (0..n).collect())
        }
        Whole::Many(both) if both.len() % 2 == 0 => {
            let (left, right) = both.split_at(both.len() / 2);
            let of = |x: Expr<'_>, axes: &[Extent]| {
                x.shape().axes(Some(&numbers(axes)), "tensordot").or_throw()
            };
            (of(a, left), of(b, right))
        }
        Whole::Many(both) => odd(format!("got {} axes in all", both.len())),
    }
}

/// Sum of products over paired axes, without a batch.
fn contracted<'e>(a: Expr<'e>, b: Expr<'e>, left: Axes, right: Axes, op: &str) -> Expr<'e> {
    for (&i, &j) in left.iter().zip(&right) {
        if !a.size(i).equals(b.size(j)) {
            let facts = format!("axis {i} of {} and axis {j} of {}", a.shape(), b.shape());
            throw(error::size_mismatch(op, "sizes", a.size(i), b.size(j), facts));
        }
    }
    let spec = Contraction {
        a_batch: Axes::new(),
        b_batch: Axes::new(),
        a_contract: left,
        b_contract: right,
    };
    a.contract(b, spec)
}
