//! Graphs run node by node, for whoever wants to see the values on the way.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;

use super::errors::OrRaise;
use super::functions::long;
use super::tensor::{self, wrap};
use crate::array::Array;
use crate::device::Device;
use crate::dtype::Scalar;
use crate::engine::definition::resolve::Resolved;
use crate::engine::interpret::{Interpreter, Results};
use crate::engine::tape::Value;
use crate::engine::trace;
use crate::error;
use crate::graph::List;
use crate::ops::emit::{Id, catch};
use crate::shape::{Bindings, Scope};

/// A run of a graph that stops after each node. Every value stays.
#[pyclass(frozen, module = "wengert")]
pub struct Stepper {
    /// The nodes of the graph that the arguments stand for.
    #[pyo3(get)]
    inputs: Vec<u32>,
    device: Device,
    list: Arc<List>,
    /// What keeps its sizes
    #[expect(dead_code, reason = "it is there to be dropped")]
    scope: Scope,
    /// The nodes of the graph in order, each with the node of the list that has its value
    steps: Vec<(u32, Id)>,
    run: Mutex<Run>,
    /// What the nodes gave that are done
    done: Mutex<Vec<Results>>,
}

/// Who has the run. Neither lock is kept while Python objects are made or nodes computed: another
/// thread might wait for it with the interpreter in its hands.
enum Run {
    /// Nobody: it has no arguments yet
    Waiting,
    /// Nobody: it stands before a node
    Standing(Interpreter),
    /// A thread that computes a node
    Running,
}

impl Stepper {
    /// Stands before the first node of a list.
    pub fn new(device: Device, resolved: Resolved, inputs: Vec<u32>) -> Stepper {
        let Resolved { list, names, scope, .. } = resolved;
        let name = |(i, name): (usize, &Option<Id>)| name.map(|at| (i as u32, at));
        let steps = names.iter().enumerate().filter_map(name).collect();
        let (run, done) = (Mutex::new(Run::Waiting), Mutex::default());
        Stepper { inputs, device, list: Arc::new(list), scope, steps, run, done }
    }

    /// A run of a list that is the graph itself.
    pub fn of(run: Interpreter) -> Stepper {
        let (device, list, scope) = (run.device(), run.list().clone(), run.list().scope());
        let steps = (0..list.nodes.len() as u32).map(|i| (i, Id(i))).collect();
        let inputs = list.inputs().map(|id| id.0).collect();
        let (run, done) = (Mutex::new(Run::Standing(run)), Mutex::default());
        Stepper { inputs, device, list, scope, steps, run, done }
    }

    /// Takes the run, which whoever takes it puts back.
    fn take(&self) -> error::Result<Interpreter> {
        let mut run = self.run.lock();
        let (what, facts) = match std::mem::replace(&mut *run, Run::Running) {
            Run::Standing(run) => return Ok(run),
            Run::Running => ("it is computing on another thread", "one step at a time"),
            Run::Waiting => {
                *run = Run::Waiting;
                ("it has no arguments yet", "it was not started")
            }
        };
        Err(error::bad_graph("interpreter", what, facts))
    }

    /// Which step computes a node.
    fn place(&self, id: u32) -> Option<usize> {
        self.steps.binary_search_by_key(&id, |(node, _)| *node).ok()
    }

    /// Computes the next node: which one it was.
    fn advance(&self) -> error::Result<Option<u32>> {
        let mut run = self.take()?;
        let done = self.done.lock().len();
        let next = self.steps.get(done).copied();
        let result = match next {
            Some((_, at)) => {
                catch(|| trace::suspended(|| up_to(&mut run, at))).and_then(|result| result)
            }
            None => Ok(Results::new()),
        };
        if let (Some(_), Ok(results)) = (next, &result) {
            self.done.lock().push(results.clone());
        }
        *self.run.lock() = Run::Standing(run);
        result.map(|_| next.map(|(node, _)| node))
    }
}

#[pymethods]
impl Stepper {
    /// Gives the arguments, in the order of `inputs`.
    fn start(&self, py: Python<'_>, args: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let mut arrays: Vec<Array> = Vec::with_capacity(args.len());
        for object in &args {
            // SAFETY: a live object.
            let Some(tensor) = (unsafe { tensor::downcast(object.as_ptr()) }) else {
                return Err(super::convert::refuse("interpreter", object));
            };
            arrays.push(tensor.with_own(|value| value.array.clone()));
        }
        let numbers: &[Scalar] = &[];
        let sizes = Bindings::default();
        let run = Interpreter::start(self.device, &self.list, arrays, &sizes, numbers);
        let run = Run::Standing(run.or_raise(py)?);
        self.done.lock().clear();
        *self.run.lock() = run;
        Ok(())
    }

    /// The nodes in the order in which they are computed.
    fn nodes(&self) -> Vec<u32> {
        self.steps.iter().map(|(node, _)| *node).collect()
    }

    /// How many of them are computed.
    fn done(&self) -> usize {
        self.done.lock().len()
    }

    /// Whether a node is among them.
    fn has(&self, id: u32) -> bool {
        self.place(id).is_some()
    }

    /// Computes the next node: which one it was, or None after the last. After an error it stands
    /// where it stood.
    fn step(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        py.detach(long(|| self.advance())).or_raise(py)
    }

    /// What a node gave, if its turn has come: one tensor, the results of control flow, or nothing.
    fn values(&self, py: Python<'_>, id: u32) -> PyResult<Option<Vec<Py<PyAny>>>> {
        let results = self.place(id).and_then(|at| self.done.lock().get(at).cloned());
        let tensor = |array: Array| wrap(py, Value::plain(array));
        results.map(|results| results.into_iter().map(tensor).collect()).transpose()
    }
}

/// Computes nodes up to one that may be done already: what it gives.
fn up_to(run: &mut Interpreter, at: Id) -> error::Result<Results> {
    loop {
        if let Some(results) = run.value(at) {
            return Ok(results.clone());
        }
        if run.step()?.is_none() {
            return Err(error::internal(format!("%{} is not in the list", at.0)));
        }
    }
}

/// Adds the class to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Stepper>()
}
