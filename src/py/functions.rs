//! The table's functions and methods as Python callables.
//!
//! Every entry has a number; one generic trampoline, instantiated for each number, is both its
//! function and its method (whose object comes as the first argument).

use std::os::raw::c_int;
use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple};
use smallvec::SmallVec;

use super::arguments::{Held, Looked, Parsed, Signature, leak, scalar};
use super::elementwise::map_direct;
use super::errors::{OrRaise, to_python};
use super::interrupt::Unheard;
use super::recalled;
use super::tensor;
pub use super::unwind::{caught, guard};
use crate::engine::autocast;
use crate::engine::eager::{apply, views};
use crate::engine::executors::Device;
use crate::engine::random::Attempt;
use crate::engine::site;
use crate::engine::tape::{self, History, Leaf, Operand, Value};
use crate::engine::trace;
use crate::error;
use crate::ops::declare::{Attr, Classes, Composite, ParamKind, Returns};
use crate::ops::elementwise::Elementwise;
use crate::ops::emit::catch;
use crate::ops::op::Type;
use crate::ops::{Entry, table};
use crate::small::small;
use crate::threads;
use crate::watch;

/// Calls over operands with more elements than this let other threads run.
pub const DETACH_ABOVE: usize = 1 << 15;

static SIGNATURES: PyOnceLock<Vec<Signature>> = PyOnceLock::new();

unsafe extern "C" fn function<const I: usize>(
    _module: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter passes `count` arguments and one for each keyword.
    unsafe { enter(I, null_mut(), args, count, keywords) }
}

unsafe extern "C" fn method<const I: usize>(
    object: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: as above.
    unsafe { enter(I, object, args, count, keywords) }
}

unsafe fn enter(
    i: usize,
    object: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: as the interpreter promises.
        let named = if keywords.is_null() { 0 } else { unsafe { ffi::PyTuple_Size(keywords) } };
        let total = (count + named) as usize;
        // SAFETY: `total` pointers follow `args`; without arguments it may be null.
        let given =
            if total == 0 { &[][..] } else { unsafe { std::slice::from_raw_parts(args, total) } };
        let mut all: SmallVec<[*mut ffi::PyObject; 8]> = SmallVec::new();
        if !object.is_null() {
            all.push(object);
        }
        // One by one: few arguments are copied before a list has looked whether there are few.
        given.iter().for_each(|&argument| all.push(argument));
        let positional = all.len() - named as usize;
        let entry = table()[i];
        if let (Entry::Map(def), true) = (entry, keywords.is_null()) {
            // SAFETY: borrowed arguments, alive during the call.
            if let Some(result) = unsafe { map(py, def, &all)? } {
                return Ok(result);
            }
        }
        let Some(signature) = SIGNATURES.get(py).and_then(|all| all.get(i)) else {
            return Err(to_python(py, error::internal("the table is not ready")));
        };
        if let Entry::Composite(composite) = entry
            && !trace::active()
            && !watch::on()
        {
            // SAFETY: the list was just built in this form.
            let found = unsafe { direct(py, composite, signature, &all, positional, keywords)? };
            if let Some(result) = found {
                return Ok(result);
            }
        }
        let mut parsed = Parsed::default();
        // Nothing but parsing draws keys.
        let attempt = signature.draws.then(Attempt::begin);
        // SAFETY: the list was just built in this form.
        unsafe { signature.parse(py, &all, positional, keywords, &mut parsed)? };
        let result = call(py, entry, &parsed)?;
        if let Some(attempt) = attempt {
            attempt.done();
        }
        Ok(result)
    })
}

/// The hot path of elementwise functions: tensors and numbers, by position.
///
/// # Safety
/// The arguments are live objects.
unsafe fn map(
    py: Python<'_>,
    def: &'static Elementwise,
    args: &[*mut ffi::PyObject],
) -> PyResult<Option<*mut ffi::PyObject>> {
    if args.len() != def.params.len() {
        return Ok(None);
    }
    // SAFETY: as the caller's.
    let direct = unsafe {
        match *args {
            [x] => map_direct(py, def, [x])?,
            [x, y] => map_direct(py, def, [x, y])?,
            [x, y, z] => map_direct(py, def, [x, y, z])?,
            _ => None,
        }
    };
    if direct.is_some() {
        return Ok(direct);
    }
    let mut held: SmallVec<[Held; 3]> = SmallVec::new();
    for &arg in args {
        // SAFETY: as the caller's.
        let operand = match unsafe { tensor::downcast(arg) } {
            Some(tensor) => Held::Value(tensor.value()),
            None => match scalar(arg) {
                Some(scalar) => Held::Scalar(scalar.into()),
                None => return Ok(None),
            },
        };
        held.push(operand);
    }
    map_held(py, def, &held).map(Some)
}

