//! Attributes: shape and dtype, gradients, transposes.

use std::os::raw::{c_int, c_void};
use std::ptr::null_mut;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use super::{MATRIX_TRANSPOSE, Named, Object, TRANSPOSE};
use crate::array::Array;
use crate::engine::eager::{apply, views};
use crate::engine::executors;
use crate::engine::tape::{self, Gradient, History, Operand, Rows, Value};
use crate::engine::trace;
use crate::error;
use crate::ops::op::Op;
use crate::py::arguments::{Held, leak};
use crate::py::convert;
use crate::py::dtype;
use crate::py::errors::{OrRaise, to_python};
use crate::py::functions::{guard, make_leaf};
use crate::py::size;
use crate::py::tensor::{self, TensorObject};
use crate::shape::{Axes, Dim, Shape};
use crate::watch;

macro_rules! getter {
    ($name:ident, |$py:ident, $this:ident| $body:expr) => {
        unsafe extern "C" fn $name(a: Object, _: *mut c_void) -> Object {
            guard(|$py| {
                // SAFETY: the descriptor checked that this is a tensor.
                let Some($this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
                $body
            })
        }
    };
}

/// Who keeps the gradients of tensors that are no leaves, once one was asked for: `kept(tensor)` is
/// the gradient or None, `kept(tensor, gradient)` sets it.
static KEPT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Names who keeps the gradients of tensors that are no leaves.
#[pyfunction]
pub fn _keep_gradients(kept: Py<PyAny>) {
    Python::attach(|py| _ = KEPT.set(py, kept));
}

/// The class of row-sparse gradients.
fn row_sparse_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CLASS.import(py, "wengert._rows", "RowSparse")
}

/// Rows as an object.
fn row_sparse(py: Python<'_>, rows: Rows, shape: &Shape) -> PyResult<Py<PyAny>> {
    let [indices, values] =
        [rows.indices, rows.values].map(|array| tensor::wrap(py, Value::plain(array)));
    let shape = PyTuple::new(py, shape.sizes())?;
    let made = row_sparse_class(py)?.call_method1("_of", (indices?, values?, shape))?;
    Ok(made.unbind())
}

/// A gradient that is assigned.
enum New {
    Dense(Value),
    Rows(Rows),
}

/// Refuses a gradient that is not of its tensor's type or on another device.
fn check_gradient(py: Python<'_>, of: &TensorObject, g: &Array, shape: &Shape) -> PyResult<()> {
    let own = of.with(|value| value.array.clone());
    if !shape.equals(own.shape()) || g.dtype != own.dtype {
        let facts = format!("got {} {shape} for {} {}", g.dtype, own.dtype, own.shape());
        let what = "a gradient has its tensor's type";
        return Err(to_python(py, error::bad_shape("grad", what, facts)));
    }
    executors::common("grad", [&own, g]).map(drop).or_raise(py)
}

/// The rows of an object and the shape of their table, if it is a row-sparse gradient.
fn rows_of(v: &Bound<'_, PyAny>) -> PyResult<Option<(Rows, Shape)>> {
    let py = v.py();
    if !v.is_instance(row_sparse_class(py)?)? {
        return Ok(None);
    }
    let part = |name: &str| -> PyResult<Array> {
        let part = v.getattr(name)?;
        // SAFETY: a live object.
        match unsafe { tensor::downcast(part.as_ptr()) } {
            Some(part) => Ok(part.value().array),
            None => Err(convert::refuse("grad", &part)),
        }
    };
    let sizes: Vec<usize> = v.getattr("shape")?.extract()?;
    let rows = Rows { indices: part("indices")?, values: part("values")? };
    Ok(Some((rows, Shape::of(&sizes))))
}

/// The tensor as an object.
fn object<'py>(py: Python<'py>, this: &TensorObject) -> Bound<'py, PyAny> {
    // SAFETY: a live tensor, whose object it is.
    unsafe { Bound::from_borrowed_ptr(py, std::ptr::from_ref(this).cast_mut().cast()) }
}

fn is_entry(this: &TensorObject) -> bool {
    this.with(|value| matches!(value.history, History::Entry(..)))
}

