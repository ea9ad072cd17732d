//! Calls of recurrent layers: their operands as the kernels take them.

use std::borrow::Cow;

use super::backward::{self, Backward};
use super::forward::{self, Forward, Output};
use super::{Form, Sizes};
use crate::array::Array;
use crate::cpu::contract::{self, contract_into};
use crate::cpu::copy::{cast, contiguous};
use crate::cpu::dense::Real;
use crate::cpu::element::Shared;
use crate::cpu::gemm;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::layout::Layout;
use crate::memory::block_bytes;
use crate::ops::attributes::Contraction;
use crate::ops::declare::{Attr, Cell, Pass};
use crate::ops::op::Call;
use crate::shape::{Axes, Shape};

/// The form of a layer of such steps.
pub fn form(cell: Cell, call: &Call) -> Form {
    let relu =
        matches!(call.attribute("nonlinearity"), Some(Attr::Text(text)) if &**text == "relu");
    match cell {
        Cell::Lstm => Form::Lstm,
        Cell::Gru => Form::Gru,
        Cell::Rnn => Form::Rnn { relu },
    }
}

/// The operands of a call by their names.
struct Named<'a> {
    call: &'a Call,
    args: &'a [&'a Array],
    dtype: DType,
}

impl<'a> Named<'a> {
    fn new(call: &'a Call, args: &'a [&'a Array], pass: Pass) -> Named<'a> {
        let layouts = args.iter().map(|x| x.dtype);
        Named { call, args, dtype: calculated(layouts, call, pass) }
    }

    fn maybe(&self, name: &str) -> Option<&'a Array> {
        self.call.operand(name).map(|i| self.args[i])
    }

    fn get(&self, name: &str) -> Result<&'a Array> {
        self.maybe(name).ok_or_else(|| error::internal("an operand is missing"))
    }

    /// An operand in C order, in the dtype that is calculated in.
    fn dense(&self, name: &str) -> Result<Array> {
        contiguous(&cast(self.get(name)?, self.dtype)?)
    }

    /// How many steps each row has, if not all.
    fn lengths(&self) -> Result<Option<Array>> {
        let dense = |x: &Array| contiguous(&cast(x, DType::I64)?);
        self.maybe("lengths").map(dense).transpose()
    }

    fn maybe_dense(&self, name: &str) -> Result<Option<Array>> {
        self.maybe(name).map(|_| self.dense(name)).transpose()
    }
}

/// The dtype that a call is calculated in: the accumulator's of all operands' of a layer, and that
/// of what a layer saved.
fn calculated(dtypes: impl Iterator<Item = DType>, call: &Call, pass: Pass) -> DType {
    let mut dtypes = dtypes.collect::<smallvec::SmallVec<[DType; 8]>>();
    if let Some(i) = call.operand("lengths") {
        // They are the last operand, and no number that is calculated with.
        dtypes.truncate(i);
    }
    if pass == Pass::Backward {
        let leading = call.operand("gates").or(call.operand("y"));
        dtypes = leading.map(|i| dtypes[i]).into_iter().collect();
    }
    let all = dtypes.into_iter().reduce(|a, b| a.promote(b).unwrap_or(a));
    gemm::accumulator(all.unwrap_or(DType::F32))
}

fn sizes(form: Form, steps: &Shape, weight: &Shape, call: &Call) -> Sizes {
    let reverse = call.attribute("reverse") == Some(&Attr::Bool(true));
    let [steps, rows] = [steps[0].value(), steps[1].value()];
    Sizes { form, steps, rows, units: weight[1].value(), reverse }
}

/// The product of what is fed with its weights: (steps, rows, inputs) and (gates · units, inputs).
fn projection() -> Contraction {
    Contraction {
        a_batch: Axes::new(),
        b_batch: Axes::new(),
        a_contract: Axes::from_slice(&[2]),
        b_contract: Axes::from_slice(&[1]),
    }
}

/// Computes the results of a call.
///
/// # Safety
/// `to` are the results' types, in C order; nobody else reads or writes them, and they overlap no
/// operand.
pub unsafe fn run_into(
    (form, pass): (Form, Pass),
    call: &Call,
    args: &[&Array],
    to: &[Array],
) -> Result<()> {
    let named = Named::new(call, args, pass);
    // SAFETY: by contract.
    unsafe {
        match (pass, named.dtype) {
            (Pass::Forward, DType::F64) => forward::<f64>(form, &named, to),
            (Pass::Forward, _) => forward::<f32>(form, &named, to),
            (Pass::Backward, DType::F64) => backward::<f64>(form, &named, to),
            (Pass::Backward, _) => backward::<f32>(form, &named, to),
        }
    }
}

