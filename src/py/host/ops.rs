//! Ops whose code is written in Python.
//!
//! Python holds an op with its attributes in one object, which a call names: the code and the rules
//! are asked of it. A rule is traced once for types; the list it gives is what engine and passes
//! work with.

use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple, PyWeakref, PyWeakrefReference};
use rustc_hash::FxHashSet;
use smallvec::smallvec;

use crate::array::Array;
use crate::device::{self, Device};
use crate::dtype::DType;
use crate::engine::autocast;
use crate::engine::control;
use crate::engine::eager::apply::apply;
use crate::engine::random::Attempt;
use crate::engine::tape::{self, Operand, Value};
use crate::engine::trace::{self, Trace};
use crate::error::{self, Result};
use crate::fork::Lazy;
use crate::graph::{
    ControlFlow, ControlFlowKind, EffectClass, Formula, Host, HostOp, Signature, Types,
};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, Type};
use crate::py::control::{Body, outside, refuse_updates};
use crate::py::errors::{OrRaise, foreign, to_python};
use crate::py::functions::{ENDLESS, caught, detached};
use crate::py::interrupt::attached;
use crate::py::tensor::{value_of, wrap};
use crate::py::{dtype, size};
use crate::shape::{Dim, Shape};

/// How many rules of one op are remembered.
const REMEMBERED: usize = 64;

/// What a rule was traced for.
#[derive(Clone, PartialEq, Eq)]
struct Key {
    rule: &'static str,
    call: Signature,
    masks: (Vec<bool>, Vec<bool>),
    size: Option<Dim>,
    device: Device,
}

/// The rules of one op as lists, by what they were traced for; latest last.
#[pyclass(frozen, module = "wengert")]
#[derive(Default)]
struct HostRules(Arc<Mutex<Vec<(Key, Formula)>>>);

#[pymethods]
impl HostRules {
    #[new]
    fn new() -> HostRules {
        HostRules::default()
    }
}

/// The object that holds an op's code.
enum Code {
    Owned(Py<PyAny>),
    /// Somebody else keeps it
    Lent(Py<PyWeakref>),
}

/// An op written in Python, with its attributes.
struct PythonOp {
    name: &'static str,
    class: EffectClass,
    code: Code,
    /// The address of the object
    key: usize,
    rules: Arc<Mutex<Vec<(Key, Formula)>>>,
}

/// A name that stays. There are as many as programs write.
fn interned(name: &str) -> &'static str {
    static NAMES: Lazy<Mutex<FxHashSet<&'static str>>> = Lazy::new(Mutex::default);
    let mut names = NAMES.lock();
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.to_string().into_boxed_str());
    names.insert(name);
    name
}

fn refused<T>(result: PyResult<T>, py: Python<'_>) -> Result<T> {
    result.map_err(|exception| foreign(py, exception))
}

/// A tensor or nothing, from Python.
type Maybe = Option<Py<PyAny>>;

