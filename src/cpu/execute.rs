//! Ops to kernels: every op of the closed set, on arrays.
//!
//! Movement ops give views and compute nothing; everything else fills a fresh C-order array.

use smallvec::SmallVec;

use super::{contract, conv, copy, create, gather, program, reduce, scan, sort, window};
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::layout::{Layout, Strides};
use crate::ops::attributes::ScatterMode;
use crate::ops::elementwise::{Elementwise, arithmetic};
use crate::ops::op::{Op, OperandType, SliceAxis, Type};
use crate::shape::Shape;
use crate::small::small;

/// An operand of an op.
#[derive(Clone, Copy)]
pub enum Operand<'a> {
    /// An array
    Array(&'a Array),
    /// A number, which takes the dtype of the arrays beside it
    Scalar(Scalar),
}

impl<'a> Operand<'a> {
    fn ty(self) -> OperandType<'a> {
        match self {
            Operand::Array(x) => OperandType::Tensor(x.dtype, x.shape()),
            Operand::Scalar(value) => OperandType::Scalar(value),
        }
    }

    fn array(self, op: &Op) -> Result<&'a Array> {
        match self {
            Operand::Array(x) => Ok(x),
            Operand::Scalar(value) => Err(error::bad_type(op.name(), "expected a tensor", value)),
        }
    }
}

