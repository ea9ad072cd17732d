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
use super::program::Differentiable;
use super::site::{self, Site};
use super::tape::{HostRule, Value, record_host};
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::graph::{List, resize};
use crate::ops::op::Type;
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

/// A call whose gradient may be wanted.
struct Call {
    name: String,
    program: Arc<Differentiable>,
    /// The whole list, forward and backward, for derivatives of derivatives
    whole: Arc<List>,
    given: Given,
    residuals: Mutex<Residuals>,
    results: Vec<Type>,
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
        let mut seeds = Vec::with_capacity(given.len());
        for (g, ty) in given.into_iter().zip(&call.results) {
            seeds.push(match g {
                Some(g) => g,
                None => Value::plain(Array::zeros(ty.dtype, ty.shape.clone())?),
            });
        }
        let residuals = match &*call.residuals.lock() {
            Residuals::Kept(residuals) => residuals.clone(),
            Residuals::Freed(by) => {
                let first = site::describe(*by).map_or(String::new(), |line| format!(" at {line}"));
                return Err(error::freed("backward", &call.name, first));
            }
        };
        if record {
            return self.recorded(seeds);
        }
        let arrays: SmallVec<[&Array; 8]> =
            residuals.iter().chain(seeds.iter().map(|seed| &seed.array)).collect();
        let found = call.program.backward.run(&arrays, &call.given.sizes, &call.given.numbers)?;
        Ok(found.into_iter().map(|array| Some(Value::plain(array))).collect())
    }

    fn release(&self, by: Site) {
        *self.0.residuals.lock() = Residuals::Freed(by);
    }
}

impl CallRule {
    /// The cotangents with a history: the whole list op by op, on the tape.
    fn recorded(&self, seeds: Vec<Value>) -> Result<Vec<Option<Value>>> {
        let call = &self.0;
        let mut inputs: Vec<Value> = call.given.inputs.clone();
        inputs.extend(seeds);
        let bound = call.program.backward.bind(&call.given.sizes);
        let list = match call.given.sizes.is_empty() {
            true => List::clone(&call.whole),
            false => resize(&call.whole, &bound)?,
        };
        let numbers = list.evaluate_numbers(&call.given.numbers, &bound)?;
        let found = control::interpret(&list, inputs, &numbers)?;
        Ok(found.into_iter().map(Some).collect())
    }
}

/// Runs a program and records the call: its results, differentiable ones (by position) with a
/// history; inputs with a cotangent are `wrt`.
pub fn record(
    name: &str,
    program: &Arc<Differentiable>,
    whole: &Arc<List>,
    given: Given,
    wrt: &[usize],
    differentiable: &[usize],
) -> Result<Vec<Value>> {
    let arrays: SmallVec<[&Array; 8]> = given.inputs.iter().map(|value| &value.array).collect();
    let mut found = program.forward.run(&arrays, &given.sizes, &given.numbers)?.into_vec();
    drop(arrays);
    let residuals = found.split_off(found.len() - program.residuals);
    let types = differentiable
        .iter()
        .map(|&i| Type::new(found[i].dtype, found[i].shape().clone()))
        .collect();
    let reached: Vec<Value> = wrt.iter().map(|&i| given.inputs[i].clone()).collect();
    let call = Arc::new(Call {
        name: name.into(),
        program: program.clone(),
        whole: whole.clone(),
        given,
        residuals: Mutex::new(Residuals::Kept(residuals)),
        results: types,
        cotangents: Mutex::new(vec![None; differentiable.len()]),
    });
    let hub = record_host(Arc::new(CallRule(call.clone())), &reached, token()?.array);
    let mut values: Vec<Value> = found.into_iter().map(Value::plain).collect();
    for (k, &i) in differentiable.iter().enumerate() {
        let rule = Arc::new(ResultRule(call.clone(), k));
        values[i] = record_host(rule, std::slice::from_ref(&hub), values[i].array.clone());
    }
    Ok(values)
}
