//! Interpreter: runs lists node by node, as they are written. It is used to look inside a list, and
//! plans are compared with it.
//!
//! Nothing is merged, skipped or reordered, and every value is kept. Each op runs through the
//! engine at the line that made its node, so an observer of ops sees those of the list. An
//! [`Oracle`] may check each op's result.

use std::sync::Arc;

use smallvec::SmallVec;

use super::eager::apply::apply_all;
use super::executors::{self, Device, device};
use super::oracle::Oracle;
use super::site::{self, Site};
use super::tape::{Operand, Value};
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::graph::numbers::valued;
use crate::graph::{ControlFlow, ControlFlowKind, Graph, Kind, List, admit, resize};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, SliceAxis, Type};
use crate::ops::origin;
use crate::shape::{Bindings, Dim, Shape};

/// The results of a node: one array, the results of control flow, or none.
pub type Results = SmallVec<[Array; 2]>;

/// A list being run.
pub struct Interpreter {
    list: Arc<List>,
    inputs: std::vec::IntoIter<Array>,
    numbers: Arc<[Scalar]>,
    values: Vec<Results>,
    oracle: Option<Oracle>,
    device: Device,
}

/// The results of a list on a device, given its inputs, the sizes of its symbols and the inputs of
/// its numbers.
pub fn run(
    device: Device,
    list: &Arc<List>,
    inputs: &[&Array],
    sizes: &Bindings,
    given: &[Scalar],
) -> Result<Results> {
    let inputs = inputs.iter().map(|&x| x.clone()).collect();
    Interpreter::start(device, list, inputs, sizes, given)?.finish()
}

impl Interpreter {
    /// An interpreter before the first node. Inputs on another device, such as random keys, are
    /// transferred to this one.
    pub fn start(
        device: Device,
        list: &Arc<List>,
        inputs: Vec<Array>,
        sizes: &Bindings,
        given: &[Scalar],
    ) -> Result<Interpreter> {
        let is_open = list.nodes.iter().any(|node| !node.ty.shape.is_known());
        let list = if is_open { resize(list, sizes)?.into() } else { list.clone() };
        let takes: Vec<&Type> = list.inputs().map(|id| &list.node(id).ty).collect();
        admit("call", takes.into_iter(), inputs.iter())?;
        let numbers = list.evaluate_numbers(given, sizes)?;
        Ok(Interpreter::new(device, list, inputs, numbers.into(), None))
    }

    fn new(
        device: Device,
        list: Arc<List>,
        inputs: Vec<Array>,
        numbers: Arc<[Scalar]>,
        oracle: Option<Oracle>,
    ) -> Interpreter {
        let values = Vec::with_capacity(list.nodes.len());
        Interpreter { list, inputs: inputs.into_iter(), numbers, values, oracle, device }
    }

    /// The same, with an oracle that checks the results of ops. Calls of composites are not
    /// checked: the list has to be expanded before.
    pub fn watched(self, oracle: Oracle) -> Interpreter {
        Interpreter { oracle: Some(oracle), ..self }
    }

    /// The device that it runs on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The list, with all sizes known.
    pub fn list(&self) -> &Arc<List> {
        &self.list
    }

    /// The node that comes next.
    pub fn next(&self) -> Option<Id> {
        let next = self.values.len();
        (next < self.list.nodes.len()).then_some(Id(next as u32))
    }

    /// The results of a node, if it has run.
    pub fn value(&self, id: Id) -> Option<&Results> {
        self.values.get(id.0 as usize)
    }

    /// Computes the next node and returns it; `None` at the end of the list.
    pub fn step(&mut self) -> Result<Option<Id>> {
        let Some(id) = self.next() else { return Ok(None) };
        let list = self.list.clone();
        let site = list.node(id).site;
        let results = {
            let _on = self.device.enter();
            let _within = site.origin.enter();
            site::pinned(site, || self.compute(&list, id))
        };
        let results = results.map_err(|error| origin::explain(error, site.origin))?;
        self.values.push(results);
        Ok(Some(id))
    }

    /// Computes the rest of the list; returns its results.
    pub fn finish(mut self) -> Result<Results> {
        while self.step()?.is_some() {}
        self.list.outputs.iter().map(|id| self.array(*id).cloned()).collect()
    }

    fn array(&self, id: Id) -> Result<&Array> {
        let found = self.values.get(id.0 as usize).and_then(|results| results.first());
        found.ok_or_else(|| error::internal(format!("%{} has no value", id.0)))
    }

