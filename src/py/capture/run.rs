//! Calls of executables: inputs taken, the program run, updates committed.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::{Executable, Hold, Output, Place, Updated};
use crate::array::{Array, Busy, Data};
use crate::engine::call::{self, Given};
use crate::engine::executors;
use crate::engine::observe;
use crate::engine::random::Attempt;
use crate::engine::site;
use crate::engine::tape::{self, History, Value};
use crate::engine::transfer::transfer;
use crate::error;
use crate::executor as plan;
use crate::py::errors::{OrRaise, to_python};
use crate::py::functions::{DETACH_ABOVE, caught, long};
use crate::py::tensor::{self, handle};
use crate::watch;

/// A handle whose value is out while a call works on another.
struct Held<'py> {
    input: usize,
    object: Bound<'py, PyAny>,
    /// Whether it is to get a new value
    is_updated: bool,
    /// Dropped when it has one again: others go on
    _update: tensor::Update,
}

impl Executable {
    /// Runs it: the tensors it returns. A call that fails changes nothing, random keys included.
    pub fn call(
        &self,
        py: Python<'_>,
        args: &[Bound<'_, PyAny>],
        leaves: &[Bound<'_, PyAny>],
    ) -> PyResult<SmallVec<[Py<PyAny>; 2]>> {
        Attempt::make(|| self.attempt(py, args, leaves))
    }

    fn attempt(
        &self,
        py: Python<'_>,
        args: &[Bound<'_, PyAny>],
        leaves: &[Bound<'_, PyAny>],
    ) -> PyResult<SmallVec<[Py<PyAny>; 2]>> {
        let (numbers, sizes) = (self.numbers(py, leaves)?, self.sizes(args)?);
        let mut held = Vec::new();
        let mut inputs = vec![None; self.inputs.len()];
        if let Err(error) = self.gather(py, args, &mut inputs, &mut held) {
            self.put_back(&held, |i| inputs[i].take())?;
            return Err(error);
        }
        let inputs: Option<Vec<Value>> = inputs.into_iter().collect();
        let inputs = inputs.ok_or_else(|| to_python(py, error::internal("an input is missing")))?;
        let gone = self.gone(&inputs, &held);
        let mut given = Given { inputs, sizes, numbers };
        let result = caught(py, || self.compute(py, &mut given, &gone));
        let failed = result.is_err();
        let unchanged = held.iter().filter(|held| failed || !held.is_updated);
        self.put_back(unchanged, |i| Some(given.inputs[i].clone()))?;
        let values = result?;
        self.commit(py, &given.inputs, &values, args)?;
        drop(held);
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

    /// The values of the inputs. Handles that are to be updated, or whose gradients are, are held:
    /// so calls that update the same handles come one after another.
    fn gather<'py>(
        &self,
        py: Python<'py>,
        args: &[Bound<'py, PyAny>],
        inputs: &mut [Option<Value>],
        held: &mut Vec<Held<'py>>,
    ) -> PyResult<()> {
        let is_later = |i: usize| match self.inputs[i].place {
            Place::Gradient(holder) => self.inputs[holder].hold != Hold::No,
            Place::Argument(_) | Place::Handle(_) | Place::Key => self.inputs[i].hold != Hold::No,
        };
        // Reading may wait for another call, so it comes first: while something is held nothing is
        // waited for, but in the order of addresses, so that no two calls wait for each other.
        for (i, input) in self.inputs.iter().enumerate() {
            if !is_later(i) {
                inputs[i] = Some(self.value(py, &input.place, args)?);
            }
        }
        let mut order = Vec::new();
        for (i, input) in self.inputs.iter().enumerate().filter(|(_, x)| x.hold != Hold::No) {
            if let Some(object) = self.object(py, &input.place, args) {
                order.push((handle(&self.name, &object)?.address(), i, object));
            }
        }
        order.sort_unstable_by_key(|(address, ..)| *address);
        for (_, i, object) in order {
            let is_updated = self.inputs[i].hold == Hold::Value;
            match handle(&self.name, &object)?.hold() {
                Some((value, update)) => {
                    inputs[i] = Some(value);
                    held.push(Held { input: i, object, is_updated, _update: update });
                }
                None => inputs[i] = Some(self.value(py, &self.inputs[i].place, args)?),
            }
        }
        for (i, input) in self.inputs.iter().enumerate().filter(|(i, _)| is_later(*i)) {
            if inputs[i].is_none() {
                inputs[i] = Some(self.value(py, &input.place, args)?);
            }
        }
        Ok(())
    }

    /// The held inputs that may be updated in their own memory: nobody else holds it.
    fn gone(&self, inputs: &[Value], held: &[Held<'_>]) -> SmallVec<[usize; 8]> {
        let flows = self.differentiable.is_some() && tape::recording();
        // What a failed call was given stays as it was: moving a result may fail after the run.
        if flows || watch::checking() || !self.moved.is_empty() {
            return SmallVec::new();
        }
        let is_gone = |&i: &usize| {
            let array = &inputs[i].array;
            self.program.donates(i as u32) && array.is_contiguous() && executors::is_sole(array)
        };
        held.iter().map(|held| held.input).filter(is_gone).collect()
    }

    /// Gives handles their values again.
    fn put_back<'a, 'py: 'a>(
        &self,
        held: impl IntoIterator<Item = &'a Held<'py>>,
        mut value: impl FnMut(usize) -> Option<Value>,
    ) -> PyResult<()> {
        for held in held {
            if let Some(value) = value(held.input) {
                drop(handle(&self.name, &held.object)?.replace(value));
            }
        }
        Ok(())
    }

    /// Runs the program; the inputs in `gone` may be written over, and are as they were after an
    /// error.
    fn compute(&self, py: Python<'_>, given: &mut Given, gone: &[usize]) -> PyResult<Vec<Value>> {
        let record = tape::recording();
        let is_light = !(record && self.differentiable.is_some())
            && self.program.is_light(&given.sizes, DETACH_ABOVE);
        let work = || -> error::Result<Vec<Value>> {
            let mut values = match (&self.differentiable, record) {
                (Some(differentiated), true) => {
                    call::record(&self.name, differentiated, given.clone())?
                }
                (Some(_) | None, _) => self.run(given, gone)?,
            };
            for &(i, device) in &self.moved {
                values[i] = transfer(&values[i], device)?;
            }
            Ok(values)
        };
        let timed = || observe::timed(watch::Work::Call, &self.name, work);
        if is_light {
            return timed().or_raise(py);
        }
        match gone {
            [] => py.detach(long(timed)).or_raise(py),
            // Which steps may be broken off, the plan knows.
            _ => {
                let here = site::current();
                py.detach(|| site::pinned(here, timed)).or_raise(py)
            }
        }
    }

    /// Runs the program, over the inputs that are given away.
    fn run(&self, given: &mut Given, gone: &[usize]) -> error::Result<Vec<Value>> {
        let found = match gone {
            [] => {
                let arrays: SmallVec<[&Array; 8]> = given.inputs.iter().map(|v| &v.array).collect();
                self.program.run(&arrays, &given.sizes, &given.numbers)?
            }
            gone => self.run_over(given, gone)?,
        };
        Ok(found.into_iter().map(Value::plain).collect())
    }

    /// Runs the program over some of its inputs.
    fn run_over(&self, given: &mut Given, gone: &[usize]) -> error::Result<SmallVec<[Array; 2]>> {
        let mut arrays: SmallVec<[Array; 8]> = SmallVec::new();
        for &i in gone {
            let array = &mut given.inputs[i].array;
            let call = Data::busy(Busy::new(array.device()));
            let gone = Array::new(array.dtype, array.shape().clone(), call);
            arrays.push(std::mem::replace(array, gone));
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
    fn commit(
        &self,
        py: Python<'_>,
        inputs: &[Value],
        values: &[Value],
        args: &[Bound<'_, PyAny>],
    ) -> PyResult<()> {
        for Updated { place, input, result } in &self.updates {
            let Some(object) = self.object(py, place, args) else { continue };
            let tensor = handle(&self.name, &object)?;
            let mut value = values[*result].clone();
            value.array = executors::replacing(Some(&inputs[*input].array), value.array);
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
                    let mut value = values[*result].clone();
                    if !value.array.is_on_host() {
                        let old = leaf.gradient().or_raise(py)?;
                        let old = old.map(|cell| cell.lock().array.clone());
                        value.array = executors::replacing(old.as_ref(), value.array);
                    }
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
