//! A program called where gradients are wanted: one step of the tape.
//!
//! An entry has one result, a program several. So each result has an entry of its own, whose rule
//! only leaves the cotangent with the call; behind them stands one entry for the whole call, whose
//! turn comes when all of them have had theirs, and which runs the backward program.

use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::control;
use super::program::{Differentiable, Program};
use super::site::{self, Site};
use super::tape::{HostRule, Value, record_host};
use crate::array::Array;
use crate::dtype::{DType, Numeric, Scalar};
use crate::error::{self, Result};
use crate::graph::{List, resize};
use crate::ops::emit::Id;
use crate::passes::without_seeds;
use crate::shape::Shape;

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
pub struct Flow {
    /// It and its backward
    pub program: Arc<Differentiable>,
    /// The whole list, forward and backward, for derivatives of derivatives
    pub whole: Arc<List>,
    /// The inputs that have a cotangent
    pub wrt: Vec<usize>,
    /// The results that have one
    pub results: Vec<usize>,
    /// The backward where only some of the results have a cotangent, by which these are; latest last
    pub partial: Mutex<Vec<(Vec<bool>, Arc<Partial>)>>,
}

/// A backward from some of the results.
pub struct Partial {
    backward: Program,
    whole: Arc<List>,
    /// The inputs among [`Flow::wrt`] that get a cotangent
    left: Vec<bool>,
}

/// Backwards from some of the results that a program keeps.
const PARTIAL: usize = 16;

impl Flow {
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
    flow: Arc<Flow>,
    given: Given,
    residuals: Mutex<Residuals>,
    cotangents: Mutex<Vec<Option<Value>>>,
}

/// What backward reads, until a backward has used it up.
enum Residuals {
    Kept(Vec<Array>),
    Freed(Site),
}

struct CallRule(Arc<Call>);

struct ResultRule(Arc<Call>, usize);

impl HostRule for ResultRule {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn object(&self) -> Option<*mut c_void> {
        None
    }

    fn backward(&self, g: &Value, _: bool) -> Result<Vec<Option<Value>>> {
        self.0.cotangents.lock()[self.1] = Some(g.clone());
        Ok(vec![Some(token()?)])
    }
}

/// What travels from the results' entries to that of the call.
fn token() -> Result<Value> {
    Ok(Value::plain(Array::zeros(DType::F32, Shape::scalar())?))
}

impl HostRule for CallRule {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn object(&self) -> Option<*mut c_void> {
        None
    }

    fn backward(&self, _: &Value, record: bool) -> Result<Vec<Option<Value>>> {
        let call = &self.0;
        let given = {
            let mut slots = call.cotangents.lock();
            let empty = vec![None; slots.len()];
            std::mem::replace(&mut *slots, empty)
        };
        let is_given: Vec<bool> = given.iter().map(Option::is_some).collect();
        let seeds: Vec<Value> = given.into_iter().flatten().collect();
        let partial = call.flow.partial(&is_given);
        let residuals = match &*call.residuals.lock() {
            Residuals::Kept(residuals) => residuals.clone(),
            Residuals::Freed(by) => {
                let first = site::describe(*by).map_or(String::new(), |line| format!(" at {line}"));
                return Err(error::freed("backward", &call.name, first));
            }
        };
        let backward = partial.as_ref().map_or(&call.flow.program.backward, |p| &p.backward);
        let found = match record {
            true => {
                let whole = partial.as_ref().map_or(&call.flow.whole, |p| &p.whole);
                self.recorded(whole, seeds)?
            }
            false => {
                let arrays: SmallVec<[&Array; 8]> =
                    residuals.iter().chain(seeds.iter().map(|seed| &seed.array)).collect();
                let found = backward.run(&arrays, &call.given.sizes, &call.given.numbers)?;
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
        *self.0.residuals.lock() = Residuals::Freed(by);
    }
}

impl CallRule {
    /// The cotangents with a history: the whole list op by op, on the tape.
    fn recorded(&self, whole: &Arc<List>, seeds: Vec<Value>) -> Result<Vec<Value>> {
        let call = &self.0;
        let mut inputs: Vec<Value> = call.given.inputs.clone();
        inputs.extend(seeds);
        let bound = call.flow.program.backward.bind(&call.given.sizes);
        let list = match call.given.sizes.is_empty() {
            true => List::clone(whole),
            false => resize(whole, &bound)?,
        };
        let numbers = list.evaluate_numbers(&call.given.numbers, &bound)?;
        let numbers: Vec<Numeric> = numbers.into_iter().map(Numeric::from).collect();
        control::interpret(&list, inputs, &numbers)
    }
}

/// Runs a program and records the call: its results, those through which gradients flow with a
/// history.
pub fn record(name: &str, flow: &Arc<Flow>, given: Given) -> Result<Vec<Value>> {
    let arrays: SmallVec<[&Array; 8]> = given.inputs.iter().map(|value| &value.array).collect();
    let program = &flow.program;
    let mut found = program.forward.run(&arrays, &given.sizes, &given.numbers)?.into_vec();
    drop(arrays);
    let residuals = found.split_off(found.len() - program.residuals);
    let reached: Vec<Value> = flow.wrt.iter().map(|&i| given.inputs[i].clone()).collect();
    let call = Arc::new(Call {
        name: name.into(),
        flow: flow.clone(),
        given,
        residuals: Mutex::new(Residuals::Kept(residuals)),
        cotangents: Mutex::new(vec![None; flow.results.len()]),
    });
    let hub = record_host(Arc::new(CallRule(call.clone())), &reached, token()?.array);
    let mut values: Vec<Value> = found.into_iter().map(Value::plain).collect();
    for (k, &i) in flow.results.iter().enumerate() {
        let rule = Arc::new(ResultRule(call.clone(), k));
        values[i] = record_host(rule, std::slice::from_ref(&hub), values[i].array.clone());
    }
    Ok(values)
}