    fn compute(&mut self, list: &List, id: Id) -> Result<Results> {
        let node = list.node(id);
        let one = |array: Array| -> Result<Results> { Ok(smallvec::smallvec![array]) };
        match &node.kind {
            Kind::Input => {
                let input = self.inputs.next();
                let input = input.ok_or_else(|| error::internal("a list got too few inputs"))?;
                one(executors::transfer(&input, self.device)?)
            }
            Kind::Constant(array) => one(executors::transfer(array, self.device)?),
            Kind::Op(op) => self.op(op, &node.args, node.site),
            Kind::Barrier => match node.args[0] {
                Arg::Node(id) => one(self.array(id)?.clone()),
                Arg::Number(_) => Err(error::internal("a barrier keeps a value")),
            },
            Kind::Result(i) => match node.args[0] {
                Arg::Node(id) => match self.values[id.0 as usize].get(*i as usize) {
                    Some(part) => one(part.clone()),
                    None => Err(error::internal("control flow gave too few results")),
                },
                Arg::Number(_) => Err(error::internal("a part of a number")),
            },
            Kind::ControlFlow(flow) => {
                let given = self.arrays(&node.args)?;
                self.flow(flow, &given)
            }
            Kind::Effect(effect) => {
                let given = self.arrays(&node.args)?;
                let graph = Graph::new();
                let ids: Vec<Arg> =
                    given.iter().map(|x| Arg::Node(graph.input(type_of(x)))).collect();
                graph.effect((**effect).clone(), &ids);
                executors::run(&graph, &given.iter().collect::<Vec<_>>(), &[])?;
                Ok(Results::new())
            }
        }
    }

    /// The arrays among operands.
    fn arrays(&self, args: &[Arg]) -> Result<Vec<Array>> {
        let arrays = args.iter().filter_map(|arg| match arg {
            Arg::Node(id) => Some(self.array(*id).cloned()),
            Arg::Number(_) => None,
        });
        arrays.collect()
    }