impl PythonOp {
    /// The object that holds the code.
    fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let found = match &self.code {
            Code::Owned(object) => Some(object.bind(py).clone()),
            Code::Lent(object) => object.bind(py).upgrade(),
        };
        found.ok_or_else(|| {
            to_python(py, error::internal(format!("the code of {} is gone", self.name)))
        })
    }

    fn with(&self, code: Code) -> Host {
        let (name, class, key) = (self.name, self.class, self.key);
        Host(Arc::new(PythonOp { name, class, code, key, rules: self.rules.clone() }))
    }

    /// The types of the results, as the type rule says.
    fn inferred(&self, py: Python<'_>, operands: &[Type]) -> PyResult<Types> {
        let mut given = Vec::with_capacity(operands.len());
        for ty in operands {
            let dims = ty.shape.dims().iter().map(|&dim| size::object(py, dim));
            let shape = PyTuple::new(py, dims.collect::<PyResult<Vec<_>>>()?)?;
            given.push((shape, dtype::object(py, ty.dtype).map(|dtype| dtype.clone_ref(py))));
        }
        let found = self.object(py)?.call_method1("infer", (PyList::new(py, given)?,))?;
        let mut types = Types::new();
        for result in found.try_iter()? {
            let (shape, dtype): (Bound<'_, PyAny>, Bound<'_, PyAny>) = result?.extract()?;
            let sizes = shape.try_iter()?.map(|n| size::declared(self.name, &n?));
            let shape: Shape = sizes.collect::<PyResult<Vec<Dim>>>()?.into_iter().collect();
            let dtype = dtype::extract(self.name, &dtype)?;
            if dtype == DType::BF16 {
                return Err(to_python(py, without_array(self.name, "a result", dtype)));
            }
            types.push(Type::new(dtype, shape));
        }
        Ok(types)
    }

    /// Runs the code: tensors over the operands become arrays of NumPy in Python.
    fn ran(&self, py: Python<'_>, operands: &[&Array], results: &[Type]) -> PyResult<Vec<Array>> {
        let _on = Device::Cpu.enter();
        let given: PyResult<Vec<Py<PyAny>>> =
            operands.iter().map(|&x| wrap(py, Value::plain(x.clone()))).collect();
        let dtypes: Vec<&str> = results.iter().map(|ty| ty.dtype.name()).collect();
        let found = self.object(py)?.call_method1("run", (given?, dtypes))?;
        found.try_iter()?.map(|y| Ok(value_of(self.name, &y?)?.array)).collect()
    }

    /// Whether there is a rule of this name.
    fn has(&self, py: Python<'_>, rule: &'static str) -> PyResult<bool> {
        self.object(py)?.call_method1("has", (rule,))?.is_truthy()
    }

    /// A rule as a list: remembered, or traced on inputs of these types. `call` takes tensors and
    /// gives some; those wanted have these types.
    fn formula(
        &self,
        key: Key,
        inputs: &[Type],
        wanted: &[Option<Type>],
        call: impl FnOnce(Python<'_>, Vec<Py<PyAny>>) -> PyResult<Bound<'_, PyAny>>,
    ) -> Result<Option<Formula>> {
        attached(|py| {
            if !refused(self.has(py, key.rule), py)? {
                return Ok(None);
            }
            if let Some((_, known)) = self.rules.lock().iter().find(|(known, _)| *known == key) {
                return Ok(Some(known.clone()));
            }
            let found = refused(self.traced(py, key.rule, inputs, wanted, call), py)?;
            let is_open = |ty: &Type| !ty.shape.is_known();
            // Sizes that are open, and what is read outside, belong to this call. Ops of the host
            // would keep objects alive that the collector of cycles does not see.
            let is_lasting =
                found.outside.is_empty() && !inputs.iter().any(is_open) && !found.list.calls_host();
            if is_lasting {
                let mut rules = self.rules.lock();
                if rules.len() >= REMEMBERED {
                    rules.remove(0);
                }
                rules.push((key, found.clone()));
            }
            Ok(Some(found))
        })
    }

    fn traced(
        &self,
        py: Python<'_>,
        rule: &str,
        inputs: &[Type],
        wanted: &[Option<Type>],
        call: impl FnOnce(Python<'_>, Vec<Py<PyAny>>) -> PyResult<Bound<'_, PyAny>>,
    ) -> PyResult<Formula> {
        let name = format!("{}.{rule}", self.name);
        let _as_written = autocast::suspended();
        let trace = Trace::within();
        trace.settle_device(&name, trace.device()).or_raise(py)?;
        let entered = trace.enter();
        let mut given = Vec::with_capacity(inputs.len());
        for ty in inputs {
            given.push(wrap(py, trace.input(ty.clone()).or_raise(py)?)?);
        }
        // What the rule computes without recording is cut off for derivatives of it, too.
        let recording = tape::recording_as(true);
        let traced = self.outputs(py, &name, &trace, wanted, || call(py, given));
        drop(recording);
        let (outputs, places) = traced?;
        let captures = trace.captures();
        refuse_updates(&name, &trace, &captures).or_raise(py)?;
        drop(entered);
        if let Some(outer) = trace::top() {
            let looked = trace.read(|graph| graph.looked().to_vec());
            outer.read(|graph| graph.looks_at_all(&looked));
        }
        let (mut list, _) = trace.close();
        list.outputs = outputs;
        let mut read: Vec<Arc<dyn std::any::Any + Send + Sync>> = Vec::new();
        for capture in &captures {
            read.push(Arc::new(outside(py, capture)?));
        }
        Ok(Formula { list: Arc::new(list), outside: read, places })
    }

    /// The nodes of what a rule gives, and where those wanted are among them.
    fn outputs<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        trace: &Arc<Trace>,
        wanted: &[Option<Type>],
        call: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<(Vec<Id>, Vec<Option<usize>>)> {
        let found: Vec<Maybe> = call()?.extract()?;
        let mut nodes: Vec<Arg> = Vec::new();
        let mut places = Vec::with_capacity(wanted.len());
        for (i, (y, want)) in found.iter().zip(wanted).enumerate() {
            let (Some(y), Some(want)) = (y, want) else {
                places.push(None);
                continue;
            };
            let value = value_of(name, y.bind(py))?;
            let value = self.fitted(name, i, value, want).or_raise(py)?;
            places.push(Some(nodes.len()));
            nodes.push(Arg::Node(trace.node(name, &value).or_raise(py)?));
        }
        trace.settle(&mut nodes).or_raise(py)?;
        let ids = nodes.into_iter().filter_map(|arg| match arg {
            Arg::Node(id) => Some(id),
            Arg::Number(_) => None,
        });
        Ok((ids.collect(), places))
    }

    /// What a rule gave, in the dtype that is wanted.
    fn fitted(&self, name: &str, i: usize, value: Value, want: &Type) -> Result<Value> {
        if !value.shape().equals(&want.shape) {
            let facts = format!("number {i}: got {}, wanted {}", value.shape(), want.shape);
            return Err(error::bad_shape(name, "the rule gave another shape", facts));
        }
        if value.dtype() == want.dtype {
            return Ok(value);
        }
        if value.dtype().is_float() != want.dtype.is_float() {
            let got = format!("{} for number {i}", value.dtype());
            return Err(error::dtype_mismatch(name, got, want.dtype));
        }
        apply(Op::Cast(want.dtype), &[Operand::Value(&value)], true)
    }
}

/// The refusal of a dtype that NumPy does not have.
fn without_array(op: &str, what: &str, dtype: DType) -> error::Error {
    error::not_taken(op, dtype, what, "one of NumPy's")
}

/// Lists of tensors for Python: the first few, and so on.
fn split<'py>(
    py: Python<'py>,
    all: &[Py<PyAny>],
    call: &Signature,
) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>, usize)> {
    let (n, m) = (call.operands.len(), call.results.len());
    Ok((PyList::new(py, &all[..n])?, PyList::new(py, &all[n..n + m])?, n + m))
}

