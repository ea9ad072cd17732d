//! What kernels take for themselves while they run, beside operands and result: known beforehand, so
//! that plans know their peak.

use super::{contract, conv, gemm, reduce, sort};
use crate::dtype::DType;
use crate::layout::Layout;
use crate::memory::block_bytes;
use crate::ops::op::Op;
use crate::shape::Shape;

/// The most bytes that [`execute_into`](super::execute_into) takes for operands of these dtypes and
/// layouts and a result of this shape, as the counters of memory count them. (Sorting floats takes
/// more if there are NaNs or negative zeros among them; that is counted.)
pub fn scratch(op: &Op, args: &[(DType, &Layout)], result: &Shape) -> usize {
    let dense = |dtype: DType, x: &Layout| block_bytes(x.shape().count() * dtype.size());
    let copied = |dtype: DType, x: &Layout| if x.is_contiguous() { 0 } else { dense(dtype, x) };
    match (op, args) {
        (Op::Contract(spec), &[(dtype, a), (_, b)]) => {
            contract::scratch(dtype, a, b, spec, result.count())
        }
        (Op::Conv(role, spec), &[(dtype, a), (_, b)]) => {
            conv::scratch(*role, dtype, a, b, spec, result.count())
        }
        (Op::Fold(..), &[(dtype, g)]) => {
            let to = gemm::accumulator(dtype);
            contract::widened(dtype, g, to).1 + contract::wide_bytes(dtype, to, result.count())
        }
        (Op::Reduce(_, axes), &[(dtype, x)]) => reduce::scratch(dtype, x, axes),
        (Op::ArgReduce(_, axis), &[(dtype, x)]) => reduce::arg_scratch(dtype, x, *axis),
        (Op::Cumulate { .. } | Op::RandomBits(_), &[(dtype, x)]) => copied(dtype, x),
        (Op::Sort { axis, .. }, &[(dtype, x)]) => {
            let positions = if dtype.is_float() { dense(DType::I64, x) } else { 0 };
            positions + sort::scratch(dtype, x, *axis, (dtype, result))
        }
        (Op::ArgSort { axis, .. } | Op::TopK { axis, .. }, &[(dtype, x)]) => {
            sort::scratch(dtype, x, *axis, (DType::I64, result))
        }
        _ => 0,
    }
}
