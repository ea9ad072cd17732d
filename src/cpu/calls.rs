//! Kernels of composites on the CPU, chosen by the name in the declaration.
//!
//! A kernel computes what the formula of a composite does, within the error that it states. It is
//! chosen by the composite alone, so that every mode runs it.

use smallvec::{SmallVec, smallvec};

use super::attention::{self, Saved};
use super::copy::fill;
use super::norm::{self, Moments};
use super::pool::{self, Geometry};
use super::{Operand, cast, recurrent, rows, softmax};
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::layout::Layout;
use crate::ops::attributes::PerAxis;
use crate::ops::composite::attention::with_common_lead;
use crate::ops::declare::{Attr, Composite, Family, Kernel, Pass, ints};
use crate::ops::op::{Call, Op, OperandType};
use crate::shape::{Dim, Shape};

/// Whether calls of a composite run by a kernel in every mode.
pub fn has_kernel(composite: &'static Composite) -> bool {
    composite.kernel.is_some_and(|kernel| match kernel.family().0 {
        Family::Attention | Family::Recurrent(_) => true,
        // Plans rather fuse the formula, which has the same bits.
        Family::LayerNorm | Family::Softmax { .. } => false,
        // With the bits of the formula, which writes a padded copy.
        Family::MaxPool(_) => true,
    })
}