/// The address of an array in C order.
fn reading<T>(x: &Array) -> Shared<T> {
    Shared::reading(x.ptr().cast())
}

/// # Safety
/// As for [`run_into`].
unsafe fn writing<T>(x: &Array) -> Shared<T> {
    // SAFETY: by contract.
    Shared::new(unsafe { x.ptr_mut() }.cast())
}

/// # Safety
/// As for [`run_into`].
unsafe fn output<T: Real>(x: &Array, op: &str) -> Result<Output<T>> {
    // SAFETY: by contract.
    let ptr = unsafe { writing(x) };
    Ok(Output { ptr, size: x.dtype.size(), store: T::storer(x.dtype, op, "x")? })
}

unsafe fn forward<T: Real>(form: Form, named: &Named<'_>, to: &[Array]) -> Result<()> {
    let op = named.call.composite.name;
    let dense = |name| named.dense(name);
    let (h, weight, c) = (dense("h")?, dense("weight_hh")?, named.maybe_dense("c")?);
    let sizes = sizes(form, named.get("x")?.shape(), weight.shape(), named.call);
    let cells = usize::from(form == Form::Lstm);
    let lengths = named.lengths()?;
    // Of a simple net nothing is saved: what is fed goes to the states' place where it fits.
    let fed = match to.get(2 + cells) {
        Some(gates) => gates.clone(),
        None if to[0].dtype == T::DTYPE => to[0].clone(),
        None => Array::uninit(T::DTYPE, to[0].shape().clone())?,
    };
    let [ih, hh] = ["bias_ih", "bias_hh"].map(|name| bias::<T>(named, name));
    let biases = match (form, ih?, hh?) {
        (Form::Gru, ih, hh) => [ih, hh],
        (Form::Lstm | Form::Rnn { .. }, Some(mut a), Some(b)) => {
            a.iter_mut().zip(b).for_each(|(a, b)| *a = *a + b);
            [Some(a), None]
        }
        (Form::Lstm | Form::Rnn { .. }, a, b) => [a.or(b), None],
    };
    // SAFETY: by contract; what is fed is written before it is read.
    unsafe {
        let (x, w) = (named.get("x")?, named.get("weight_ih")?);
        contract_into(&cast(x, T::DTYPE)?, &cast(w, T::DTYPE)?, &projection(), &fed)?;
        let layer = Forward::<T> {
            sizes,
            h: reading(&h),
            c: c.as_ref().map(reading),
            weight: reading(&weight),
            biases,
            gates: writing(&fed),
            saved: to.get(3 + cells).map(|x| writing(x)),
            lengths: lengths.as_ref().map(reading),
            y: output(&to[0], op)?,
            last: output(&to[1], op)?,
            end: (form == Form::Lstm).then(|| output(&to[2], op)).transpose()?,
        };
        layer.run()
    }
}

/// The elements of a bias.
fn bias<T: Real>(named: &Named<'_>, name: &str) -> Result<Option<Vec<T>>> {
    let Some(x) = named.maybe(name) else { return Ok(None) };
    let n = x.count();
    let mut all = vec![T::ZERO; n];
    let strides = [0, x.layout.strides()[0]];
    let load = T::loader(x.dtype, named.call.composite.name, name)?;
    // SAFETY: the bias has one axis of `n` elements.
    unsafe { load(all.as_mut_ptr(), n, x.ptr(), strides, [1, n], T::ONE) };
    Ok(Some(all))
}