/// Where `mask` holds the next of some objects, elsewhere nothing.
fn spread<'py>(
    py: Python<'py>,
    objects: &[Py<PyAny>],
    mask: &[bool],
) -> PyResult<Bound<'py, PyList>> {
    let mut next = objects.iter();
    let one = |&here: &bool| if here { next.next().map(|x| x.clone_ref(py)) } else { None };
    PyList::new(py, mask.iter().map(one).collect::<Vec<Maybe>>())
}

/// The types at which a mask holds.
fn chosen(types: &[Type], mask: &[bool]) -> Vec<Option<Type>> {
    types.iter().zip(mask).map(|(ty, &here)| here.then(|| ty.clone())).collect()
}

impl HostOp for PythonOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn class(&self) -> EffectClass {
        self.class
    }

    fn key(&self) -> usize {
        self.key
    }

    fn kept(&self) -> Host {
        Python::attach(|py| match (&self.code, self.object(py)) {
            (Code::Lent(_), Ok(object)) => self.with(Code::Owned(object.unbind())),
            (Code::Owned(object), _) => self.with(Code::Owned(object.clone_ref(py))),
            (Code::Lent(object), Err(_)) => self.with(Code::Lent(object.clone_ref(py))),
        })
    }

    fn lent(&self) -> Host {
        Python::attach(|py| {
            let weak = self.object(py).and_then(|object| PyWeakrefReference::new(&object));
            let weak = weak.ok().and_then(|weak| weak.into_any().cast_into::<PyWeakref>().ok());
            match (&self.code, weak) {
                (Code::Owned(_), Some(weak)) => self.with(Code::Lent(weak.unbind())),
                (Code::Owned(object), None) => self.with(Code::Owned(object.clone_ref(py))),
                (Code::Lent(object), _) => self.with(Code::Lent(object.clone_ref(py))),
            }
        })
    }

    fn object(&self) -> Option<*mut c_void> {
        Python::attach(|py| self.object(py).ok().map(|object| object.as_ptr().cast()))
    }

    fn infer(&self, operands: &[Type]) -> Result<Types> {
        attached(|py| refused(self.inferred(py, operands), py))
    }

    fn run(&self, operands: &[&Array], results: &[Type]) -> Result<Vec<Array>> {
        attached(|py| {
            let _recording = tape::recording_as(true);
            let found = trace::suspended(|| self.ran(py, operands, results));
            refused(found, py)
        })
    }

    fn has_vjp(&self) -> bool {
        attached(|py| self.has(py, "vjp").unwrap_or(false))
    }

    fn vjp(&self, call: &Signature, given: &[bool], wanted: &[bool]) -> Result<Option<Formula>> {
        let masks = (given.to_vec(), wanted.to_vec());
        let key = self.key_of("vjp", call, masks, None);
        let seeds = call.results.iter().zip(given).filter(|(_, given)| **given).map(|(ty, _)| ty);
        let inputs: Vec<Type> =
            call.operands.iter().chain(&call.results).chain(seeds).cloned().collect();
        let results = chosen(&call.operands, wanted);
        self.formula(key, &inputs, &results, |py, tensors| {
            let (xs, ys, rest) = split(py, &tensors, call)?;
            let g = spread(py, &tensors[rest..], given)?;
            self.object(py)?.call_method1("pull", (g, xs, ys))
        })
    }

    fn jvp(&self, call: &Signature, has: &[bool]) -> Result<Option<Formula>> {
        let key = self.key_of("jvp", call, (has.to_vec(), Vec::new()), None);
        let moved = call.operands.iter().zip(has).filter(|(_, has)| **has).map(|(ty, _)| ty);
        let inputs: Vec<Type> =
            call.operands.iter().chain(&call.results).chain(moved).cloned().collect();
        let floats: Vec<bool> = call.results.iter().map(|ty| ty.dtype.is_float()).collect();
        self.formula(key, &inputs, &chosen(&call.results, &floats), |py, tensors| {
            let (xs, ys, rest) = split(py, &tensors, call)?;
            let t = spread(py, &tensors[rest..], has)?;
            self.object(py)?.call_method1("push", (t, xs, ys))
        })
    }

    fn batch(&self, call: &Signature, mapped: &[bool], size: Dim) -> Result<Option<Formula>> {
        let stacked = |ty: &Type| {
            let dims = std::iter::once(size).chain(ty.shape.dims().iter().copied());
            Type::new(ty.dtype, dims.collect::<Shape>())
        };
        let own = |(ty, &mapped): (&Type, &bool)| if mapped { stacked(ty) } else { ty.clone() };
        let key = self.key_of("batch", call, (mapped.to_vec(), Vec::new()), Some(size));
        let inputs: Vec<Type> = call.operands.iter().zip(mapped).map(own).collect();
        let results: Vec<Option<Type>> = call.results.iter().map(|ty| Some(stacked(ty))).collect();
        let found = self.formula(key, &inputs, &results, |py, tensors| {
            let mapped = PyTuple::new(py, mapped)?;
            self.object(py)?.call_method1("spread", (mapped, tensors, results.len()))
        })?;
        match found {
            Some(formula) if formula.places.contains(&None) => {
                let what = "the rule gives every result, each with its examples in front";
                let name = format!("{}.batch", self.name);
                Err(error::bad_value(name, what, "got None"))
            }
            found => Ok(found),
        }
    }
}