/// Computes the results of a call by its kernel; `None` where the kernel, which has the bits of the
/// formula, does not take these operands.
pub fn run(
    kernel: Kernel,
    call: &Call,
    args: &[Operand<'_>],
) -> Result<Option<SmallVec<[Array; 2]>>> {
    for arg in args {
        if let Operand::Array(x) = arg {
            x.look();
        }
    }
    match kernel.family() {
        (Family::Attention | Family::Recurrent(_), _) => fresh(call, args).map(Some),
        (Family::LayerNorm, Pass::Forward) => layer_norm(call, args),
        (Family::LayerNorm, Pass::Backward) => layer_norm_gradients(call, args),
        (Family::Softmax { is_log }, _) => softmax(call, args, is_log),
        (Family::MaxPool(rank), _) => max_pool(rank, call, args),
    }
}

fn softmax(
    call: &Call,
    args: &[Operand<'_>],
    is_log: bool,
) -> Result<Option<SmallVec<[Array; 2]>>> {
    let (Some(Some(x)), Some(Attr::Int(axis))) = (tensor(call, args, "x"), call.attribute("axis"))
    else {
        return Ok(None);
    };
    let Some(last) = x.shape().rank().checked_sub(1) else { return Ok(None) };
    if x.shape().axis(*axis, call.composite.name)? != last {
        return Ok(None);
    }
    let n = x.shape()[last].value();
    let rows = x.count() / n.max(1);
    let is_wide = rows < ROWS && x.count() > LARGE;
    if is_wide || !softmax::takes(x.dtype, rows, n) {
        return Ok(None);
    }
    let y = Array::uninit(x.dtype, x.shape().clone())?;
    // SAFETY: fresh, of the type of `x`.
    unsafe { softmax::forward_into(x, is_log, &y)? };
    Ok(Some(smallvec![y]))
}

fn max_pool(
    rank: usize,
    call: &Call,
    args: &[Operand<'_>],
) -> Result<Option<SmallVec<[Array; 2]>>> {
    let (Some(Some(x)), Some(geometry)) = (tensor(call, args, "x"), windows(rank, call)) else {
        return Ok(None);
    };
    let Some(shape) = geometry.shape(x.shape()).filter(|_| x.dtype.is_float()) else {
        return Ok(None);
    };
    let y = Array::uninit(x.dtype, shape)?;
    // SAFETY: fresh, of the result's type.
    unsafe { pool::max_into(x, &geometry, &y)? };
    Ok(Some(smallvec![y]))
}

/// How the windows of a pooling call lie over the last `rank` axes; `None` where they cannot.
fn windows(rank: usize, call: &Call) -> Option<Geometry> {
    let numbers = |name| call.attribute(name).and_then(ints);
    let each = |given: &[i64], least: usize| -> Option<PerAxis> {
        let one = |i: usize| usize::try_from(*given.get(i).or(given.last())?).ok();
        let all: Option<PerAxis> = (0..rank).map(one).collect();
        let fits = given.len() == 1 || given.len() == rank;
        all.filter(|all| fits && all.iter().all(|&n| n >= least))
    };
    let size = numbers("kernel_size")?;
    let stride = numbers("stride").unwrap_or_else(|| size.clone());
    let geometry = Geometry {
        size: each(&size, 1)?,
        stride: each(&stride, 1)?,
        padding: each(&numbers("padding")?, 0)?,
        dilation: each(&numbers("dilation")?, 1)?,
        ceil: matches!(call.attribute("ceil_mode"), Some(Attr::Bool(true))),
    };
    geometry.is_padded_by_half_at_most().then_some(geometry)
}

fn layer_norm(call: &Call, args: &[Operand<'_>]) -> Result<Option<SmallVec<[Array; 2]>>> {
    let (Some(norm), Some(Attr::Float(eps))) =
        (Norm::new(call, args, false)?, call.attribute("eps"))
    else {
        return Ok(None);
    };
    let Some(bias) = tensor(call, args, "bias").filter(|bias| norm.takes(*bias)) else {
        return Ok(None);
    };
    if norm::result(norm.x.dtype, [norm.weight, bias].map(|p| p.map(|p| p.dtype))).is_none() {
        return Ok(None);
    }
    let parameters = [norm.weight, bias];
    let (y, moments) = norm::forward(norm.x, norm.trailing, parameters, *eps, true)?;
    Ok(moments.map(|moments| smallvec![y, moments.mean, moments.scale]))
}

fn layer_norm_gradients(call: &Call, args: &[Operand<'_>]) -> Result<Option<SmallVec<[Array; 2]>>> {
    let named = |name| tensor(call, args, name).flatten();
    let has = |name| call.operand(name).is_some();
    let (Some(norm), Some(g), Some(mean), Some(scale)) =
        (Norm::new(call, args, true)?, named("g"), named("middle"), named("deviation"))
    else {
        return Ok(None);
    };
    // Cotangents of what was saved come in derivatives of derivatives alone.
    if has("g_middle")
        || has("g_deviation")
        || norm::result(norm.x.dtype, [Some(g.dtype), None]).is_none()
    {
        return Ok(None);
    }
    let moments = Moments { mean: mean.clone(), scale: scale.clone() };
    let wanted = [true, norm.weight.is_some(), call.attribute("shifts") == Some(&Attr::Bool(true))];
    let found =
        norm::backward(g, norm.x, norm.trailing, norm.weight, mean.dtype, &moments, wanted)?;
    let none = || fill(Scalar::Float(0.0), mean.dtype, &Shape::scalar());
    found.into_iter().map(|x| x.map_or_else(none, Ok)).collect::<Result<_>>().map(Some)
}

/// The tensor that a parameter is, `Some(None)` where the call has none; `None` where it is a
/// number.
fn tensor<'a>(call: &Call, args: &[Operand<'a>], name: &str) -> Option<Option<&'a Array>> {
    match call.operand(name).map(|i| args[i]) {
        Some(Operand::Array(x)) => Some(Some(x)),
        Some(Operand::Scalar(_)) => None,
        None => Some(None),
    }
}

/// A normalisation that the kernel takes: over the last axes, of rows enough for all threads.
struct Norm<'a> {
    x: &'a Array,
    trailing: usize,
    weight: Option<&'a Array>,
}

impl<'a> Norm<'a> {
    fn new(call: &Call, args: &[Operand<'a>], is_gradient: bool) -> Result<Option<Norm<'a>>> {
        let named = |name| tensor(call, args, name);
        let (Some(Some(x)), Some(weight)) = (named("x"), named("weight")) else { return Ok(None) };
        let Some(given) = call.attribute("axis").and_then(ints) else { return Ok(None) };
        let (rank, mut axes) = (x.shape().rank(), SmallVec::<[usize; 6]>::new());
        for axis in given {
            axes.push(x.shape().axis(axis, call.composite.name)?);
        }
        axes.sort_unstable();
        let trailing = axes.len();
        let Some(first) = rank.checked_sub(trailing) else { return Ok(None) };
        if trailing == 0 || !axes.iter().copied().eq(first..rank) {
            return Ok(None);
        }
        let norm = Norm { x, trailing, weight };
        let row = norm.own().iter().map(|n| n.value()).product::<usize>();
        let count = x.shape().count();
        let rows = count / row.max(1);
        // Few rows leave threads without work.
        let begun = if is_gradient { rows / GRADIENT } else { rows };
        let by_formula = rows < ROWS && count > LARGE || rows::pays(begun, row);
        Ok((count > 0 && !by_formula && norm.takes(weight)).then_some(norm))
    }

    /// The sizes of a row.
    fn own(&self) -> &[Dim] {
        let dims = self.x.shape().dims();
        &dims[dims.len() - self.trailing..]
    }

    /// Whether a parameter, if there is one, has the sizes of a row.
    fn takes(&self, parameter: Option<&Array>) -> bool {
        parameter.is_none_or(|p| p.shape().dims() == self.own())
    }
}

/// Rows below which a large array is better normalised by its formula.
const ROWS: usize = 16;
const LARGE: usize = 1 << 16;
/// How much longer the formula of gradients takes to begin than that of what they are of.
const GRADIENT: usize = 3;

/// Computes the results of a call into memory of their own.
fn fresh(call: &Call, args: &[Operand<'_>]) -> Result<SmallVec<[Array; 2]>> {
    let mut types: SmallVec<[OperandType<'_>; 8]> = SmallVec::new();
    for arg in args {
        types.push(match *arg {
            Operand::Array(x) => OperandType::Tensor(x.dtype, x.shape()),
            Operand::Scalar(value) => OperandType::Scalar(value.into()),
        });
    }
    // The types are those of the formula, which refuses what does not fit.
    let types = Op::Call(call.clone()).infer_all(&types)?;
    let fresh = types.into_iter().map(|ty| Array::uninit(ty.dtype, ty.shape));
    let to: SmallVec<[Array; 2]> = fresh.collect::<Result<_>>()?;
    // SAFETY: fresh, of the results' types.
    unsafe { run_into(call, args, &to)? };
    Ok(to)
}

/// Computes the results of a call into memory that is there.
///
/// # Safety
/// `to` are the results' types, in C order; nobody else reads or writes them, and they overlap no
/// operand.
pub unsafe fn run_into(call: &Call, args: &[Operand<'_>], to: &[Array]) -> Result<()> {
    // Numbers stand for tensors of their class's default dtype, as they do in the formula.
    let mut arrays: SmallVec<[Array; 8]> = SmallVec::new();
    for arg in args {
        arrays.push(match *arg {
            Operand::Array(x) => x.clone(),
            Operand::Scalar(value) => fill(value, value.default_dtype(), &Shape::scalar())?,
        });
    }
    let args: SmallVec<[&Array; 8]> = arrays.iter().collect();
    let args = args.as_slice();
    let wrong =
        || error::internal(format!("{} has no kernel for such results", call.composite.name));
    let kernel = call.composite.kernel.ok_or_else(wrong)?;
    match (kernel.family(), to) {
        ((Family::Recurrent(cell), pass), _) => {
            let layer = (recurrent::call::form(cell, call), pass);
            // SAFETY: as the caller's.
            unsafe { recurrent::call::run_into(layer, call, args, to) }
        }
        ((Family::MaxPool(rank), _), [y]) => {
            let geometry = windows(rank, call);
            let geometry = geometry.ok_or_else(|| error::internal("windows do not fit"))?;
            // SAFETY: as the caller's.
            unsafe { pool::max_into(operand(call, args, "x")?, &geometry, y) }
        }
        ((Family::Attention, Pass::Forward), [y, logsums]) => {
            let heads = Heads::new(call, args)?;
            let ([q, k, v], to) = (heads.operands.each_ref(), [y, logsums]);
            // SAFETY: as the caller's.
            unsafe { attention::forward_into(q, k, v, heads.mask, heads.causal, heads.scale, to) }
        }
        ((Family::Attention, Pass::Backward), [q, k, v]) => {
            let heads = Heads::new(call, args)?;
            let operand = |name| operand(call, args, name);
            // In the dtype of the operands, but for log-sums, which have that of the accumulator.
            let like = |name| cast(operand(name)?, heads.operands[0].dtype);
            let (g, y, logsums) = (like("g")?, like("y")?, operand("logsums")?);
            let g_logsums = call.operand("g_logsums").map(|i| args[i]);
            let saved = Saved { y: &y, logsums, g: &g, g_logsums };
            let to = [Some(q), Some(k), Some(v), None];
            let (operands, mask) = (heads.operands.each_ref(), heads.mask);
            // SAFETY: as the caller's.
            unsafe {
                attention::backward_into(operands, mask, heads.causal, heads.scale, saved, to)
            }
        }
        (
            (
                Family::Attention | Family::LayerNorm | Family::Softmax { .. } | Family::MaxPool(_),
                _,
            ),
            _,
        ) => Err(wrong()),
    }
}

fn operand<'a>(call: &Call, args: &[&'a Array], name: &str) -> Result<&'a Array> {
    let i = call.operand(name).ok_or_else(|| error::internal("an operand is missing"))?;
    Ok(args[i])
}

/// The most bytes that a kernel takes for itself, as the counters of memory count them.
pub fn scratch(call: &Call, args: &[(DType, &Layout)]) -> usize {
    let Some(kernel) = call.composite.kernel else { return 0 };
    let (family, pass) = kernel.family();
    match family {
        Family::Recurrent(cell) => {
            recurrent::call::scratch((recurrent::call::form(cell, call), pass), call, args)
        }
        Family::Attention => attention_scratch(pass, call, args),
        Family::LayerNorm | Family::Softmax { .. } | Family::MaxPool(_) => 0,
    }
}

fn attention_scratch(pass: Pass, call: &Call, args: &[(DType, &Layout)]) -> usize {
    let operand = |name: &str| call.operand(name).map(|i| args[i]);
    let (Some((dtype, q)), Some((_, k)), Some((_, v))) = (operand("q"), operand("k"), operand("v"))
    else {
        return 0;
    };
    let shapes = [q.shape(), k.shape(), v.shape()];
    let Ok([q, _, v]) = with_common_lead(call.composite.name, shapes) else { return 0 };
    let causal = is_causal(call);
    match pass {
        Pass::Forward => attention::forward_scratch(dtype, &q, &v, causal),
        Pass::Backward => attention::backward_scratch(dtype, &q, &v, causal),
    }
}

fn is_causal(call: &Call) -> bool {
    matches!(call.attribute("is_causal"), Some(Attr::Bool(true)))
}

/// Queries, keys and values in one dtype with the same leading axes.
struct Heads<'a> {
    operands: [Array; 3],
    mask: Option<&'a Array>,
    causal: bool,
    scale: f64,
}

impl<'a> Heads<'a> {
    fn new(call: &Call, args: &[&'a Array]) -> Result<Heads<'a>> {
        let named = |name| operand(call, args, name);
        let (op, [q, k, v]) = (call.composite.name, [named("q")?, named("k")?, named("v")?]);
        let [q_shape, k_shape, v_shape] = with_common_lead(op, [q, k, v].map(Array::shape))?;
        let dtype = [k, v].iter().try_fold(q.dtype, |dtype, x| dtype.promote(x.dtype));
        let Some(dtype) = dtype else { return Err(error::internal("dtypes without a common one")) };
        let spread = |x: &Array, shape| -> Result<Array> {
            let x = cast(x, dtype)?;
            let layout = Op::Broadcast(shape).view(dtype, &x.layout);
            layout.map(|layout| x.view(layout)).ok_or_else(|| error::internal("a view is one"))
        };
        let operands = [spread(q, q_shape)?, spread(k, k_shape)?, spread(v, v_shape)?];
        let mask = call.operand("mask").map(|i| args[i]);
        let causal = is_causal(call);
        let scale = match call.attribute("scale") {
            Some(Attr::Float(scale)) => *scale,
            Some(_) | None => {
                let last = q.shape().rank() - 1;
                1.0 / (q.shape()[last].value() as f64).sqrt()
            }
        };
        Ok(Heads { operands, mask, causal, scale })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{bytes, noise};
    use crate::ops::composite;

    #[test]
    fn rows_are_normalised_by_the_kernel_however_their_axis_is_given() {
        let mut tables = composite::tables();
        let composite = tables.find(|composite| composite.name == "layer_norm").unwrap();
        let x = noise(DType::F32, &[3, 40], 1);
        let found = [Attr::Int(-1), Attr::Int(1), Attr::Ints(smallvec![-1])].map(|axis| {
            let attributes = [Attr::Operand, axis, Attr::None, Attr::None, Attr::Float(1e-5)];
            let call = Call { composite, attributes: attributes.as_slice().into() };
            let made = run(Kernel::LayerNorm, &call, &[Operand::Array(&x)]).unwrap();
            bytes(&made.expect("the kernel takes these")[0])
        });
        assert!(found.iter().all(|y| *y == found[0]));
    }

    #[test]
    fn a_kernel_is_of_one_composite_and_one_that_is_not_exact_runs_in_every_mode() {
        let found: Vec<_> = composite::tables().filter_map(|c| Some((c, c.kernel?))).collect();
        assert!(found.len() > 2);
        for (i, (composite, kernel)) in found.iter().enumerate() {
            assert!(has_kernel(composite) || kernel.is_exact(), "{}", composite.name);
            assert!(found[..i].iter().all(|(_, other)| other != kernel), "{}", composite.name);
        }
    }
}