/// Computes an op. Refuses what [`Op::infer`] refuses, and indices outside their axes.
pub fn execute(op: &Op, args: &[Operand<'_>]) -> Result<Array> {
    if let Op::Map(def) = op {
        return map(def, args);
    }
    let types: SmallVec<[OperandType<'_>; 4]> = small(args.iter().map(|arg| arg.ty()));
    let ty = op.infer(&types)?;
    let x = || args[0].array(op);
    let arrays = |from: usize| {
        args[from..].iter().map(|arg| arg.array(op)).collect::<Result<SmallVec<[&Array; 4]>>>()
    };
    match op {
        Op::Map(def) => map(def, args),
        Op::Call(call) => Err(error::internal(format!("{} has no kernel", call.composite.name))),
        Op::Cast(dtype) => copy::cast(x()?, *dtype),
        Op::Reshape(shape) => {
            let x = x()?;
            match x.layout.reshape(shape) {
                Some(layout) => Ok(x.view(layout)),
                None => {
                    let packed = copy::contiguous(x)?;
                    Ok(packed.view(Layout::contiguous(shape.clone())))
                }
            }
        }
        Op::Permute(axes) => {
            let x = x()?;
            let from = x.layout.strides();
            let strides: Strides = small(axes.iter().map(|&i| from[i]));
            Ok(x.view(Layout::strided(ty.shape, &strides, x.layout.offset())))
        }
        Op::Broadcast(shape) => {
            let x = x()?;
            let strides = x.layout.broadcast_strides(shape);
            Ok(x.view(Layout::strided(ty.shape, &strides, x.layout.offset())))
        }
        Op::Slice(at) => {
            let x = x()?;
            Ok(x.view(slice(&x.layout, at)))
        }
        Op::Embed(_, at) => {
            let out = fill(args[1], &ty)?;
            // SAFETY: the array is fresh.
            unsafe { write_slice(&out, at, args[0])? };
            Ok(out)
        }
        Op::Update(at) => {
            let out = fresh_copy(x()?)?;
            // SAFETY: the array is fresh.
            unsafe { write_slice(&out, at, args[1])? };
            Ok(out)
        }
        Op::Concat(axis) => copy::concat(&arrays(0)?, *axis),
        Op::Gather => {
            let index: Shape = ty.shape.dims()
                [..ty.shape.rank() + args.len() - 1 - x()?.shape().rank()]
                .iter()
                .copied()
                .collect();
            gather::gather(op.name(), x()?, &arrays(1)?, &index)
        }
        Op::Scatter(mode) => {
            let values = number_as_array(args[1], ty.dtype)?;
            scatter(x()?.clone(), &arrays(2)?, &values, *mode)
        }
        Op::Reduce(kind, axes) => reduce::reduce(*kind, x()?, axes),
        Op::ArgReduce(kind, axis) => reduce::arg_reduce(*kind, x()?, *axis),
        Op::Cumulate { kind, axis, reverse } => scan::cumulate(*kind, x()?, *axis, *reverse),
        Op::Contract(spec) => contract::contract(x()?, args[1].array(op)?, spec),
        Op::Conv(role, spec) => conv::conv(*role, x()?, args[1].array(op)?, spec),
        Op::Windows(spec) => Ok(window::windows(x()?, spec)),
        Op::Fold(spec, sizes) => {
            window::fold(x()?, spec, &small::<[usize; 3]>(sizes.iter().map(|n| n.value())))
        }
        Op::Sort { axis, descending } => sort::sort(x()?, *axis, *descending),
        Op::ArgSort { axis, descending } => sort::argsort(x()?, *axis, *descending),
        Op::TopK { k, axis, largest } => sort::topk(x()?, *k, *axis, *largest),
        Op::Fill(ty) => fill(args[0], ty),
        Op::Iota(ty, axis) => create::iota(ty.dtype, &ty.shape, *axis),
        Op::RandomBits(ty) => create::random_bits(key(x()?)?, ty.dtype, &ty.shape),
    }
}

/// One elementwise op on promoted operands, into a fresh array.
pub fn map(def: &Elementwise, args: &[Operand<'_>]) -> Result<Array> {
    let ty = match same_shape(args) {
        // One shape and dtype, as nearly always: nothing to infer but whether the op takes it.
        Some(x) if !def.condition => {
            def.check_dtype(x.dtype)?;
            Type::new(def.result_dtype(x.dtype), x.shape().clone())
        }
        _ => {
            let types: SmallVec<[OperandType<'_>; 3]> = small(args.iter().map(|arg| arg.ty()));
            Op::infer_map(def, &types)?
        }
    };
    let out = Array::uninit(ty.dtype, ty.shape)?;
    // SAFETY: the array is fresh and of the result's type.
    unsafe { map_into(def, args, &out)? };
    Ok(out)
}

/// The first array, if all have its shape and dtype.
fn same_shape<'a>(args: &[Operand<'a>]) -> Option<&'a Array> {
    let mut first: Option<&Array> = None;
    for arg in args {
        if let Operand::Array(x) = arg {
            let first = *first.get_or_insert(x);
            if x.dtype != first.dtype || x.shape() != first.shape() {
                return None;
            }
        }
    }
    first
}

/// One elementwise op into an array of the result's type: a fresh one, or the memory of an operand
/// of that type that nobody else holds.
///
/// # Safety
/// `out` has the type that the op gives for `args`, its buffer is fresh or held by one operand's
/// value alone, and nobody reads or writes it meanwhile.
pub unsafe fn map_into(def: &Elementwise, args: &[Operand<'_>], out: &Array) -> Result<()> {
    let numeric = args[usize::from(def.condition)..].iter().find_map(|arg| match arg {
        Operand::Array(x) => Some(x.dtype),
        Operand::Scalar(_) => None,
    });
    // `where(condition, 1.0, 2.0)`: numbers only, so the result's own dtype.
    let dtype = numeric.unwrap_or(out.dtype);
    let Some(kernel) = def.kernel(dtype.compute()) else {
        return Err(error::internal(format!("{} has no kernel for {dtype}", def.name)));
    };
    let mut operands = [program::Operand::Scalar(Scalar::Bool(false), DType::Bool); 3];
    for (i, (place, arg)) in operands.iter_mut().zip(args).enumerate() {
        *place = match *arg {
            Operand::Array(x) => program::Operand::Array(x),
            Operand::Scalar(value) if def.is_condition(i) => {
                program::Operand::Scalar(value, DType::Bool)
            }
            Operand::Scalar(value) => program::Operand::Scalar(value, dtype),
        };
    }
    // SAFETY: the operands' register types are the ones the kernel was asked for, they broadcast to
    // `out` (its shape was inferred from them), and nobody else holds the memory of `out`.
    unsafe { program::map(kernel, &operands[..args.len()], out) };
    Ok(())
}

/// The layout of a slice.
fn slice(layout: &Layout, at: &[SliceAxis]) -> Layout {
    let from = layout.strides();
    let mut offset = layout.offset();
    let mut strides = Strides::new();
    for (axis, &stride) in at.iter().zip(&from) {
        if axis.size != 0 {
            offset = offset.wrapping_add_signed(axis.start.value() as isize * stride);
        }
        strides.push(stride * axis.step);
    }
    Layout::strided(at.iter().map(|a| a.size).collect(), &strides, offset)
}

fn fill(value: Operand<'_>, ty: &Type) -> Result<Array> {
    match value {
        Operand::Scalar(value) => copy::fill(value, ty.dtype, &ty.shape),
        Operand::Array(x) => {
            let out = Array::uninit(ty.dtype, ty.shape.clone())?;
            // SAFETY: the array is fresh.
            unsafe { copy::copy_into(&out, x) };
            Ok(out)
        }
    }
}

/// A C-order copy that nobody else holds.
fn fresh_copy(x: &Array) -> Result<Array> {
    let out = Array::uninit(x.dtype, x.shape().clone())?;
    // SAFETY: the array is fresh.
    unsafe { copy::copy_into(&out, x) };
    Ok(out)
}

fn number_as_array(value: Operand<'_>, dtype: DType) -> Result<Array> {
    match value {
        Operand::Array(x) if x.dtype == dtype => Ok(x.clone()),
        Operand::Array(x) => Err(error::dtype_mismatch("scatter", dtype, x.dtype)),
        Operand::Scalar(value) => copy::fill(value, dtype, &Shape::scalar()),
    }
}

/// Replaces a slice of an array.
///
/// # Safety
/// The array's buffer is fresh or uniquely held, and nobody reads or writes it meanwhile.
pub unsafe fn write_slice(out: &Array, at: &[SliceAxis], value: Operand<'_>) -> Result<()> {
    let value = number_as_array(value, out.dtype)?;
    // SAFETY: the caller holds the array alone; a slice stays inside it.
    unsafe { copy::copy_into(&out.view(slice(&out.layout, at)), &value) };
    Ok(())
}

/// Adds to a slice of an array.
///
/// # Safety
/// The array's buffer is fresh or uniquely held, and nobody reads or writes it meanwhile.
pub unsafe fn add_into_slice(sum: &Array, at: &[SliceAxis], g: &Array) -> Result<()> {
    let part = sum.view(slice(&sum.layout, at));
    let total = map(&arithmetic::add, &[Operand::Array(&part), Operand::Array(g)])?;
    // SAFETY: the caller holds the array alone; the sum lies elsewhere.
    unsafe { copy::copy_into(&part, &total) };
    Ok(())
}

/// [`Op::Scatter`] with a base that may be written in place where nobody else holds it.
pub fn scatter(
    base: Array,
    indices: &[&Array],
    values: &Array,
    mode: ScatterMode,
) -> Result<Array> {
    let mut shape = Shape::scalar();
    for index in indices {
        shape = shape.broadcast(index.shape(), "scatter")?;
    }
    gather::scatter("scatter", base, indices, &shape, values, mode)
}

/// The positions of the true elements of a mask: one int64 array per axis.
pub fn nonzero(mask: &Array) -> Result<SmallVec<[Array; 4]>> {
    let mask = copy::contiguous(mask)?;
    let n = mask.count();
    // SAFETY: a contiguous bool array has `n` initialised bytes from its start.
    let bytes = unsafe { std::slice::from_raw_parts(mask.ptr(), n) };
    let hits: Vec<usize> = (0..n).filter(|&i| bytes[i] != 0).collect();
    let sizes = mask.shape().sizes();
    let mut inner = 1;
    let mut out: SmallVec<[Array; 4]> = SmallVec::new();
    for &size in sizes.iter().rev() {
        let array = Array::uninit(DType::I64, Shape::of(&[hits.len()]))?;
        // SAFETY: the array is fresh and holds `hits.len()` int64 elements.
        let to =
            unsafe { std::slice::from_raw_parts_mut(array.ptr_mut().cast::<i64>(), hits.len()) };
        to.iter_mut().zip(&hits).for_each(|(to, &hit)| *to = (hit / inner % size.max(1)) as i64);
        inner *= size;
        out.push(array);
    }
    out.reverse();
    Ok(out)
}

/// A cast.
pub use super::copy::cast;

/// An int64 scalar.
pub fn fill_i64(value: i64) -> Result<Array> {
    copy::fill(Scalar::Int(value), DType::I64, &Shape::scalar())
}

/// A random key: two uint32.
fn key(x: &Array) -> Result<[u32; 2]> {
    if x.dtype != DType::U32 || *x.shape() != Shape::of(&[2]) {
        let facts = format!("got {} {}", x.dtype, x.shape());
        return Err(error::bad_value("random", "a key is a uint32 tensor of shape (2,)", facts));
    }
    let x = copy::contiguous(x)?;
    // SAFETY: the array is contiguous and holds two uint32, aligned to their size.
    Ok(unsafe { x.ptr().cast::<[u32; 2]>().read() })
}