impl PythonOp {
    fn key_of(
        &self,
        rule: &'static str,
        call: &Signature,
        masks: (Vec<bool>, Vec<bool>),
        size: Option<Dim>,
    ) -> Key {
        Key { rule, call: call.clone(), masks, size, device: device::current() }
    }
}

/// Refuses what names no class of effects.
#[pyfunction]
fn _check_effect(py: Python<'_>, op: &str, effect: &str) -> PyResult<()> {
    EffectClass::named(op, effect).or_raise(py).map(drop)
}

/// Calls an op of the host: its results.
#[pyfunction]
fn _host_call(
    py: Python<'_>,
    object: Py<PyAny>,
    rules: PyRef<'_, HostRules>,
    name: &str,
    effect: &str,
    operands: Vec<Bound<'_, PyAny>>,
) -> PyResult<Vec<Py<PyAny>>> {
    let class = EffectClass::named(name, effect).or_raise(py)?;
    let key = object.as_ptr().addr();
    let code = Code::Owned(object);
    let op = PythonOp { name: interned(name), class, code, key, rules: rules.0.clone() };
    caught(py, || {
        let attempt = Attempt::begin();
        let args = operands.iter().map(|x| value_of(name, x)).collect::<PyResult<Vec<Value>>>()?;
        for (i, x) in args.iter().enumerate() {
            if x.dtype() == DType::BF16 {
                let what = format!("operand {i}");
                return Err(to_python(py, without_array(name, &what, x.dtype())));
            }
        }
        let types: Vec<Type> =
            args.iter().map(|x| Type::new(x.dtype(), x.shape().clone())).collect();
        let results = op.inferred(py, &types)?;
        let kind = ControlFlowKind::Host(Host(Arc::new(op)));
        let flow = ControlFlow { kind, bodies: Default::default(), results };
        let found = detached(py, ENDLESS, || control::run(&flow, args, &[])).or_raise(py)?;
        attempt.done();
        found.into_iter().map(|value| wrap(py, value)).collect()
    })
}