/// The hot path of composites: operands that are read where they are. `None`, with nothing done,
/// where they are not such, where other threads of Python are let run meanwhile, and where more is
/// done with results.
///
/// # Safety
/// As for [`Signature::parse`]; no trace is open.
unsafe fn direct(
    py: Python<'_>,
    composite: &'static Composite,
    signature: &Signature,
    args: &[*mut ffi::PyObject],
    count: usize,
    keywords: *mut ffi::PyObject,
) -> PyResult<Option<*mut ffi::PyObject>> {
    if composite.returns != Returns::One || composite.requires_grad.is_some() {
        return Ok(None);
    }
    let mut call = recalled::Call::new(composite);
    // SAFETY: as the caller's; what is called again runs no Python code either.
    let found = unsafe { call.again(py, signature, args, count, keywords)? };
    if found.is_some() {
        return Ok(found);
    }
    // A view takes no longer of many elements.
    let limit = if composite.views { usize::MAX } else { DETACH_ABOVE };
    let mut looked = Looked::default();
    // SAFETY: as the caller's; formulas and the tape run no Python code, plans none while signals wait.
    if !unsafe { signature.look(py, args, count, keywords, limit, &mut looked)? } {
        return Ok(None);
    }
    let _unheard = Unheard::new();
    let Looked { attributes, operands } = &looked;
    if let ([Operand::Value(x)], true) = (operands.as_slice(), composite.views) {
        let view = views::call(composite, attributes, x, tape::recording(), tensor::new_object);
        if let Some(result) = view.or_raise(py)? {
            call.made(attributes, operands);
            return Ok(Some(result));
        }
        if x.shape().count() > DETACH_ABOVE {
            return Ok(None);
        }
    }
    if size_made(attributes) > DETACH_ABOVE {
        return Ok(None);
    }
    let found = autocast::call(composite, attributes, operands, tape::recording()).or_raise(py)?;
    call.made(attributes, operands);
    Ok(found.into_iter().next().map(tensor::new_object))
}