getter!(get_shape, |py, this| {
    let (shape, value) = this.with(|value| {
        let open = trace::is_traced(&value.array).then(|| value.clone());
        (value.shape().clone(), open)
    });
    if let Some(value) = value
        && let Some(shape) = crate::py::node::open_shape(py, &value)?
    {
        return Ok(shape.into_ptr());
    }
    if shape.dims().iter().all(|dim| dim.known().is_some()) {
        return Ok(PyTuple::new(py, shape.sizes())?.into_ptr());
    }
    let sizes: PyResult<Vec<Py<PyAny>>> =
        shape.dims().iter().map(|&dim| size::object(py, dim)).collect();
    Ok(PyTuple::new(py, sizes?)?.into_ptr())
});
getter!(get_dtype, |py, this| {
    let object = dtype::object(py, this.with(|value| value.dtype()));
    Ok(object.map_or(null_mut(), |object| object.clone_ref(py).into_ptr()))
});
getter!(get_ndim, |py, this| {
    crate::py::node::check_rank(py, "ndim", this)?;
    // SAFETY: a new int.
    Ok(unsafe { ffi::PyLong_FromSize_t(this.with(|value| value.shape().rank())) })
});
getter!(get_size, |py, this| {
    crate::py::node::check_rank(py, "size", this)?;
    let shape = this.with(|value| value.shape().clone());
    let count = shape.dims().iter().fold(Dim::ONE, |n, &dim| n * dim);
    Ok(size::object(py, count)?.into_ptr())
});
getter!(get_itemsize, |_py, this| {
    // SAFETY: a new int.
    Ok(unsafe { ffi::PyLong_FromSize_t(this.with(|value| value.dtype().size())) })
});
getter!(get_nbytes, |py, this| {
    crate::py::node::check_rank(py, "nbytes", this)?;
    // SAFETY: a new int.
    Ok(unsafe {
        ffi::PyLong_FromSize_t(this.with(|value| value.shape().count() * value.dtype().size()))
    })
});
getter!(get_device, |py, this| {
    Ok(crate::py::host::device_object(py, this.with(Value::device))?.into_ptr())
});
getter!(get_requires_grad, |_py, this| {
    // SAFETY: a new reference to a bool.
    Ok(unsafe { ffi::PyBool_FromLong(this.with(|value| value.requires_grad()).into()) })
});
getter!(get_is_leaf, |_py, this| {
    let is_leaf = this.with(|value| !matches!(value.history, History::Entry(..)));
    // SAFETY: a new reference to a bool.
    Ok(unsafe { ffi::PyBool_FromLong(is_leaf.into()) })
});
getter!(get_grad, |py, this| {
    if let Some(kept) = KEPT.get(py)
        && is_entry(this)
    {
        return Ok(kept.call1(py, (object(py, this),))?.into_ptr());
    }
    let held = this.with(|value| match &value.history {
        History::Leaf(leaf) => leaf.held(),
        History::None | History::Entry(..) => Ok(None),
    });
    match held.or_raise(py)? {
        Some(Gradient::Dense(cell)) => Ok(tensor::wrap_shared(py, cell)?.into_ptr()),
        Some(Gradient::Rows(rows)) => {
            let shape = this.with(|value| value.shape().clone());
            Ok(row_sparse(py, *rows, &shape)?.into_ptr())
        }
        None => Ok(py.None().into_ptr()),
    }
});
getter!(get_t, |py, this| {
    if let Some(view) = exchanged(py, this, |rank| rank == 2)? {
        return Ok(view);
    }
    transposed(py, this, &TRANSPOSE, |value| Ok((0..value.shape().rank()).rev().collect()))
});
getter!(get_mt, |py, this| {
    if let Some(view) = exchanged(py, this, |rank| rank >= 2)? {
        return Ok(view);
    }
    transposed(py, this, &MATRIX_TRANSPOSE, |value| {
        let rank = value.shape().rank();
        if rank < 2 {
            return Err(error::bad_rank("mT", "x", "at least 2", value.shape()));
        }
        let mut axes: Axes = (0..rank).collect();
        axes.swap(rank - 2, rank - 1);
        Ok(axes)
    })
});

/// The last two axes exchanged, of a value that is looked at where it is and has such a rank.
/// `None` of others, of what is recorded, and where somebody watches.
fn exchanged(
    py: Python<'_>,
    this: &TensorObject,
    fits: impl FnOnce(usize) -> bool,
) -> PyResult<Option<Object>> {
    tensor::prepare(py)?;
    if watch::on() || trace::active() {
        return Ok(None);
    }
    // SAFETY: showing a value runs no code of the user's.
    let Some(value) = (unsafe { this.own_at_hand() }) else { return Ok(None) };
    let rank = value.shape().rank();
    if !fits(rank) || value.requires_grad() && tape::recording() {
        return Ok(None);
    }
    Ok(Some(tensor::new_view(Value::plain(value.array.exchanged(rank - 2, rank - 1)))))
}

/// The axes in the order that `axes` says. In a trace, where the rank may not be known yet, it is a
/// call of the table's function.
fn transposed(
    py: Python<'_>,
    this: &TensorObject,
    function: &Named,
    axes: impl FnOnce(&Value) -> error::Result<Axes>,
) -> PyResult<Object> {
    tensor::prepare(py)?;
    // SAFETY: showing a value runs no code of the user's.
    if let Some(value) = unsafe { this.own() } {
        return permuted(py, value, axes(value).or_raise(py)?);
    }
    let value = this.value();
    match trace::is_traced(&value.array) {
        true => function.call(py, [Held::Value(value)]),
        false => permuted(py, &value, axes(&value).or_raise(py)?),
    }
}

fn permuted(py: Python<'_>, value: &Value, axes: Axes) -> PyResult<Object> {
    let (op, record) = (Op::Permute(axes), tape::recording());
    match views::show(&op, value, record, tensor::new_view).or_raise(py)? {
        Some(view) => Ok(view),
        None => {
            let result = apply::apply(op, &[Operand::Value(value)], record).or_raise(py)?;
            Ok(tensor::new_view(result))
        }
    }
}