/// Calls a function that was traced, whose rules are those of `object`: its results.
#[pyfunction]
fn _ruled_call(
    py: Python<'_>,
    object: Py<PyAny>,
    rules: PyRef<'_, HostRules>,
    name: &str,
    body: PyRef<'_, Body>,
    operands: Vec<Bound<'_, PyAny>>,
) -> PyResult<Vec<Py<PyAny>>> {
    let key = object.as_ptr().addr();
    let (class, code) = (EffectClass::Pure, Code::Owned(object));
    let op = PythonOp { name: interned(name), class, code, key, rules: rules.0.clone() };
    caught(py, || {
        let attempt = Attempt::begin();
        let args = operands.iter().map(|x| value_of(name, x)).collect::<PyResult<Vec<Value>>>()?;
        let args = args.into_iter().chain(body.outside().or_raise(py)?).collect();
        let results = body.list.outputs.iter().map(|id| body.list.node(*id).ty.clone()).collect();
        let kind = ControlFlowKind::Host(Host(Arc::new(op)));
        let flow = ControlFlow { kind, bodies: smallvec![body.list.clone()], results };
        let found = control::run(&flow, args, &[]).or_raise(py)?;
        attempt.done();
        found.into_iter().map(|value| wrap(py, value)).collect()
    })
}

/// Adds what is here to the module.
pub(super) fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<HostRules>()?;
    module.add_function(pyo3::wrap_pyfunction!(_ruled_call, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_host_call, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_check_effect, module)?)
}