/// An elementwise op on parsed operands.
pub fn map_held(
    py: Python<'_>,
    def: &'static Elementwise,
    held: &[Held],
) -> PyResult<*mut ffi::PyObject> {
    let operands: SmallVec<[Operand<'_>; 3]> = small(held.iter().map(Held::operand));
    let value = detached(py, size_of(held), || apply::map(def, &operands)).or_raise(py)?;
    Ok(tensor::new_object(value))
}

/// How many elements operands have.
pub fn size_of(held: &[Held]) -> usize {
    let size = |held: &Held| match held {
        Held::Value(value) | Held::Data(value) => known_size(value),
        Held::Scalar(_) => 0,
    };
    held.iter().map(size).sum()
}

/// How many elements a value has, where it has any.
pub fn known_size(value: &Value) -> usize {
    if trace::is_traced(&value.array) { 0 } else { value.shape().count() }
}

/// No fewer elements than a function makes that is given sizes, among other numbers.
fn size_made(attributes: &[Attr]) -> usize {
    let mut size = 1_usize;
    let mut grow = |n: i64| size = size.saturating_mul(n.max(1) as usize);
    for attribute in attributes {
        match attribute {
            Attr::Int(n) => grow(*n),
            Attr::Ints(sizes) => sizes.iter().for_each(|&n| grow(n)),
            Attr::None
            | Attr::Bool(_)
            | Attr::Float(_)
            | Attr::Size(_)
            | Attr::Sizes(_)
            | Attr::DType(_)
            | Attr::Text(_)
            | Attr::Operands(_)
            | Attr::Operand => {}
        }
    }
    size
}

/// The size of work that may take long, however few elements it is given.
pub const ENDLESS: usize = usize::MAX;

/// Runs engine work; large work, of so many elements, with the interpreter released and the running
/// line pinned, and so that a signal breaks it off. It writes nothing that anybody sees before it
/// ends.
pub fn detached<T: Send>(
    py: Python<'_>,
    size: usize,
    work: impl FnOnce() -> error::Result<T> + Send,
) -> error::Result<T> {
    if trace::active() || size <= DETACH_ABOVE {
        return work();
    }
    let recording = tape::recording();
    let result = py.detach(long(work));
    debug_assert_eq!(recording, tape::recording());
    result
}

/// Engine work that may take long, to be run with the interpreter released: its line is pinned, and
/// a signal breaks it off. It writes nothing that anybody sees before it ends.
pub fn long<T>(work: impl FnOnce() -> error::Result<T>) -> impl FnOnce() -> error::Result<T> {
    let here = site::current();
    move || {
        let caught = || catch(work).and_then(|found| found);
        site::pinned(here, || threads::breakable(true, caught))
    }
}

/// Calls an entry with parsed arguments.
pub fn call(py: Python<'_>, entry: Entry, parsed: &Parsed) -> PyResult<*mut ffi::PyObject> {
    let composite = match entry {
        Entry::Map(def) => return map_held(py, def, &parsed.operands),
        Entry::Composite(composite) => composite,
    };
    let _on = parsed.device.map(Device::enter);
    let operands: SmallVec<[Operand<'_>; 4]> = small(parsed.operands.iter().map(Held::operand));
    let work = || autocast::call(composite, &parsed.attributes, &operands, tape::recording());
    let size = size_of(&parsed.operands).max(size_made(&parsed.attributes));
    let mut values = detached(py, size, work).or_raise(py)?;
    if composite.requires_grad.is_some_and(|i| parsed.attributes[i] == Attr::Bool(true)) {
        values.iter_mut().try_for_each(|value| make_leaf(composite.name, value)).or_raise(py)?;
    }
    if composite.returns == Returns::One {
        let value = values.into_iter().next();
        let value =
            value.ok_or_else(|| to_python(py, error::internal("a composite without a result")))?;
        return Ok(tensor::new_object(value));
    }
    let objects: PyResult<Vec<Py<PyAny>>> =
        values.into_iter().map(|value| tensor::wrap(py, value)).collect();
    Ok(PyTuple::new(py, objects?)?.into_ptr())
}

/// Makes a value a leaf that wants a gradient.
pub fn make_leaf(op: &str, value: &mut Value) -> error::Result<()> {
    if !value.dtype().is_float() {
        return Err(error::gradient_dtype(op, value.dtype()));
    }
    let ty = Type::new(value.dtype(), value.shape().clone());
    value.history = History::Leaf(std::sync::Arc::new(Leaf::new(ty)));
    Ok(())
}

macro_rules! trampolines {
    ($kind:ident: $($high:literal)+) => {
        [$(
            $kind::<{ $high * 8 }>, $kind::<{ $high * 8 + 1 }>, $kind::<{ $high * 8 + 2 }>,
            $kind::<{ $high * 8 + 3 }>, $kind::<{ $high * 8 + 4 }>, $kind::<{ $high * 8 + 5 }>,
            $kind::<{ $high * 8 + 6 }>, $kind::<{ $high * 8 + 7 }>,
        )+]
    };
}

/// Room for this many entries.
const ROOM: usize = 384;

static FUNCTIONS: [ffi::PyCFunctionFastWithKeywords; ROOM] = trampolines!(function:
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
    24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47);
static METHODS: [ffi::PyCFunctionFastWithKeywords; ROOM] = trampolines!(method:
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
    24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47);

/// What a signature calls the sizes of a shape after the first, where each is an argument.
const MORE_SIZES: &str = "sizes";

/// The signature as CPython reads it from a docstring.
fn signature_text(entry: Entry, is_method: bool) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut star = false;
    let variadic = Signature::find_variadic(entry.params());
    for (i, p) in entry.params().iter().enumerate() {
        if is_method && i == 0 {
            parts.push("$self".into());
            continue;
        }
        if p.keyword_only && !star {
            parts.push("*".into());
            star = true;
        }
        let several = variadic == Some(i);
        if several && p.kind == ParamKind::Tensors {
            parts.push(format!("*{}", p.name));
            star = true;
            continue;
        }
        parts.push(match p.default {
            Some(default) => format!("{}={default}", p.name),
            None => p.name.to_string(),
        });
        if several {
            parts.push(format!("*{MORE_SIZES}"));
            star = true;
        }
    }
    format!("{}({})", entry.name(), parts.join(", "))
}

fn docstring(entry: Entry, is_method: bool) -> *const std::os::raw::c_char {
    let text: Vec<&str> =
        entry.doc().lines().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    let mut text = text.join("\n").trim_end().to_string();
    if !entry.synonyms().is_empty() {
        text += &format!("\n\nAlso called `{}`.", entry.synonyms().join("`, `"));
    }
    leak(format!("{}\n--\n\n{text}", signature_text(entry, is_method)))
}

fn definition(
    name: &str,
    meth: ffi::PyCFunctionFastWithKeywords,
    doc: *const std::os::raw::c_char,
) -> ffi::PyMethodDef {
    const FLAGS: c_int = ffi::METH_FASTCALL | ffi::METH_KEYWORDS;
    ffi::PyMethodDef {
        ml_name: leak(name.to_string()),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: meth },
        ml_flags: FLAGS,
        ml_doc: doc,
    }
}

