//! The dispatch from ops to CPU kernels, for every op of the closed set.
//!
//! Movement ops give views and compute nothing; everything else fills a fresh C-order array. What a
//! kernel takes for itself stands beside it, so that plans know their peak.

use smallvec::{SmallVec, smallvec};

use super::{
    Few, calls, contract, conv, copy, create, gemm, indexing, program, reduce, scan, sort, window,
};
use crate::array::{Array, Fresh};
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::layout::Layout;
use crate::memory::{self, block_bytes};
use crate::ops::attributes::ScatterMode;
use crate::ops::element::ElementProgram;
use crate::ops::elementwise::{Elementwise, arithmetic};
use crate::ops::op::{Op, OperandType, SliceAxis, Type};
use crate::ops::structural::sliced;
use crate::shape::Shape;
use crate::small::small;
use crate::threads;

pub use crate::array::Operand;

impl<'a> Operand<'a> {
    fn ty(self) -> OperandType<'a> {
        match self {
            Operand::Array(x) => OperandType::Tensor(x.dtype, x.shape()),
            Operand::Scalar(value) => OperandType::Scalar(value.into()),
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
    if let Some(Operand::Array(x)) = args.first()
        && let Some(layout) = op.view(x.dtype, &x.layout)
    {
        return Ok(x.view(layout));
    }
    for arg in args {
        if let Operand::Array(x) = arg {
            x.look();
        }
    }
    if let (Op::Full(ty), [Operand::Scalar(value)]) = (op, args) {
        return copy::fill(*value, ty.dtype, &ty.shape);
    }
    let out = fresh(op, ty)?;
    // SAFETY: the array is fresh and of the result's type.
    unsafe { execute_into(op, args, &out)? };
    Ok(out)
}

/// How a fresh result of an op lies in memory: in C order, unless the op repeats elements.
pub fn fresh_layout(op: &Op, shape: &Shape) -> Layout {
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "results lie in C order unless an op says otherwise"
    )]
    match op {
        Op::Iota(ty, axis) => create::iota_layout(&ty.shape, *axis),
        _ => Layout::contiguous(shape.clone()),
    }
}

fn fresh(op: &Op, ty: Type) -> Result<Array> {
    let Op::Iota(..) = op else { return Array::uninit(ty.dtype, ty.shape) };
    let layout = fresh_layout(op, &ty.shape);
    let line = Array::uninit(ty.dtype, Shape::of(&[layout.room()]))?;
    Ok(line.view(layout))
}

