//! A program called where gradients are wanted: one step of the tape.
//!
//! The entry has the results through which gradients flow; its rule runs the backward program.

use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::control;
use super::program::{Differentiable, Program};
use super::site::{self, Site};
use super::tape::{HostRule, Value, record_host};
use crate::array::Array;
use crate::dtype::{Numeric, Scalar};
use crate::error::{self, Result};
use crate::graph::{List, resize};
use crate::ops::emit::Id;
use crate::passes::without_seeds;

/// What a program is called with.
#[derive(Clone)]
pub struct Given {
    /// The inputs
    pub inputs: Vec<Value>,
    /// The sizes of the symbols
    pub sizes: SmallVec<[usize; 4]>,
    /// The numbers
    pub numbers: Vec<Scalar>,
}

/// A program through which gradients flow.
pub struct Differentiated {
    /// It and its backward
    pub program: Arc<Differentiable>,
    /// The whole list, forward and backward, for derivatives of derivatives
    pub whole: Arc<List>,
    /// The inputs that have a cotangent
    pub wrt: Vec<usize>,
    /// The results that have one
    pub results: Vec<usize>,
    /// The backward where only some of the results have a cotangent, by which these are; latest
    /// last
    pub partial: Mutex<Vec<(Vec<bool>, Arc<Partial>)>>,
}

/// A backward from some of the results.
pub struct Partial {
    backward: Program,
    whole: Arc<List>,
    /// The inputs among [`Differentiated::wrt`] that get a cotangent
    left: Vec<bool>,
}

/// Backwards from some of the results that a program keeps.
const PARTIAL: usize = 16;

impl Differentiated {
    /// The backward from the results that are `given`, if these are not all.
    fn partial(&self, given: &[bool]) -> Option<Arc<Partial>> {
        if !given.contains(&false) {
            return None;
        }
        if let Some((_, known)) = self.partial.lock().iter().find(|(known, _)| known == given) {
            return Some(known.clone());
        }
        let seeds = |list: &List| -> Vec<Id> {
            let inputs: Vec<Id> = list.inputs().collect();
            inputs[inputs.len() - given.len()..].to_vec()
        };
        let list = self.program.backward.list();
        let (backward, left) = without_seeds(list, &seeds(list), given);
        let backward = self.program.backward.with_list(backward);
        let (whole, _) = without_seeds(&self.whole, &seeds(&self.whole), given);
        let made = Arc::new(Partial { backward, whole: Arc::new(whole), left });
        let mut partial = self.partial.lock();
        if partial.len() >= PARTIAL {
            partial.remove(0);
        }
        partial.push((given.to_vec(), made.clone()));
        Some(made)
    }
}

/// A call whose gradient may be wanted.
struct Call {
    name: String,
    differentiated: Arc<Differentiated>,
    given: Given,
    residuals: Mutex<Residuals>,
}

/// What backward reads, until a backward has used it up.
enum Residuals {
    Kept(Vec<Array>),
    Freed(Site),
}

impl HostRule for Call {
    fn name(&self) -> &str {
        &self.name
    }

    fn object(&self) -> Option<*mut c_void> {
        None
    }

    fn backward(&self, given: &[Option<Value>], record: bool) -> Result<Vec<Option<Value>>> {
        let is_given: Vec<bool> = given.iter().map(Option::is_some).collect();
        let seeds: Vec<Value> = given.iter().flatten().cloned().collect();
        let partial = self.differentiated.partial(&is_given);
        let residuals = match &*self.residuals.lock() {
            Residuals::Kept(residuals) => residuals.clone(),
            Residuals::Freed(by) => {
                let first = site::describe(*by).map_or(String::new(), |line| format!(" at {line}"));
                return Err(error::freed("backward", &self.name, first));
            }
        };
        let backward =
            partial.as_ref().map_or(&self.differentiated.program.backward, |p| &p.backward);
        let found = match record {
            true => {
                let whole = partial.as_ref().map_or(&self.differentiated.whole, |p| &p.whole);
                self.recorded(whole, seeds)?
            }
            false => {
                let arrays: SmallVec<[&Array; 8]> =
                    residuals.iter().chain(seeds.iter().map(|seed| &seed.array)).collect();
                let found = backward.run(&arrays, &self.given.sizes, &self.given.numbers)?;
                found.into_iter().map(Value::plain).collect()
            }
        };
        let mut found = found.into_iter();
        Ok(match &partial {
            None => found.map(Some).collect(),
            // What nothing with a cotangent depends on has none.
            Some(partial) => {
                let next = |&left: &bool| if left { found.next() } else { None };
                partial.left.iter().map(next).collect()
            }
        })
    }

    fn release(&self, by: Site) {
        *self.residuals.lock() = Residuals::Freed(by);
    }
}

impl Call {
    /// The cotangents with a history: the whole list op by op, on the tape.
    fn recorded(&self, whole: &Arc<List>, seeds: Vec<Value>) -> Result<Vec<Value>> {
        let mut inputs: Vec<Value> = self.given.inputs.clone();
        inputs.extend(seeds);
        let bound = self.differentiated.program.backward.bind(&self.given.sizes);
        let list = match self.given.sizes.is_empty() {
            true => List::clone(whole),
            false => resize(whole, &bound)?,
        };
        let numbers = list.evaluate_numbers(&self.given.numbers, &bound)?;
        let numbers: Vec<Numeric> = numbers.into_iter().map(Numeric::from).collect();
        control::interpret(&list, inputs, &numbers)
    }
}

/// Runs a program and records the call: its results, those through which gradients flow with a
/// history.
pub fn record(
    name: &str,
    differentiated: &Arc<Differentiated>,
    given: Given,
) -> Result<Vec<Value>> {
    let arrays: SmallVec<[&Array; 8]> = given.inputs.iter().map(|value| &value.array).collect();
    let program = &differentiated.program;
    let mut found = program.forward.run(&arrays, &given.sizes, &given.numbers)?.into_vec();
    drop(arrays);
    let residuals = found.split_off(found.len() - program.residuals);
    let reached: Vec<Value> = differentiated.wrt.iter().map(|&i| given.inputs[i].clone()).collect();
    let call = Call {
        name: name.into(),
        differentiated: differentiated.clone(),
        given,
        residuals: Mutex::new(Residuals::Kept(residuals)),
    };
    let mut values: Vec<Value> = found.into_iter().map(Value::plain).collect();
    let flowing = differentiated.results.iter().map(|&i| values[i].array.clone()).collect();
    let recorded = record_host(Arc::new(call), &reached, flowing);
    for (&i, value) in differentiated.results.iter().zip(recorded) {
        values[i] = value;
    }
    Ok(values)
}