/// The definitions of the table's methods.
pub fn methods() -> Vec<ffi::PyMethodDef> {
    let entries = table().iter().enumerate().filter(|(_, entry)| entry.is_method());
    entries
        .map(|(i, entry)| definition(entry.name(), METHODS[i], docstring(*entry, true)))
        .collect()
}

/// Adds the table's functions to the module and its namespaces, and the lists of their names.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let entries = table();
    assert!(entries.len() <= ROOM, "more ops than trampolines: raise ROOM");
    let signature = |e: &Entry| Signature::new(py, e.name(), e.params(), e.unlike());
    let signatures = entries.iter().map(signature).collect();
    let _ = SIGNATURES.set(py, signatures);
    let spaces = PyDict::new(py);
    for (i, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.is_public()) {
        let home = match entry.namespace() {
            "" => module.clone(),
            space => match spaces.get_item(space)? {
                Some(found) => found.cast_into::<PyModule>()?,
                None => namespace(module, space, &spaces)?,
            },
        };
        let doc = docstring(*entry, false);
        let def = Box::leak(Box::new(definition(entry.name(), FUNCTIONS[i], doc)));
        let module_name = if entry.namespace().is_empty() {
            "wengert".into()
        } else {
            format!("wengert.{}", entry.namespace())
        };
        let module_name = pyo3::types::PyString::new(py, &module_name);
        // SAFETY: the definition lives for ever; the result is an owned reference or null.
        let object = unsafe {
            let object = ffi::PyCFunction_NewEx(def, home.as_ptr(), module_name.as_ptr());
            Bound::from_owned_ptr_or_err(py, object)?
        };
        let names = match home.getattr("__all__") {
            Ok(names) => names.cast_into::<PyList>()?,
            Err(_) => PyList::empty(py),
        };
        for &name in [entry.name()].iter().chain(entry.synonyms()) {
            home.setattr(name, &object)?;
            names.append(name)?;
        }
        home.setattr("__all__", names)?;
    }
    // A synonym is the same function, and the same method.
    let class = module.getattr("Tensor")?;
    for entry in entries.iter().filter(|entry| entry.is_method()) {
        for name in entry.synonyms() {
            class.setattr(*name, class.getattr(entry.name())?)?;
        }
    }
    Ok(())
}

fn namespace<'py>(
    module: &Bound<'py, PyModule>,
    name: &str,
    spaces: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyModule>> {
    let py = module.py();
    let full = format!("wengert._core.{name}");
    let space = PyModule::new(py, &full)?;
    module.setattr(name, &space)?;
    py.import("sys")?.getattr("modules")?.set_item(full, &space)?;
    spaces.set_item(name, &space)?;
    Ok(space)
}

fn annotation(kind: ParamKind) -> &'static str {
    match kind {
        ParamKind::Tensor(_) => "Tensor | ArrayLike",
        ParamKind::MaybeTensor(_) => "Tensor | ArrayLike | None",
        ParamKind::Tensors => "Sequence[Tensor | ArrayLike]",
        ParamKind::Bool => "bool",
        ParamKind::MaybeBool => "bool | None",
        ParamKind::Int => "int",
        ParamKind::MaybeInt => "int | None",
        ParamKind::Float => "float",
        ParamKind::MaybeFloat => "float | None",
        ParamKind::Number => "Scalar | Tensor",
        ParamKind::MaybeNumber => "Scalar | Tensor | None",
        ParamKind::Ints => "Axes",
        ParamKind::Pairs => "int | Sequence[int] | Sequence[Sequence[int]]",
        ParamKind::Shape => "int | Sequence[int]",
        ParamKind::DType => "DType",
        ParamKind::MaybeDType => "DType | None",
        ParamKind::Word(_) | ParamKind::Text => "str",
        ParamKind::Padding => "int | Sequence[int] | str",
        ParamKind::MaybeDevice => "str | Device | None",
        ParamKind::Key => "Tensor | None",
    }
}