    fn op(&self, op: &Op, args: &[Arg], site: Site) -> Result<Results> {
        let mut values: SmallVec<[Option<Value>; 4]> = SmallVec::new();
        for arg in args {
            values.push(match arg {
                Arg::Node(id) => Some(Value::plain(self.array(*id)?.clone())),
                Arg::Number(_) => None,
            });
        }
        let mut operands: SmallVec<[Operand<'_>; 4]> = SmallVec::new();
        for (arg, value) in args.iter().zip(&values) {
            operands.push(match (*arg, value) {
                (Arg::Number(value), _) => Operand::Scalar(valued(value, &self.numbers)?.into()),
                (Arg::Node(_), Some(value)) => Operand::Value(value),
                (Arg::Node(_), None) => return Err(error::internal("an operand is gone")),
            });
        }
        let found = apply_all(op.clone(), &operands, false)?;
        let arrays: Results = found.into_iter().map(|value| value.array).collect();
        if let (Some(oracle), false) = (&self.oracle, matches!(op, Op::Call(_))) {
            let operands: SmallVec<[executors::Operand<'_>; 4]> =
                operands.iter().map(|arg| arg.operand()).collect::<Result<_>>()?;
            oracle.look(op, &operands, &arrays[0], site)?;
        }
        Ok(arrays)
    }

    /// The results of a body.
    fn body(&self, body: &Arc<List>, given: Vec<Array>) -> Result<Results> {
        let (body, numbers) = (body.clone(), self.numbers.clone());
        Interpreter::new(self.device, body, given, numbers, self.oracle.clone()).finish()
    }

    fn flow(&self, flow: &ControlFlow, given: &[Array]) -> Result<Results> {
        match flow.kind {
            ControlFlowKind::Host(_) if !flow.bodies.is_empty() => {
                self.body(&flow.bodies[0], given.to_vec())
            }
            ControlFlowKind::Host(ref op) => {
                Ok(executors::execute_host(op, given, &flow.results, self.device)?.into())
            }
            ControlFlowKind::Branch => {
                let last = flow.bodies.len() as i64 - 1;
                let index = integer(&given[0])?.clamp(0, last) as usize;
                self.body(&flow.bodies[index], given[1..].to_vec())
            }
            ControlFlowKind::While { carry, history } => {
                self.repeat(flow, given, carry as usize, history)
            }
            ControlFlowKind::Scan { carry, xs, length, reverse } => {
                let steps = Steps { carry: carry as usize, xs: xs as usize, length, reverse };
                self.scan(flow, given, &steps)
            }
        }
    }

    fn repeat(
        &self,
        flow: &ControlFlow,
        given: &[Array],
        carry: usize,
        history: bool,
    ) -> Result<Results> {
        let (first, captures) = given.split_at(carry);
        let mut now: Results = first.into();
        let mut rounds: Vec<Results> = Vec::new();
        loop {
            let operands: Vec<Array> = now.iter().chain(captures).cloned().collect();
            let truth = self.body(&flow.bodies[0], operands.clone())?;
            if integer(&truth[0])? == 0 {
                break;
            }
            let next = self.body(&flow.bodies[1], operands)?;
            rounds.push(std::mem::replace(&mut now, next));
        }
        if history {
            for (k, x) in first.iter().enumerate() {
                let column = rounds.iter().map(|round| round[k].clone()).collect();
                now.push(stacked(&type_of(x), column)?);
            }
            let count = executors::fill_i64(rounds.len() as i64)?;
            now.push(executors::transfer(&count, self.device)?);
        }
        Ok(now)
    }

    fn scan(&self, flow: &ControlFlow, given: &[Array], steps: &Steps) -> Result<Results> {
        let Steps { carry, xs, length, reverse } = *steps;
        let (mut now, rows): (Results, &[Array]) =
            (given[..carry].into(), &given[carry..carry + xs]);
        let length = rows.first().map_or(length, |x| x.shape()[0]);
        let Some(n) = length.known() else {
            return Err(error::unknown_size("scan", length));
        };
        let mut columns: Vec<Vec<Array>> = vec![Vec::new(); flow.results.len() - carry];
        for round in 0..n {
            let at = if reverse { n - 1 - round } else { round };
            let mut operands: Vec<Array> = now.to_vec();
            for x in rows {
                operands.push(row(x, at)?);
            }
            operands.extend_from_slice(&given[carry + xs..]);
            let mut results = self.body(&flow.bodies[0], operands)?;
            for (column, y) in columns.iter_mut().zip(results.drain(carry..)) {
                column.push(y);
            }
            now = results;
        }
        for (column, ty) in columns.iter_mut().zip(&flow.results[carry..]) {
            if reverse {
                column.reverse();
            }
            let one = Shape::from_dims(&ty.shape.dims()[1..]);
            now.push(stacked(&Type::new(ty.dtype, one), std::mem::take(column))?);
        }
        Ok(now)
    }
}

/// The parameters of a scan.
struct Steps {
    carry: usize,
    xs: usize,
    length: Dim,
    reverse: bool,
}

fn type_of(array: &Array) -> Type {
    Type::new(array.dtype, array.shape().clone())
}

/// The integer in a scalar array.
fn integer(array: &Array) -> Result<i64> {
    let number = executors::cast(&executors::download(array)?, DType::I64)?;
    // SAFETY: a scalar of int64, which is set.
    Ok(unsafe { number.ptr().cast::<i64>().read() })
}

/// Element `i` of the leading axis.
fn row(x: &Array, i: usize) -> Result<Array> {
    let (dims, rest) = (x.shape().dims(), Shape::from_dims(&x.shape().dims()[1..]));
    let whole = |&size: &Dim| SliceAxis { start: 0.into(), step: 1, size };
    let first = SliceAxis { start: i.into(), step: 1, size: Dim::ONE };
    let at = std::iter::once(first).chain(dims[1..].iter().map(whole)).collect();
    let device = x.device();
    let part = executors::execute_on(device, &Op::Slice(at), &[executors::Operand::Array(x)])?;
    executors::execute_on(device, &Op::Reshape(rest), &[executors::Operand::Array(&part)])
}

/// Arrays of one type, stacked along a new leading axis.
fn stacked(one: &Type, parts: Vec<Array>) -> Result<Array> {
    let with = |n: usize| -> Shape {
        std::iter::once(Dim::new(n)).chain(one.shape.dims().iter().copied()).collect()
    };
    if parts.is_empty() {
        return executors::transfer(&Array::zeros(one.dtype, with(0))?, device::current());
    }
    let mut rows = Vec::with_capacity(parts.len());
    let device = parts[0].device();
    for part in &parts {
        let row = [executors::Operand::Array(part)];
        rows.push(executors::execute_on(device, &Op::Reshape(with(1)), &row)?);
    }
    if device != Device::Cpu {
        let rows: Vec<executors::Operand<'_>> =
            rows.iter().map(executors::Operand::Array).collect();
        return executors::execute_on(device, &Op::Concat(0), &rows);
    }
    executors::concat(&rows.iter().collect::<Vec<_>>(), 0)
}
