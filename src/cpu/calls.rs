//! Kernels of composites.
//!
//! A kernel computes what the formula of a composite does, within the error that it states. It is
//! chosen by the composite alone, so that every mode runs it.

use smallvec::{SmallVec, smallvec};

use super::attention::{self, Saved};
use super::copy::fill;
use super::norm;
use super::{Operand, cast};
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::layout::Layout;
use crate::ops::declare::{Attr, Composite};
use crate::ops::op::{Call, Op, OperandType};
use crate::shape::Shape;

/// A composite that has a kernel.
#[derive(Clone, Copy)]
enum Kernel {
    Attention,
    AttentionGradients,
}

fn kernel(composite: &Composite) -> Option<Kernel> {
    match composite.name {
        "scaled_dot_product_attention" => Some(Kernel::Attention),
        "attention_gradients" => Some(Kernel::AttentionGradients),
        _ => None,
    }
}

/// Whether calls of a composite run by a kernel.
pub fn has_kernel(composite: &'static Composite) -> bool {
    kernel(composite).is_some()
}

/// Computes the results of a call by a kernel that has the bits of the formula, if there is one for
/// these operands. Plans rather fuse the formula.
pub fn run_alike(call: &Call, args: &[Operand<'_>]) -> Result<Option<SmallVec<[Array; 2]>>> {
    if call.composite.name != "layer_norm" {
        return Ok(None);
    }
    let operand = |name| match call.operand(name).map(|i| args[i]) {
        Some(Operand::Array(x)) => Some(Some(x)),
        Some(Operand::Scalar(_)) => None,
        None => Some(None),
    };
    let (Some(Some(x)), Some(weight), Some(bias)) =
        (operand("x"), operand("weight"), operand("bias"))
    else {
        return Ok(None);
    };
    let (rank, mut axes) = (x.shape().rank(), SmallVec::<[usize; 6]>::new());
    match call.attribute("axis") {
        Some(Attr::Ints(given)) => {
            for &axis in given {
                axes.push(x.shape().axis(axis, call.composite.name)?);
            }
        }
        Some(_) | None => return Ok(None),
    }
    axes.sort_unstable();
    let trailing = axes.len();
    let is_last = axes.iter().copied().eq(rank - trailing..rank) && trailing > 0;
    let own = &x.shape().dims()[rank.saturating_sub(trailing)..];
    let fits = |p: &Option<&Array>| p.is_none_or(|p| p.shape().dims() == own);
    let rows = x.shape().count() / own.iter().map(|n| n.value()).product::<usize>().max(1);
    let dtypes = [weight, bias].map(|p| p.map(|p| p.dtype));
    let Some(Attr::Float(eps)) = call.attribute("eps") else { return Ok(None) };
    // Few rows leave threads without work.
    let is_wide = rows < ROWS && x.shape().count() > LARGE;
    if !is_last || is_wide || x.shape().count() == 0 || ![weight, bias].iter().all(fits) {
        return Ok(None);
    }
    if norm::result(x.dtype, dtypes).is_none() {
        return Ok(None);
    }
    let (y, moments) = norm::forward(x, trailing, [weight, bias], *eps, true)?;
    Ok(moments.map(|moments| smallvec![y, moments.mean, moments.scale]))
}

/// Rows below which a large array is better normalised by its formula.
const ROWS: usize = 16;
const LARGE: usize = 1 << 16;

/// Computes the results of a call.
pub fn run(call: &Call, args: &[Operand<'_>]) -> Result<SmallVec<[Array; 2]>> {
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
    let Some(kernel) = kernel(call.composite) else {
        return Err(error::internal(format!("{} has no kernel", call.composite.name)));
    };
    // Numbers stand for tensors of their class's default dtype, as they do in the formula.
    let mut arrays: SmallVec<[Array; 8]> = SmallVec::new();
    for arg in args {
        arrays.push(match *arg {
            Operand::Array(x) => x.clone(),
            Operand::Scalar(value) => fill(value, default_dtype(value), &Shape::scalar())?,
        });
    }
    let args: SmallVec<[&Array; 8]> = arrays.iter().collect();
    let args = args.as_slice();
    let heads = Heads::new(call, args)?;
    let operands = heads.operands.each_ref();
    // SAFETY: as the caller's.
    unsafe {
        match (kernel, to) {
            (Kernel::Attention, [y, logsums]) => attention::forward_into(
                operands[0],
                operands[1],
                operands[2],
                heads.mask,
                heads.causal,
                heads.scale,
                [y, logsums],
            ),
            (Kernel::AttentionGradients, [q, k, v]) => {
                let g_logsums = call.operand("g_logsums").map(|i| args[i]);
                let wanted = |name| heads.saved(call, args, name);
                let (g, y, logsums) = (wanted("g")?, wanted("y")?, wanted("logsums")?);
                let saved = Saved { y: &y, logsums: &logsums, g: &g, g_logsums };
                attention::backward_into(
                    operands,
                    heads.mask,
                    heads.causal,
                    heads.scale,
                    saved,
                    [Some(q), Some(k), Some(v), None],
                )
            }
            (Kernel::Attention | Kernel::AttentionGradients, _) => {
                Err(error::internal(format!("{} has other results", call.composite.name)))
            }
        }
    }
}

/// The most bytes that a kernel takes for itself, as the counters of memory count them.
pub fn scratch(call: &Call, args: &[(DType, &Layout)]) -> usize {
    let shape = |name: &str| call.operand(name).map(|i| args[i]);
    let (Some((dtype, q)), Some((_, k)), Some((_, v))) = (shape("q"), shape("k"), shape("v"))
    else {
        return 0;
    };
    let lead = |x: &Layout| {
        let dims = x.shape().dims();
        Shape::from_dims(&dims[..dims.len() - 2])
    };
    let common = lead(q).broadcast(&lead(k), "").and_then(|both| both.broadcast(&lead(v), ""));
    let Ok(common) = common else { return 0 };
    let spread = |x: &Layout| {
        let dims = x.shape().dims();
        let mut shape = common.clone();
        shape.dims_mut().extend(dims[dims.len() - 2..].iter().copied());
        shape
    };
    let (q, v, causal) = (spread(q), spread(v), is_causal(call));
    match kernel(call.composite) {
        Some(Kernel::Attention) => attention::forward_scratch(dtype, &q, &v, causal),
        Some(Kernel::AttentionGradients) => attention::backward_scratch(dtype, &q, &v, causal),
        None => 0,
    }
}

fn is_causal(call: &Call) -> bool {
    matches!(call.attribute("is_causal"), Some(Attr::Bool(true)))
}

/// The dtype of a number that stands where a tensor may.
fn default_dtype(value: Scalar) -> DType {
    match value {
        Scalar::Bool(_) => DType::Bool,
        Scalar::Int(_) => DType::I64,
        Scalar::Uint(_) => DType::U64,
        Scalar::Float(_) => DType::F32,
    }
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
        let named = |name| match call.operand(name) {
            Some(i) => Ok(args[i]),
            None => Err(error::internal("an operand is missing")),
        };
        let (op, [q, k, v]) = (call.composite.name, [named("q")?, named("k")?, named("v")?]);
        let lead = |x: &Array| {
            let dims = x.shape().dims();
            Shape::from_dims(&dims[..dims.len() - 2])
        };
        let common = lead(q).broadcast(&lead(k), op)?.broadcast(&lead(v), op)?;
        let dtype = [k, v].iter().try_fold(q.dtype, |dtype, x| dtype.promote(x.dtype));
        let Some(dtype) = dtype else { return Err(error::internal("dtypes without a common one")) };
        let spread = |x: &Array| -> Result<Array> {
            let x = cast(x, dtype)?;
            let dims = x.shape().dims();
            let mut shape = common.clone();
            shape.dims_mut().extend(dims[dims.len() - 2..].iter().copied());
            let layout = Op::Broadcast(shape).view(dtype, &x.layout);
            layout.map(|layout| x.view(layout)).ok_or_else(|| error::internal("a view is one"))
        };
        let operands = [spread(q)?, spread(k)?, spread(v)?];
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

    /// What was saved, as gradients take it: of the dtype of the operands, log-sums of their own.
    fn saved(&self, call: &Call, args: &[&Array], name: &str) -> Result<Array> {
        let i = call.operand(name).ok_or_else(|| error::internal("an operand is missing"))?;
        let x = args[i];
        match name {
            "logsums" => Ok(x.clone()),
            _ => cast(x, self.operands[0].dtype),
        }
    }
}