fn class_text(classes: Classes) -> String {
    use crate::dtype::Class;
    let names = [(Class::Bool, "bool"), (Class::Int, "int"), (Class::Float, "float")];
    let held: Vec<&str> =
        names.iter().filter(|(c, _)| classes.contains(*c)).map(|(_, n)| *n).collect();
    held.join("|")
}

/// The table as data: what stubs, docs and tests are derived from.
#[pyfunction]
pub fn _op_table(py: Python<'_>) -> PyResult<Vec<Py<PyDict>>> {
    let public = table().iter().filter(|entry| entry.is_public());
    public.map(|entry| row(py, *entry).map(Bound::unbind)).collect()
}

fn row(py: Python<'_>, entry: Entry) -> PyResult<Bound<'_, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("name", entry.name())?;
    row.set_item("namespace", entry.namespace())?;
    row.set_item("synonyms", entry.synonyms().to_vec())?;
    row.set_item(
        "doc",
        entry
            .doc()
            .lines()
            .map(|l| l.strip_prefix(' ').unwrap_or(l))
            .collect::<Vec<_>>()
            .join("\n"),
    )?;
    row.set_item("method", entry.is_method())?;
    row.set_item("function", true)?;
    let params = PyList::empty(py);
    let classes = PyList::empty(py);
    let variadic = Signature::find_variadic(entry.params());
    for (i, p) in entry.params().iter().enumerate() {
        let param = PyDict::new(py);
        param.set_item("variadic", variadic == Some(i))?;
        param.set_item("name", p.name)?;
        param.set_item("kind", format!("{:?}", p.kind).split('(').next().unwrap_or_default())?;
        param.set_item("default", p.default)?;
        param.set_item("keyword_only", p.keyword_only)?;
        param.set_item("annotation", annotation(p.kind))?;
        params.append(param)?;
        if let ParamKind::Tensor(c) | ParamKind::MaybeTensor(c) = p.kind {
            let c = if let Entry::Map(def) = entry { def.classes } else { c };
            classes.append(class_text(c))?;
        }
    }
    row.set_item("params", params)?;
    row.set_item("classes", classes)?;
    match entry {
        Entry::Map(def) => {
            row.set_item("kind", "elementwise")?;
            row.set_item("returns", "Tensor")?;
            row.set_item("domain", def.domain.to_vec())?;
            row.set_item("condition", def.condition)?;
            row.set_item(
                "differentiable",
                def.vjp.iter().map(|rule| !rule.is_zero()).collect::<Vec<_>>(),
            )?;
            row.set_item("result", format!("{:?}", def.result).to_lowercase())?;
        }
        Entry::Composite(composite) => {
            let tensors = entry
                .params()
                .iter()
                .any(|p| matches!(p.kind, ParamKind::Tensor(_) | ParamKind::Tensors));
            row.set_item("kind", if tensors { "composite" } else { "create" })?;
            let returns =
                if composite.returns == Returns::One { "Tensor" } else { "tuple[Tensor, ...]" };
            row.set_item("returns", returns)?;
            row.set_item("domain", py.None())?;
            row.set_item("differentiable", py.None())?;
            row.set_item("own_gradient", composite.has_vjp())?;
            row.set_item("inline", composite.inline)?;
            row.set_item("views", composite.views)?;
            let precision = format!("{:?}", composite.precision).to_lowercase();
            row.set_item("precision", precision)?;
        }
    }
    Ok(row)
}

/// How many kernels the elementwise table is compiled to: formulas × register types × instruction
/// sets.
#[pyfunction]
pub fn _kernel_count() -> usize {
    use crate::dtype::Compute;
    let per_isa: usize = crate::ops::elementwise::tables()
        .map(|def| Compute::ALL.iter().filter(|c| def.kernel(**c).is_some()).count())
        .sum();
    per_isa * crate::simd::Isa::ALL.len()
}
