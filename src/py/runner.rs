//! What a session runs: the list of some fetches, with its plans.

use pyo3::prelude::*;
use pyo3::types::PyList;
use smallvec::{SmallVec, smallvec};

use super::errors::OrRaise;
use super::functions::long;
use super::tensor::{self, wrap};
use crate::array::Array;
use crate::engine::program::Program;
use crate::engine::site;
use crate::engine::tape::Value;

/// A list with its plan, for feeds of known types.
#[pyclass(frozen, module = "wengert")]
pub struct Runner {
    /// The nodes of the graph that the arguments stand for.
    #[pyo3(get)]
    inputs: Vec<u32>,
    program: Program,
}

impl Runner {
    pub(super) fn new(inputs: Vec<u32>, program: Program) -> Runner {
        Runner { inputs, program }
    }
}

#[pymethods]
impl Runner {
    fn __call__(&self, py: Python<'_>, args: Vec<Bound<'_, PyAny>>) -> PyResult<Py<PyList>> {
        let mut inputs: SmallVec<[Array; 8]> = smallvec![];
        for object in &args {
            // SAFETY: a live object.
            let Some(tensor) = (unsafe { tensor::downcast(object.as_ptr()) }) else {
                return Err(super::convert::refuse("session.run", object));
            };
            inputs.push(tensor.with_own(|value| value.array.clone()));
        }
        let work = || {
            let arrays: SmallVec<[&Array; 8]> = inputs.iter().collect();
            self.program.run(&arrays, &[], &[])
        };
        let found = py.detach(long(work)).or_raise(py)?;
        let objects: PyResult<Vec<Py<PyAny>>> =
            found.into_iter().map(|array| wrap(py, Value::plain(array))).collect();
        Ok(PyList::new(py, objects?)?.unbind())
    }

    /// The list as text.
    fn text(&self) -> String {
        self.program.list().print_short(site::describe)
    }

    /// The plan as text.
    fn plan_text(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.program.plan(&[]).or_raise(py)?.to_string())
    }
}
