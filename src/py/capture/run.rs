//! Calls of executables: inputs taken, the program run, updates committed.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::{Executable, Output};
use crate::array::Array;
use crate::engine::call::{self, Given};
use crate::engine::observe;
use crate::engine::tape::{self, History, Value};
use crate::error;
use crate::ops::op::Type;
use crate::py::errors::{OrRaise, to_python};
use crate::py::functions::{DETACH_ABOVE, caught};
use crate::py::tensor::{self, handle};
use crate::schedule as plan;
use crate::watch;

impl Executable {
    /// Runs it: the tensors it returns.
    pub fn call(
        &self,
        py: Python<'_>,
        args: &[Bound<'_, PyAny>],
        leaves: &[Bound<'_, PyAny>],
    ) -> PyResult<SmallVec<[Py<PyAny>; 2]>> {
        let (numbers, sizes) = (self.numbers(py, leaves)?, self.sizes(args)?);
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for input in &self.inputs {
            inputs.push(self.value(py, &input.place, args)?);
        }
        // Last, so that nothing can fail while a handle is without its value.
        let mut taken = Vec::new();
        for (i, input) in inputs.iter_mut().enumerate() {
            if let Some((value, update)) = self.take_out(py, i as u32, args, input)? {
                *input = value;
                taken.push((i, update));
            }
        }
        let mut given = Given { inputs, sizes, numbers };
        let gone: SmallVec<[usize; 8]> = taken.iter().map(|(i, _)| *i).collect();
        let values = match caught(py, || self.compute(py, &mut given, &gone)) {
            Ok(values) => values,
            Err(error) => {
                for (i, _) in &taken {
                    let Some(object) = self.object(py, &self.inputs[*i].place, args) else {
                        continue;
                    };
                    let value = given.inputs[*i].clone();
                    drop(handle(&self.name, &object)?.replace(value));
                }
                return Err(error);
            }
        };
        self.commit(py, &values, args)?;
        drop(taken);
        self.outputs
            .iter()
            .map(|output| match output {
                Output::Result(i) => tensor::wrap(py, values[*i].clone()),
                Output::Handle(place) => match self.object(py, place, args) {
                    Some(object) => Ok(object.unbind()),
                    None => Err(to_python(py, error::internal("a result without a handle"))),
                },
            })
            .collect()
    }

    /// Takes the value of an input out of its handle, if it is to be updated in its own memory.
    fn take_out(
        &self,
        py: Python<'_>,
        input: u32,
        args: &[Bound<'_, PyAny>],
        copy: &mut Value,
    ) -> PyResult<Option<(Value, tensor::Update)>> {
        let flows = self.differentiable.is_some() && tape::recording();
        if flows || watch::checking() || !self.program.donates(input) {
            return Ok(None);
        }
        match self.object(py, &self.inputs[input as usize].place, args) {
            Some(object) => {
                let tensor = handle(&self.name, &object)?;
                // Waiting here, with others taken out, could wait for ever: the copy will do.
                if tensor.is_busy() {
                    return Ok(None);
                }
                // The copy would keep the memory from being held by the handle alone.
                let ty = Type::new(copy.dtype(), copy.shape().clone());
                copy.array = Array::named(ty.dtype, ty.shape, Box::new(()));
                let taken = tensor.take_out();
                if taken.is_none() {
                    *copy = tensor.with_own(Value::clone);
                }
                Ok(taken)
            }
            None => Ok(None),
        }
    }

    /// Runs the program; the inputs in `gone` may be written over, and are as they were after an error.
    fn compute(&self, py: Python<'_>, given: &mut Given, gone: &[usize]) -> PyResult<Vec<Value>> {
        let site = crate::engine::site::current();
        let record = tape::recording();
        let is_light = !(record && self.differentiable.is_some())
            && self.program.is_light(&given.sizes, DETACH_ABOVE);
        let work = || -> error::Result<Vec<Value>> {
            if let (Some(flow), true) = (&self.differentiable, record) {
                return call::record(&self.name, flow, given.clone());
            }
            let found = match gone {
                [] => {
                    let arrays: SmallVec<[&Array; 8]> =
                        given.inputs.iter().map(|v| &v.array).collect();
                    self.program.run(&arrays, &given.sizes, &given.numbers)?
                }
                gone => self.run_over(given, gone)?,
            };
            Ok(found.into_iter().map(Value::plain).collect())
        };
        let timed = || observe::timed(watch::Work::Call, &self.name, work);
        if is_light {
            return timed().or_raise(py);
        }
        py.detach(|| crate::engine::site::pinned(site, timed)).or_raise(py)
    }

    /// Runs the program over some of its inputs.
    fn run_over(&self, given: &mut Given, gone: &[usize]) -> error::Result<SmallVec<[Array; 2]>> {
        let mut arrays: SmallVec<[Array; 8]> = SmallVec::new();
        for &i in gone {
            let array = &mut given.inputs[i].array;
            let (dtype, shape) = (array.dtype, array.shape().clone());
            arrays.push(std::mem::replace(array, Array::named(dtype, shape, Box::new(()))));
        }
        let mut inputs: SmallVec<[plan::Input<'_>; 8]> =
            given.inputs.iter().map(|value| plan::Input::Lent(&value.array)).collect();
        for (&i, array) in gone.iter().zip(arrays) {
            inputs[i] = plan::Input::Given(Some(array));
        }
        let found = self.program.run_with(&mut inputs, &given.sizes, &given.numbers);
        let mut left: SmallVec<[Option<Array>; 8]> = SmallVec::new();
        for &i in gone {
            left.push(match &mut inputs[i] {
                plan::Input::Given(array) => array.take(),
                plan::Input::Lent(_) => None,
            });
        }
        drop(inputs);
        for (&i, array) in gone.iter().zip(left) {
            if let Some(array) = array {
                given.inputs[i].array = array;
            }
        }
        found
    }

    /// Gives handles and gradients their new values: nothing here fails.
    fn commit(&self, py: Python<'_>, values: &[Value], args: &[Bound<'_, PyAny>]) -> PyResult<()> {
        for (place, result) in &self.updates {
            let Some(object) = self.object(py, place, args) else { continue };
            let tensor = handle(&self.name, &object)?;
            let mut value = values[*result].clone();
            tensor.with_own(|old| {
                if let History::Leaf(leaf) = &old.history {
                    value.history = History::Leaf(leaf.clone());
                }
            });
            drop(tensor.replace(value));
        }
        for found in &self.gradients {
            let (Some(after), Some(leaf)) = (&found.after, self.leaf(py, found.input, args)?)
            else {
                continue;
            };
            match after {
                None => leaf.set_gradient(None),
                Some(result) => {
                    let value = values[*result].clone();
                    let cell = if found.same_cell { leaf.gradient().or_raise(py)? } else { None };
                    match cell {
                        Some(cell) => *cell.lock() = value,
                        None => leaf.set_gradient(Some(Arc::new(Mutex::new(value)))),
                    }
                }
            }
        }
        Ok(())
    }
}
