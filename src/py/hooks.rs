//! Private functions for tests: programs of elementwise ops op by op and as one plan, shaders,
//! plans.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use smallvec::SmallVec;

use super::arguments::scalar;
use super::errors::{OrRaise, to_python};
use super::tensor;
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::engine::eager::apply;
use crate::engine::executors;
use crate::engine::tape::{Operand, Value};
use crate::error::{self, Result};
use crate::gpu;
use crate::gpu::kernel::View;
use crate::graph::Graph;
use crate::layout::Layout;
use crate::ops::elementwise::{self, Elementwise};
use crate::ops::emit::{Arg, Expr};
use crate::ops::op::Type;
use crate::schedule::{Number, Plan, Source};
use crate::shape::Shape;

/// A step of a program: an op, and its operands.
type Step = (&'static Elementwise, SmallVec<[Place; 3]>);

/// An operand: `(i,)` in Python is the value `i`, a number is itself.
enum Place {
    Value(usize),
    Number(Scalar),
}

fn find(name: &str) -> Result<&'static Elementwise> {
    let found = elementwise::tables().find(|def| def.name == name);
    found.ok_or_else(|| error::bad_value("_run_program", "unknown op", name))
}

fn place(object: &Bound<'_, PyAny>, known: usize) -> PyResult<Place> {
    if let Ok(tuple) = object.cast::<PyTuple>() {
        let i: usize = tuple.get_item(0)?.extract()?;
        let unknown = || error::bad_value("_run_program", "no such value", i);
        return if i < known {
            Ok(Place::Value(i))
        } else {
            Err(to_python(object.py(), unknown()))
        };
    }
    let unknown = || error::bad_type("_run_program", "expected (i,) or a number", object);
    scalar(object.as_ptr()).map(Place::Number).ok_or_else(|| to_python(object.py(), unknown()))
}

fn values(inputs: &[Bound<'_, PyAny>]) -> PyResult<Vec<Value>> {
    let value = |object: &Bound<'_, PyAny>| {
        // SAFETY: a live object.
        let found = unsafe { tensor::downcast(object.as_ptr()) }.map(|tensor| tensor.value());
        let other = || error::bad_type("_run_program", "expected a tensor", object);
        found.ok_or_else(|| to_python(object.py(), other()))
    };
    inputs.iter().map(value).collect()
}