unsafe extern "C" fn set_requires_grad(a: Object, v: Object, _: *mut c_void) -> c_int {
    setter(a, v, "requires_grad", |py, this, v| {
        let wanted = v.extract::<bool>()?;
        let (has, is_entry) =
            this.with(|x| (x.requires_grad(), matches!(x.history, History::Entry(..))));
        if is_entry && !wanted {
            let what = "only a leaf can stop requiring a gradient";
            return Err(to_python(
                py,
                error::gradient("requires_grad", what, "use detach() for a result"),
            ));
        }
        if wanted && !has {
            this.update(|value| make_leaf("requires_grad", value)).or_raise(py)?;
        }
        if !wanted && has {
            drop(this.update(|value| std::mem::take(&mut value.history)));
        }
        Ok(())
    })
}

unsafe extern "C" fn set_grad(a: Object, v: Object, _: *mut c_void) -> c_int {
    setter(a, v, "grad", |py, this, v| {
        let leaf = this.with(|value| match &value.history {
            History::Leaf(leaf) => Some(leaf.clone()),
            History::None | History::Entry(..) => None,
        });
        // SAFETY: a live object.
        let new = match unsafe { tensor::downcast(v.as_ptr()) } {
            _ if v.is_none() => None,
            Some(g) => {
                let g = g.value();
                check_gradient(py, this, &g.array, g.shape())?;
                Some(New::Dense(g))
            }
            None => {
                let Some((rows, shape)) = rows_of(v)? else {
                    return Err(convert::refuse("grad", v));
                };
                check_gradient(py, this, &rows.values, &shape)?;
                Some(New::Rows(rows))
            }
        };
        match (leaf, new) {
            (Some(leaf), None) => leaf.set_gradient(None),
            (Some(leaf), Some(New::Rows(rows))) => leaf.set(Some(Gradient::Rows(Box::new(rows)))),
            // `x.grad *= 0.5` assigns the cell to itself.
            (Some(leaf), Some(New::Dense(g))) => match leaf.held().or_raise(py)? {
                Some(Gradient::Dense(cell)) => tensor::written(&mut cell.lock(), |old| *old = g),
                Some(Gradient::Rows(_)) | None => {
                    leaf.set_gradient(Some(std::sync::Arc::new(parking_lot::Mutex::new(g))));
                }
            },
            (None, None) => {
                if let Some(kept) = KEPT.get(py)
                    && is_entry(this)
                {
                    kept.call1(py, (object(py, this), py.None()))?;
                }
            }
            (None, Some(_)) => {
                let what = "only a leaf that requires a gradient has one";
                return Err(to_python(
                    py,
                    error::gradient("grad", what, "set requires_grad=True first"),
                ));
            }
        }
        Ok(())
    })
}

fn setter(
    a: Object,
    v: Object,
    name: &str,
    body: impl FnOnce(Python<'_>, &TensorObject, &Bound<'_, PyAny>) -> PyResult<()>,
) -> c_int {
    let mut done = false;
    guard(|py| {
        // SAFETY: the descriptor checked that this is a tensor; `v` is null for a deletion.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        if v.is_null() {
            return Err(PyValueError::new_err(format!("{name} cannot be deleted; assign None")));
        }
        let v = unsafe { Bound::from_borrowed_ptr(py, v) };
        body(py, this, &v)?;
        done = true;
        Ok(null_mut())
    });
    if done { 0 } else { -1 }
}

/// The attributes of the type.
pub fn attributes() -> Vec<ffi::PyGetSetDef> {
    let read = |name: &str, get: ffi::getter, doc: &str| ffi::PyGetSetDef {
        name: leak(name.into()),
        get: Some(get),
        set: None,
        doc: leak(doc.into()),
        closure: null_mut(),
    };
    let write = |name: &str, get: ffi::getter, set: ffi::setter, doc: &str| ffi::PyGetSetDef {
        set: Some(set),
        ..read(name, get, doc)
    };
    vec![
        read("shape", get_shape, "The sizes, outermost axis first."),
        read("dtype", get_dtype, "The element type."),
        read("device", get_device, "Where the value lies."),
        read("ndim", get_ndim, "The number of axes."),
        read("size", get_size, "The count of elements."),
        read("itemsize", get_itemsize, "Bytes of one element."),
        read("nbytes", get_nbytes, "Bytes of all elements."),
        read("T", get_t, "The axes in reverse order."),
        read("mT", get_mt, "The last two axes exchanged."),
        read("is_leaf", get_is_leaf, "Whether no recorded op made this value."),
        write(
            "requires_grad",
            get_requires_grad,
            set_requires_grad,
            "Whether backward reaches this value.",
        ),
        write("grad", get_grad, set_grad, "The accumulated gradient of a leaf, or None."),
        // SAFETY: an all-zero definition ends the list.
        unsafe { std::mem::zeroed() },
    ]
}
