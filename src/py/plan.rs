//! Plans as Python objects: what runs, and what it needs.

use std::sync::Arc;

use pyo3::prelude::*;

use super::errors::OrRaise;
use super::site::{location, scope_text};
use crate::engine::site::describe;
use crate::gpu::kernel::{Dispatch, Kernel};
use crate::gpu::step;
use crate::schedule;

/// What a captured function does for arguments of some sizes: steps over one arena.
#[pyclass(frozen, module = "wengert")]
pub struct Plan(pub Arc<schedule::Plan>);

/// One step of a plan.
#[pyclass(frozen, get_all, module = "wengert")]
pub struct Step {
    /// What it does, the names of its ops in order, as `multiply, exp, add`.
    name: String,
    /// Why a group ends where it does, or None.
    reason: Option<String>,
    /// The file and line of its last node, or None.
    site: Option<(String, i32)>,
    /// The modules in whose calls its last node was traced, as `GPT/blocks.0`, or None.
    scope: Option<String>,
    /// Whether that node is part of a backward.
    is_backward: bool,
    /// How many nodes it computes.
    nodes: usize,
}

#[pymethods]
impl Step {
    fn __repr__(&self) -> String {
        match &self.reason {
            Some(reason) => format!("<{}, ends: {reason}>", self.name),
            None => format!("<{}>", self.name),
        }
    }
}

/// A value that is there when a plan holds most memory.
#[pyclass(frozen, get_all, module = "wengert")]
pub struct Alive {
    /// What makes it.
    name: String,
    /// Its dtype and shape, as text.
    r#type: String,
    /// Its bytes.
    nbytes: usize,
    /// The line that made it, as `file.py:12`, or None.
    line: Option<String>,
    /// The modules in whose calls it was traced, as `GPT/blocks.0`, or None.
    scope: Option<String>,
    /// Whether it is part of a backward.
    is_backward: bool,
}

#[pymethods]
impl Alive {
    fn __repr__(&self) -> String {
        let line = self.line.as_ref().map_or(String::new(), |line| format!(", {line}"));
        format!("<{} {}: {} bytes{line}>", self.name, self.r#type, self.nbytes)
    }
}

#[pymethods]
impl Plan {
    /// The most bytes that a call allocates at once: its arena, its results and what kernels take.
    ///
    /// Keys of random numbers are made for each call beside it. Of sorts of floats it counts what
    /// they take where there are NaNs or negative zeros.
    #[getter]
    fn peak_bytes(&self) -> usize {
        self.0.peak_bytes()
    }

    /// Whether more may be needed, because only a run tells some sizes or how often a loop goes
    /// round.
    #[getter]
    fn is_open(&self) -> bool {
        self.0.is_open()
    }

    /// The part of `peak_bytes` that is no result: what kernels take for themselves while they run.
    #[getter]
    fn scratch_bytes(&self) -> usize {
        self.0.scratch_bytes()
    }

    /// The bytes of all results of steps, had each memory of its own, without what kernels take.
    #[getter]
    fn naive_bytes(&self) -> usize {
        self.0.naive_bytes()
    }

    /// The bytes of the arena in which the steps' results share memory.
    #[getter]
    fn arena_bytes(&self) -> usize {
        self.0.memory().arena_bytes()
    }

    /// Nodes that are computed again to keep within a budget, the operations that adds, and the
    /// peak without and with it; `None` where nothing is.
    #[getter]
    fn recomputed(&self) -> Option<(usize, u64, usize, usize)> {
        let made = self.0.recomputed()?;
        Some((made.nodes, made.flops, made.before, made.after))
    }

    /// The steps in order.
    #[getter]
    fn steps(&self) -> Vec<Step> {
        let step = |step: &schedule::Step| Step {
            name: step.name(),
            reason: step.reason().map(|cut| cut.to_string()),
            site: location(step.site),
            scope: scope_text(step.site),
            is_backward: step.site.scope.is_backward(),
            nodes: step.nodes.len(),
        };
        self.0.steps().iter().map(step).collect()
    }

    /// The values that are there when most memory is taken, largest first.
    #[getter]
    fn alive_at_peak(&self) -> Vec<Alive> {
        let alive = |value: schedule::Alive| Alive {
            name: value.name,
            r#type: format!("{} {}", value.ty.dtype, value.ty.shape),
            nbytes: value.bytes,
            line: describe(value.site),
            scope: scope_text(value.site),
            is_backward: value.site.scope.is_backward(),
        };
        self.0.alive_at_peak().into_iter().map(alive).collect()
    }

    /// The device that it is made for.
    #[getter]
    fn device(&self) -> &'static str {
        self.0.target().name()
    }

    /// The shaders of each step on a GPU, for arguments in C order: the position of the step, and
    /// for each dispatch its workgroups (None while a size is open) and its WGSL. Empty on other
    /// devices.
    #[getter]
    #[allow(clippy::type_complexity, reason = "a list for Python")]
    fn dispatches(
        &self,
        py: Python<'_>,
    ) -> PyResult<Vec<(usize, Vec<(Option<[u32; 2]>, String)>)>> {
        if !self.device().starts_with("gpu") {
            return Ok(Vec::new());
        }
        let kernels = step::kernels(&self.0).or_raise(py)?;
        let of = |dispatch: &Dispatch| {
            let groups = dispatch.invocations.known().map(|_| dispatch.groups());
            (groups, dispatch.text.clone())
        };
        let each = |(at, kernel): (usize, Kernel)| (at, kernel.dispatches.iter().map(of).collect());
        Ok(kernels.into_iter().map(each).collect())
    }

    fn __len__(&self) -> usize {
        self.0.steps().len()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<plan of {} steps, at most {} bytes>", self.0.steps().len(), self.0.peak_bytes())
    }
}

/// What a pass did.
#[pyclass(frozen, get_all, module = "wengert")]
pub struct PassReport {
    /// Its name.
    name: &'static str,
    /// Nodes before it.
    nodes_before: usize,
    /// Nodes after it.
    nodes_after: usize,
    /// Bytes that the nodes read and write, if each is computed alone, before it.
    bytes_before: u64,
    /// The same after it.
    bytes_after: u64,
    /// Arithmetic on elements before it.
    flops_before: u64,
    /// The same after it.
    flops_after: u64,
}

impl PassReport {
    /// The report of a pass.
    pub fn new(report: &crate::passes::Report) -> PassReport {
        PassReport {
            name: report.name,
            nodes_before: report.nodes_before,
            nodes_after: report.nodes_after,
            bytes_before: report.bytes_before,
            bytes_after: report.bytes_after,
            flops_before: report.flops_before,
            flops_after: report.flops_after,
        }
    }
}

#[pymethods]
impl PassReport {
    fn __repr__(&self) -> String {
        format!("<{}: {} nodes became {}>", self.name, self.nodes_before, self.nodes_after)
    }
}

/// Adds the classes to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PassReport>()?;
    module.add_class::<Plan>()?;
    module.add_class::<Step>()?;
    module.add_class::<Alive>()
}