fn parse(steps: Vec<(String, Vec<Bound<'_, PyAny>>)>, inputs: usize) -> PyResult<Vec<Step>> {
    let mut out = Vec::new();
    for (i, (name, operands)) in steps.into_iter().enumerate() {
        let places = operands.iter().map(|x| place(x, inputs + i)).collect::<PyResult<_>>()?;
        Python::attach(|py| find(&name).or_raise(py)).map(|def| out.push((def, places)))?;
    }
    Ok(out)
}

fn op_by_op(inputs: Vec<Value>, steps: &[Step]) -> Result<Vec<Array>> {
    let first = inputs.len();
    let mut values = inputs;
    for (def, places) in steps {
        let y = {
            let mut operands: SmallVec<[Operand<'_>; 3]> = SmallVec::new();
            for place in places {
                operands.push(match *place {
                    Place::Value(i) => Operand::Value(&values[i]),
                    Place::Number(value) => Operand::Scalar(value.into()),
                });
            }
            apply::map(def, &operands)?
        };
        values.push(y);
    }
    Ok(values.drain(first..).map(|value| value.array).collect())
}

/// The graph of a program; floats are its numeric inputs. Its results are the last values,
/// converted to a dtype if one is given.
fn build(
    types: Vec<Type>,
    steps: &[Step],
    results: Option<usize>,
    to: Option<DType>,
) -> Result<(Graph, Vec<Scalar>)> {
    let (graph, mut numbers) = (Graph::new(), Vec::new());
    graph.build(|| {
        let mut values: Vec<Expr<'_>> =
            types.into_iter().map(|ty| Expr::new(&graph, Arg::Node(graph.input(ty)))).collect();
        let first = values.len();
        for (def, places) in steps {
            let args: SmallVec<[Expr<'_>; 3]> = places
                .iter()
                .map(|place| match *place {
                    Place::Value(i) => values[i],
                    Place::Number(value @ Scalar::Float(_)) => {
                        numbers.push(value);
                        Expr::new(&graph, graph.number())
                    }
                    Place::Number(value) => Expr::new(&graph, Arg::Number(value.into())),
                })
                .collect();
            values.push(def.call(&args));
        }
        let last = values.len() - results.unwrap_or(values.len() - first);
        values.drain(last..).map(|y| to.map_or(y, |dtype| y.cast(dtype))).collect()
    })?;
    Ok((graph, numbers))
}

fn type_of(value: &Value) -> Type {
    Type::new(value.dtype(), value.shape().clone())
}

/// Runs a program of elementwise ops on tensors: the values of all steps. Steps are
/// `(name, operands)`; an operand is a number or `(i,)`, the value `i` counted over inputs, then
/// steps. `fused` runs it as one plan.
#[pyfunction]
fn _run_program(
    py: Python<'_>,
    inputs: Vec<Bound<'_, PyAny>>,
    steps: Vec<(String, Vec<Bound<'_, PyAny>>)>,
    fused: bool,
) -> PyResult<Vec<Py<PyAny>>> {
    let inputs = values(&inputs)?;
    let steps = parse(steps, inputs.len())?;
    let run = || -> Result<Vec<Array>> {
        if !fused {
            return op_by_op(inputs, &steps);
        }
        let (graph, numbers) = build(inputs.iter().map(type_of).collect(), &steps, None, None)?;
        graph.verify()?;
        let arrays: Vec<&Array> = inputs.iter().map(|value| &value.array).collect();
        Ok(executors::run(&graph, &arrays, &numbers)?.into_vec())
    };
    let arrays = run().or_raise(py)?;
    arrays.into_iter().map(|array| tensor::wrap(py, Value::plain(array))).collect()
}

/// The plan of a program as text, one line a step.
#[pyfunction]
fn _plan_text(
    py: Python<'_>,
    inputs: Vec<Bound<'_, PyAny>>,
    steps: Vec<(String, Vec<Bound<'_, PyAny>>)>,
) -> PyResult<String> {
    let inputs = values(&inputs)?;
    let steps = parse(steps, inputs.len())?;
    let text = build(inputs.iter().map(type_of).collect(), &steps, Some(1), None)
        .and_then(|(graph, _)| Plan::new(&graph, executors::target(executors::Device::Cpu)))
        .map(|plan| plan.to_string());
    text.or_raise(py)
}

/// The memory of an operand: its dtype, sizes, strides in elements, and offset.
type Memory<'py> = (Bound<'py, PyAny>, Vec<usize>, Vec<isize>, usize);

/// The compute shader of a program that is one group, on operands in ranges of their own, and what
/// to dispatch: the text, the words of the uniform buffer, the workgroups, and the dtype of each
/// result, which is `to` if that is given. Results have ranges behind the operands.
#[pyfunction]
#[pyo3(signature = (inputs, steps, results, to=None))]
#[allow(clippy::type_complexity, reason = "a tuple for Python")]
fn _shader(
    py: Python<'_>,
    inputs: Vec<Memory<'_>>,
    steps: Vec<(String, Vec<Bound<'_, PyAny>>)>,
    results: usize,
    to: Option<Bound<'_, PyAny>>,
) -> PyResult<(String, Vec<u32>, [u32; 2], Vec<&'static str>)> {
    let (mut types, mut layouts) = (Vec::new(), Vec::new());
    for (dtype, sizes, strides, offset) in inputs {
        let shape = Shape::of(&sizes);
        types.push(Type::new(super::dtype::extract("_shader", &dtype)?, shape.clone()));
        layouts.push(Layout::strided(shape, &strides, offset));
    }
    let to = to.map(|dtype| super::dtype::extract("_shader", &dtype)).transpose()?;
    let steps = parse(steps, types.len())?;
    let made = || -> Result<_> {
        let (graph, numbers) = build(types, &steps, Some(results), to)?;
        let plan = Plan::new(&graph, executors::target(executors::Device::Cpu))?;
        let [step] = plan.steps() else {
            return Err(error::bad_value("_shader", "the program is not one step", &plan));
        };
        let place = |source| {
            let view = match source {
                Source::Input(i) => View::of(&layouts[i as usize]),
                Source::Slot(_) | Source::Constant(_) => View::dense(plan.ty(source).shape.dims()),
            };
            (source, view)
        };
        let gpu::step::Lowered { kernel, numbers: used, .. } =
            gpu::step::lower(&plan, step, &place)?;
        let used: Vec<Scalar> = used
            .iter()
            .map(|&number| match number {
                Number::Constant(value) => value,
                Number::Input(i) => numbers[i as usize],
            })
            .collect();
        let made = &kernel.dispatches[0];
        let names = plan.outputs().iter().map(|&source| plan.ty(source).dtype.name());
        Ok((made.text.clone(), made.words(&used, 0), made.groups(), names.collect()))
    };
    made().or_raise(py)
}

/// Adds the functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_run_program, module)?)?;
    module.add_function(wrap_pyfunction!(_plan_text, module)?)?;
    module.add_function(wrap_pyfunction!(_shader, module)?)
}
