//! A private function for tests: the kernels of a graph's plan, one op a step.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::errors::OrRaise;
use super::files::bytes_of;
use crate::dtype::Scalar;
use crate::engine::executors;
use crate::error::{self, Result};
use crate::gpu::kernel::{Place, Refusal, View};
use crate::gpu::step::lower;
use crate::graph;
use crate::layout::Layout;
use crate::reference::plan::Reference;
use crate::schedule::{Number, Options, Plan, Source};
use crate::shape::Shape;

/// Where the elements of an input lie: sizes, strides in elements, and an offset.
type Strided = (Vec<usize>, Vec<isize>, usize);

/// A dispatch: the text, the words of the uniform buffer, the workgroups, and the names of the
/// memory that it binds.
type Dispatch = (String, Vec<u32>, [u32; 2], Vec<String>);

/// A result: the name of its memory, its dtype and its sizes.
type Output = (String, &'static str, Vec<usize>);

/// The kernels of a plan.
#[derive(Default)]
struct Kernels {
    dispatches: Vec<Dispatch>,
    /// Bytes of the memory beside inputs and constants
    memory: BTreeMap<String, usize>,
    refusals: Vec<Refusal>,
}

impl Kernels {
    fn of(plan: &Plan, layouts: &[Option<Strided>], numbers: &[Scalar]) -> Result<Kernels> {
        let mut all = Kernels::default();
        let view = |source| {
            let layout = match source {
                Source::Input(i) => layouts.get(i as usize).and_then(Option::as_ref),
                Source::Slot(_) | Source::Constant(_) => None,
            };
            let view = match layout {
                Some((sizes, strides, offset)) => {
                    View::of(&Layout::strided(Shape::of(sizes), strides, *offset))
                }
                None => View::dense(plan.ty(source).shape.dims()),
            };
            (source, view)
        };
        for (at, step) in plan.steps().iter().enumerate() {
            let lowered = lower(plan, step, &view)?;
            let number = |number: &Number| match *number {
                Number::Constant(value) => value,
                Number::Input(i) => numbers[i as usize],
            };
            let numbers: Vec<Scalar> = lowered.numbers.iter().map(number).collect();
            for (k, bytes) in lowered.kernel.scratch.iter().enumerate() {
                all.memory.insert(format!("scratch{at}.{k}"), bytes.value());
            }
            for &result in &step.results {
                let source = Source::Slot(result);
                let ty = plan.ty(source);
                all.memory.insert(name(source), ty.shape.count() * ty.dtype.size());
            }
            let slot = all.refusals.len() as u32;
            all.refusals.extend(lowered.kernel.refusal);
            for dispatch in &lowered.kernel.dispatches {
                dispatch.admit(&step.name())?;
                let named = |place: &Place| match *place {
                    Place::Range(i) => name(lowered.ranges[i]),
                    Place::Scratch(k) => format!("scratch{at}.{k}"),
                    Place::Faults => "faults".to_owned(),
                };
                let bound: Vec<String> = dispatch.bindings.iter().map(named).collect();
                let words = dispatch.words(&numbers, slot);
                if dispatch.invocations.value() > 0 {
                    all.dispatches.push((dispatch.text.clone(), words, dispatch.groups(), bound));
                }
            }
        }
        Ok(all)
    }

    /// The error that the first slot of faults which refuses something stands for.
    fn refused(&self, faults: &[u8]) -> Result<()> {
        let words = |slot: usize| -> [u32; 4] {
            std::array::from_fn(|word| {
                let at = 16 * slot + 4 * word;
                u32::from_le_bytes([faults[at], faults[at + 1], faults[at + 2], faults[at + 3]])
            })
        };
        for (slot, refusal) in self.refusals.iter().enumerate() {
            if faults.len() >= 16 * slot + 16 && words(slot)[0] != u32::MAX {
                return Err(refusal.error(words(slot)));
            }
        }
        Ok(())
    }
}

fn name(source: Source) -> String {
    match source {
        Source::Input(i) => format!("input{i}"),
        Source::Slot(i) => format!("slot{i}"),
        Source::Constant(i) => format!("constant{i}"),
    }
}

/// The compute shaders of the graph that a text says, one op a step, in order: the dispatches, the
/// bytes of the memory that they need beside the inputs `input0` and so on, the constants, the
/// results, and how many slots of faults there are. With `faults`, what dispatches wrote there, the
/// error that they stand for is raised.
#[pyfunction]
#[pyo3(signature = (text, layouts=Vec::new(), numbers=Vec::new(), faults=None))]
#[allow(clippy::type_complexity, reason = "a tuple for Python")]
fn _kernels(
    py: Python<'_>,
    text: &str,
    layouts: Vec<Option<Strided>>,
    numbers: Vec<f64>,
    faults: Option<&[u8]>,
) -> PyResult<(
    Vec<Dispatch>,
    BTreeMap<String, usize>,
    BTreeMap<String, Py<PyBytes>>,
    Vec<Output>,
    usize,
)> {
    let numbers: Vec<Scalar> = numbers.into_iter().map(Scalar::Float).collect();
    let made = || -> Result<_> {
        let (list, _) = graph::parse_on(text)?;
        let plan = Plan::of(&list, Options::new(&Reference))?;
        let kernels = Kernels::of(&plan, &layouts, &numbers)?;
        kernels.refused(faults.unwrap_or_default())?;
        let mut constants = BTreeMap::new();
        for (i, array) in plan.constants().iter().enumerate() {
            constants.insert(name(Source::Constant(i as u32)), executors::contiguous(array)?);
        }
        if plan.outputs().iter().any(|source| !matches!(source, Source::Slot(_))) {
            return Err(error::bad_value("_kernels", "a result is no step's", &plan));
        }
        Ok((plan, kernels, constants))
    };
    let (plan, kernels, constants) = made().or_raise(py)?;
    let output = |&source: &Source| {
        let ty = plan.ty(source);
        (name(source), ty.dtype.name(), ty.shape.sizes().to_vec())
    };
    let outputs = plan.outputs().iter().map(output).collect();
    let constants = constants
        .into_iter()
        .map(|(name, array)| (name, PyBytes::new(py, bytes_of(&array)).unbind()))
        .collect();
    Ok((kernels.dispatches, kernels.memory, constants, outputs, kernels.refusals.len()))
}

/// Adds the function to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_kernels, module)?)
}