/// Computes an op into memory that is there.
///
/// # Safety
/// `out` has the type that the op gives for `args` and the layout [`fresh_layout`] says, at any
/// offset; nobody else reads or writes it, and it overlaps no operand, except: for elementwise ops
/// and those that replace a part of their first operand it may be the memory of an operand of its
/// type in C order.
pub unsafe fn execute_into(op: &Op, args: &[Operand<'_>], out: &Array) -> Result<()> {
    let x = || args[0].array(op);
    let arrays = |from: usize| {
        args[from..].iter().map(|arg| arg.array(op)).collect::<Result<SmallVec<[&Array; 4]>>>()
    };
    // SAFETY: as the caller's.
    unsafe {
        match op {
            Op::Map(def) => map_into(def, args, out),
            Op::Call(call) => calls::run_into(call, args, std::slice::from_ref(out)),
            Op::Cast(_) => {
                copy::cast_into(x()?, out);
                Ok(())
            }
            Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Windows(_) => {
                move_into(op, x()?, out)
            }
            Op::Pad(_, at) => {
                fill_from(args[1], out)?;
                write_slice(out, at, args[0])
            }
            Op::SetItem(at) => {
                copy_base(x()?, out);
                write_slice(out, at, args[1])
            }
            Op::Concat(axis) => {
                copy::concat_into(&arrays(0)?, *axis, out);
                Ok(())
            }
            Op::Gather => {
                let rank = out.shape().rank() + args.len() - 1 - x()?.shape().rank();
                let index: Shape = out.shape().dims()[..rank].iter().copied().collect();
                indexing::gather_into(op.name(), x()?, &arrays(1)?, &index, out)
            }
            Op::Scatter(mode) => {
                let values = number_as_array(args[1], out.dtype)?;
                copy_base(x()?, out);
                let indices = arrays(2)?;
                let shape = index_shape(&indices)?;
                indexing::scatter_at("scatter", out, &indices, &shape, &values, *mode)
            }
            Op::Reduce(kind, axes) => reduce::reduce_into(*kind, x()?, axes, out),
            Op::ArgReduce(kind, axis) => reduce::arg_reduce_into(*kind, x()?, *axis, out),
            Op::Cumulate { kind, axis, reverse } => {
                scan::cumulate_into(*kind, x()?, *axis, *reverse, out)
            }
            Op::Contract(spec) => contract::contract_into(x()?, args[1].array(op)?, spec, out),
            Op::Conv(role, spec) => conv::conv_into(*role, x()?, args[1].array(op)?, spec, out),
            Op::Fold(spec, sizes) => {
                let sizes: SmallVec<[usize; 3]> = small(sizes.iter().map(|n| n.value()));
                window::fold_into(x()?, spec, &sizes, out)
            }
            Op::Sort { axis, descending } => sort::sort_into(x()?, *axis, *descending, out),
            Op::ArgSort { axis, descending } => {
                let n = x()?.shape()[*axis].value();
                sort::positions_into(op.name(), x()?, n, *axis, *descending, out)
            }
            Op::TopK { k, axis, largest } => {
                sort::positions_into(op.name(), x()?, *k, *axis, *largest, out)
            }
            Op::Full(_) => fill_from(args[0], out),
            Op::Iota(ty, axis) => {
                create::iota_into(ty.shape[*axis].value(), out);
                Ok(())
            }
            Op::RandomBits(_) => create::random_bits_into(key(x()?)?, out),
            #[cfg(feature = "example-op")]
            Op::Increments(axis) => {
                let x = x()?;
                let both = crate::ops::structural::example::neighbours(*axis, x.shape());
                let [first, second] = both.map(|at| x.view(sliced(&x.layout, &at)));
                let operands = [Operand::Array(&second), Operand::Array(&first)];
                map_into(&arithmetic::subtract, &operands, out)
            }
        }
    }
}

/// The most bytes that [`execute_into`] takes for operands of these dtypes and
/// layouts and a result of this layout, as the counters of memory count them. (Sorting floats takes
/// more if there are NaNs or negative zeros among them; that is counted.)
pub fn scratch(op: &Op, args: &[(DType, &Layout)], result: &Layout) -> usize {
    let dense = |dtype: DType, x: &Layout| block_bytes(x.shape().count() * dtype.size());
    let copied = |dtype: DType, x: &Layout| if x.is_contiguous() { 0 } else { dense(dtype, x) };
    let Some(&(dtype, x)) = args.first() else { return 0 };
    let count = result.shape().count();
    match op {
        Op::Contract(spec) => {
            args.get(1).map_or(0, |&(_, b)| contract::scratch(dtype, x, b, spec, count))
        }
        Op::Conv(role, spec) => {
            args.get(1).map_or(0, |&(_, b)| conv::scratch(*role, dtype, x, b, spec, result))
        }
        Op::Fold(..) => {
            let to = gemm::accumulator(dtype);
            contract::widened(dtype, x, to).1 + contract::wide_bytes(dtype, to, count)
        }
        Op::Reduce(_, axes) => reduce::scratch(dtype, x, axes),
        Op::ArgReduce(_, axis) => reduce::arg_scratch(dtype, x, *axis),
        Op::Cumulate { .. } | Op::RandomBits(_) => copied(dtype, x),
        Op::Sort { axis, .. } => {
            let positions = if dtype.is_float() { dense(DType::I64, x) } else { 0 };
            positions + sort::scratch(dtype, x, *axis, (dtype, result.shape()))
        }
        Op::ArgSort { axis, .. } | Op::TopK { axis, .. } => {
            sort::scratch(dtype, x, *axis, (DType::I64, result.shape()))
        }
        Op::Call(call) => calls::scratch(call, args),
        // These write what they read, element by element.
        Op::Map(_)
        | Op::Cast(_)
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Broadcast(_)
        | Op::Slice(_)
        | Op::Windows(_)
        | Op::Pad(..)
        | Op::SetItem(_)
        | Op::Concat(_)
        | Op::Gather
        | Op::Scatter(_)
        | Op::Full(_)
        | Op::Iota(..) => 0,
        #[cfg(feature = "example-op")]
        Op::Increments(_) => 0,
    }
}

/// A copy of what a movement shows.
///
/// # Safety
/// As for [`execute_into`].
unsafe fn move_into(op: &Op, x: &Array, out: &Array) -> Result<()> {
    let (from, to) = match op.view(x.dtype, &x.layout) {
        Some(layout) => (x.view(layout), out.clone()),
        None => {
            let layout = Layout::contiguous_at(x.shape().clone(), out.layout.offset());
            (x.clone(), out.view(layout))
        }
    };
    // SAFETY: as the caller's.
    unsafe { copy::copy_into(&to, &from) };
    Ok(())
}

/// Copies a base into the result, unless it is the result's memory.
///
/// # Safety
/// As for [`execute_into`].
unsafe fn copy_base(x: &Array, out: &Array) {
    if x.ptr() != out.ptr() {
        // SAFETY: as the caller's.
        unsafe { copy::copy_into(out, x) };
    }
}

/// One elementwise op on promoted operands, into a fresh array.
pub fn map(def: &Elementwise, args: &[Operand<'_>]) -> Result<Array> {
    if let Some(few) = Few::of(def, args) {
        return few.compute().map(Fresh::array);
    }
    let ty = map_type(def, args)?;
    let out = Array::uninit(ty.dtype, ty.shape)?;
    // SAFETY: the array is fresh and of the result's type.
    unsafe { map_into(def, args, &out)? };
    Ok(out)
}

/// The type of the result of an elementwise op on promoted operands.
#[inline(always)]
pub fn map_type(def: &Elementwise, args: &[Operand<'_>]) -> Result<Type> {
    match same_shape(args) {
        // One shape and dtype, as nearly always: nothing to infer but whether the op takes it.
        Some(x) if !def.condition => {
            def.check_dtype(x.dtype)?;
            Ok(Type::new(def.result_dtype(x.dtype), x.shape().clone()))
        }
        _ => {
            let types: SmallVec<[OperandType<'_>; 3]> = small(args.iter().map(|arg| arg.ty()));
            Op::infer_map(def, &types)
        }
    }
}

/// An elementwise op that gives the same bits in less time, and its operands: a power to a number
/// that is known.
pub fn cheaper<'a>(
    def: &Elementwise,
    args: &[Operand<'a>],
) -> Option<(&'static Elementwise, SmallVec<[Operand<'a>; 3]>)> {
    if *def != arithmetic::pow {
        return None;
    }
    let &[base @ Operand::Array(x), Operand::Scalar(exponent)] = args else { return None };
    match exponent.as_f64() {
        1.0 => Some((&arithmetic::multiply, smallvec![base, Operand::Scalar(Scalar::Int(1))])),
        exponent => arithmetic::known_power(x.dtype, exponent).map(|def| (def, smallvec![base])),
    }
}

/// The dtype that an elementwise op computes in: that of its operands besides a condition, or of
/// its result, where those are numbers.
pub fn computes_in(def: &Elementwise, args: &[Operand<'_>], result: DType) -> DType {
    let numeric = args[usize::from(def.condition)..].iter().find_map(|arg| match arg {
        Operand::Array(x) => Some(x.dtype),
        Operand::Scalar(_) => None,
    });
    // `where(condition, 1.0, 2.0)`: numbers only, so the result's own dtype.
    numeric.unwrap_or(result)
}

/// Runs a group of elementwise ops.
///
/// # Safety
/// The outputs have one shape, to which every input broadcasts, and the dtypes of the program's
/// results. They are in C order, overlap no input, and nobody else reads or writes them meanwhile.
pub unsafe fn run_group(
    group: &ElementProgram,
    inputs: &[&Array],
    numbers: &[Scalar],
    outputs: &[&Array],
) -> Result<()> {
    let program = program::Program::lower(group)?;
    // SAFETY: as the caller's.
    unsafe { program::run(&program, inputs, numbers, outputs) };
    Ok(())
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
    if let Some((def, args)) = cheaper(def, args) {
        // SAFETY: as the caller's.
        return unsafe { map_into(def, &args, out) };
    }
    if out.is_contiguous()
        && let Some(few) = Few::of(def, args)
    {
        // SAFETY: arrays of one shape give a result of that shape; else as the caller's.
        unsafe { few.compute_into(out.ptr_mut()) };
        return Ok(());
    }
    let dtype = computes_in(def, args, out.dtype);
    let Some(kernel) = def.kernel(dtype.compute()) else {
        return Err(error::internal(format!("{} has no kernel for {dtype}", def.name)));
    };
    let mut operands = [program::MapOperand::Scalar(Scalar::Bool(false), DType::Bool); 3];
    for (i, (place, arg)) in operands.iter_mut().zip(args).enumerate() {
        *place = match *arg {
            Operand::Array(x) => program::MapOperand::Array(x),
            Operand::Scalar(value) if def.is_condition(i) => {
                program::MapOperand::Scalar(value, DType::Bool)
            }
            Operand::Scalar(value) => program::MapOperand::Scalar(value, dtype),
        };
    }
    // SAFETY: the operands' register types are the ones the kernel was asked for, they broadcast to
    // `out` (its shape was inferred from them), and nobody else holds the memory of `out`.
    unsafe { program::map(def, kernel, &operands[..args.len()], out) };
    Ok(())
}

/// Writes a number, or an array that broadcasts, everywhere.
///
/// # Safety
/// The array's buffer is fresh or uniquely held, and nobody reads or writes it meanwhile.
unsafe fn fill_from(value: Operand<'_>, out: &Array) -> Result<()> {
    // SAFETY: as the caller's.
    unsafe {
        match value {
            Operand::Scalar(value) => copy::fill_with(value, out),
            Operand::Array(x) if x.dtype == out.dtype => copy::copy_into(out, x),
            Operand::Array(x) => return Err(error::dtype_mismatch("full", out.dtype, x.dtype)),
        }
    }
    Ok(())
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
    // SAFETY: the caller holds the array alone; a slice stays inside it.
    unsafe { fill_from(value, &out.view(sliced(&out.layout, at))) }
}

/// Adds to a slice of an array.
///
/// # Safety
/// The array's buffer is fresh or uniquely held, and nobody reads or writes it meanwhile.
pub unsafe fn add_into_slice(sum: &Array, at: &[SliceAxis], g: &Array) -> Result<()> {
    let part = sum.view(sliced(&sum.layout, at));
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
    indexing::scatter("scatter", base, indices, &index_shape(indices)?, values, mode)
}

/// Writes values where a gather by these indices would read. Refused indices change nothing.
///
/// # Safety
/// The array's buffer is fresh or uniquely held, it is in C order, and nobody reads or writes it
/// meanwhile.
pub unsafe fn write_at(out: &Array, indices: &[&Array], values: &Array) -> Result<()> {
    let shape = index_shape(indices)?;
    // SAFETY: as the caller's.
    unsafe { indexing::scatter_at("scatter", out, indices, &shape, values, ScatterMode::Set) }
}

/// Refuses the indices that a scatter into `base` would refuse.
pub fn check_indices(base: &Array, indices: &[&Array]) -> Result<()> {
    indexing::check_indices("scatter", base, indices, &index_shape(indices)?)
}

/// The shape to which index arrays broadcast.
fn index_shape(indices: &[&Array]) -> Result<Shape> {
    let first = Shape::scalar();
    indices.iter().try_fold(first, |shape, index| shape.broadcast(index.shape(), "scatter"))
}

/// Elements that [`nonzero`] looks at between two looks whether it is to be broken off.
const STRETCH: usize = 1 << 16;

/// The positions of the true elements of a mask: one int64 array per axis.
pub fn nonzero(mask: &Array) -> Result<SmallVec<[Array; 4]>> {
    let mask = copy::contiguous(mask)?;
    let n = mask.count();
    // SAFETY: a contiguous bool array has `n` initialised bytes from its start.
    let bytes = unsafe { std::slice::from_raw_parts(mask.ptr(), n) };
    let mut count = 0;
    threads::in_stretches(0..n, STRETCH, |range| {
        count += bytes[range].iter().map(|&byte| usize::from(byte != 0)).sum::<usize>();
    });
    let mut hits: Vec<usize> = Vec::new();
    hits.try_reserve_exact(count + 1).map_err(|_| memory::refusal(count.saturating_mul(8)))?;
    hits.resize(count + 1, 0);
    let mut found = 0;
    // Each position is written where the next hit goes, so that nothing branches on the data.
    threads::in_stretches(0..n, STRETCH, |range| {
        for i in range {
            hits[found] = i;
            found += usize::from(bytes[i] != 0);
        }
    });
    hits.truncate(count);
    let sizes = mask.shape().sizes();
    let mut inner = 1;
    let mut out: SmallVec<[Array; 4]> = SmallVec::new();
    for &size in sizes.iter().rev() {
        let array = Array::uninit(DType::I64, Shape::of(&[hits.len()]))?;
        // SAFETY: the array is fresh and holds `hits.len()` int64 elements.
        let to =
            unsafe { std::slice::from_raw_parts_mut(array.ptr_mut().cast::<i64>(), hits.len()) };
        // Hits ascend, so that the place along an axis nearly always is that of the hit before, or the
        // next. `start` is the first element of the place; along the last axis, of the line.
        let (mut start, mut place) = (0, 0);
        let width = if inner == 1 { size.max(1) } else { inner };
        threads::in_stretches(0..hits.len(), STRETCH, |range| {
            for (to, &hit) in to[range.clone()].iter_mut().zip(&hits[range]) {
                if hit - start >= width {
                    let steps = (hit - start) / width;
                    start += steps * width;
                    place = (place + steps) % size.max(1);
                }
                *to = (if inner == 1 { hit - start } else { place }) as i64;
            }
        });
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