unsafe fn backward<T: Real>(form: Form, named: &Named<'_>, to: &[Array]) -> Result<()> {
    let dense = |name| named.dense(name);
    let maybe = |name| named.maybe_dense(name);
    let (gates, saved, before) = match form {
        Form::Lstm => (dense("gates")?, Some(dense("cells")?), Some(dense("c")?)),
        Form::Gru => (dense("gates")?, Some(dense("m")?), Some(dense("h")?)),
        Form::Rnn { .. } => (dense("y")?, None, None),
    };
    let (g, weight) = (dense("g")?, dense("weight_hh")?);
    let last = [maybe("g_h")?, maybe("g_c")?];
    let of_saved = [maybe("g_gates")?, maybe(if form == Form::Gru { "g_m" } else { "g_cells" })?];
    let sizes = sizes(form, gates.shape(), weight.shape(), named.call);
    let lengths = named.lengths()?;
    // SAFETY: by contract.
    unsafe {
        let own = (form == Form::Gru).then(|| writing(&to[1]));
        let first = match form {
            Form::Lstm => [Some(writing(&to[1])), Some(writing(&to[2]))],
            Form::Gru => [Some(writing(&to[2])), None],
            Form::Rnn { .. } => [Some(writing(&to[1])), None],
        };
        let gradient = Backward::<T> {
            sizes,
            g: reading(&g),
            last: last.each_ref().map(|x| x.as_ref().map(reading)),
            gates: reading(&gates),
            saved: saved.as_ref().map(reading),
            before: before.as_ref().map(reading),
            of_saved: of_saved.each_ref().map(|x| x.as_ref().map(reading)),
            lengths: lengths.as_ref().map(reading),
            weight: reading(&weight),
            slopes: [Some(writing(&to[0])), own],
            to: first,
        };
        gradient.run()
    }
}

/// The most bytes that a call takes for itself, as the counters of memory count them.
pub fn scratch((form, pass): (Form, Pass), call: &Call, args: &[(DType, &Layout)]) -> usize {
    let dtype = calculated(args.iter().map(|arg| arg.0), call, pass);
    let operand = |name: &str| call.operand(name).map(|i| args[i]);
    let copied = |name: &str| {
        operand(name)
            .filter(|(own, x)| *own != dtype || !x.is_contiguous())
            .map_or(0, |(_, x)| block_bytes(x.shape().count() * dtype.size()))
    };
    let (steps, names): (_, &[&str]) = match pass {
        Pass::Forward => ("x", &["h", "c", "weight_hh"]),
        Pass::Backward if matches!(form, Form::Rnn { .. }) => {
            ("y", &["y", "g", "weight_hh", "g_h"])
        }
        Pass::Backward => (
            "gates",
            &[
                "gates",
                "cells",
                "c",
                "m",
                "h",
                "g",
                "weight_hh",
                "g_h",
                "g_c",
                "g_gates",
                "g_cells",
                "g_m",
            ],
        ),
    };
    let (Some((_, steps)), Some((_, weight))) = (operand(steps), operand("weight_hh")) else {
        return 0;
    };
    let sizes = sizes(form, steps.shape(), weight.shape(), call);
    let ends = operand("lengths");
    let lengths = ends.filter(|(own, x)| *own != DType::I64 || !x.is_contiguous());
    let lengths = lengths.map_or(0, |(_, x)| block_bytes(x.shape().count() * DType::I64.size()));
    let copies = names.iter().map(|name| copied(name)).sum::<usize>() + lengths;
    match (pass, dtype) {
        (Pass::Backward, DType::F64) => copies + backward::scratch::<f64>(sizes, ends.is_some()),
        (Pass::Backward, _) => copies + backward::scratch::<f32>(sizes, ends.is_some()),
        (Pass::Forward, _) => {
            let (Some((x_dtype, x)), Some((w_dtype, w))) = (operand("x"), operand("weight_ih"))
            else {
                return 0;
            };
            let layer = match dtype == DType::F64 {
                true => forward::scratch::<f64>(sizes),
                false => forward::scratch::<f32>(sizes),
            };
            let narrow = |own: DType, x: &Layout| match own == dtype {
                true => (Cow::Borrowed(x).into_owned(), 0),
                false => {
                    let dense = Layout::contiguous(x.shape().clone());
                    (dense, block_bytes(x.shape().count() * dtype.size()))
                }
            };
            let ((x, x_bytes), (w, w_bytes)) = (narrow(x_dtype, x), narrow(w_dtype, w));
            let sums = sizes.steps * sizes.rows * sizes.sums();
            let product = x_bytes + w_bytes + contract::scratch(dtype, &x, &w, &projection(), sums);
            // A simple net whose states are narrow has what is fed in a place of its own.
            let floats = args.iter().map(|arg| arg.0).filter(|dtype| dtype.is_float());
            let results = floats.reduce(|a, b| a.promote(b).unwrap_or(a));
            let is_apart = matches!(form, Form::Rnn { .. }) && results != Some(dtype);
            let fed = if is_apart { block_bytes(sums * dtype.size()) } else { 0 };
            copies + fed + product.max(layer)
        }
    }
}
