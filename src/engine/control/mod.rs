//! Lists run op by op through the engine, control flow included.
//!
//! What runs this way is recorded on the tape, or traced, as eager code is. Outside of traces
//! control flow is taken at once, by the data. Inside, it becomes a node of the trace; on the tape
//! it is one entry with all results.

pub mod host;

use std::ffi::c_void;
use std::sync::{Arc, OnceLock, Weak};

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use crate::engine::eager::apply::{apply, apply_all};

use crate::array::Array;
use crate::dtype::{DType, Numeric, Scalar};
use crate::engine::executors::{self, device};
use crate::engine::program::Program;
use crate::engine::tape::{self, Entry, History, HostRule, Operand, Value, record_host};
use crate::engine::trace::{self, Entered, Trace};
use crate::error::{self, Result};
use crate::graph::numbers::renamed;
use crate::graph::{ControlFlow, ControlFlowKind, Effect, Graph, Kind, List, Node, admit};
use crate::memory::check_room;
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, SliceAxis, Type};
use crate::ops::origin;
use crate::ops::structural::whole;
use crate::passes::{Feed, control_flow_gradient, unused_count};
use crate::shape::{Dim, Scope, Shape};

/// The results of a list. What it reads of numbers are these, by their places in its table.
pub fn interpret(list: &List, inputs: Vec<Value>, numbers: &[Numeric]) -> Result<Vec<Value>> {
    let takes: Vec<&Type> = list.inputs().map(|id| &list.node(id).ty).collect();
    admit("call", takes.into_iter(), inputs.iter().map(|value| &value.array))?;
    let device = executors::common("call", inputs.iter().map(|value| &value.array))?;
    let _on = device.enter();
    interpret_body(list, inputs, numbers)
}

/// The same for a body of control flow, which takes what the flow around it has.
fn interpret_body(list: &List, inputs: Vec<Value>, numbers: &[Numeric]) -> Result<Vec<Value>> {
    let mut inputs = inputs.into_iter();
    let mut results: FxHashMap<Id, Vec<Value>> = FxHashMap::default();
    let mut values: Vec<Value> = Vec::with_capacity(list.nodes.len());
    for (i, node) in list.nodes.iter().enumerate() {
        let args =
            || -> Vec<Value> { node.reads().map(|id| values[id.0 as usize].clone()).collect() };
        let value = match &node.kind {
            Kind::Input => {
                inputs.next().ok_or_else(|| error::internal("a list got too few inputs"))?
            }
            Kind::Constant(array) => Value::plain(executors::transfer(array, device::current())?),
            Kind::Op(op) => {
                let _within = node.site.origin.enter();
                let found = compute(op, node, &values, numbers);
                let mut found = found.map_err(|error| origin::explain(error, node.site.origin))?;
                if found.len() > 1 {
                    results.insert(Id(i as u32), found.to_vec());
                }
                found.swap_remove(0)
            }
            Kind::Barrier => {
                let x = &args()[0];
                let op = Op::Reshape(x.shape().clone());
                apply(op, &[Operand::Value(x)], tape::recording())?
            }
            Kind::ControlFlow(flow) => {
                results.insert(Id(i as u32), run(flow, args(), numbers)?);
                token()?
            }
            Kind::Result(k) => match node.reads().next() {
                Some(of) => results[&of][*k as usize].clone(),
                None => return Err(error::internal("a result node names no node")),
            },
            Kind::Effect(effect) => {
                perform(effect, &args())?;
                token()?
            }
        };
        values.push(value);
    }
    Ok(list.outputs.iter().map(|id| values[id.0 as usize].clone()).collect())
}

fn compute(
    op: &Op,
    node: &Node,
    values: &[Value],
    numbers: &[Numeric],
) -> Result<SmallVec<[Value; 1]>> {
    let mut args: SmallVec<[Operand<'_>; 4]> = SmallVec::new();
    for arg in &node.args {
        args.push(match *arg {
            Arg::Node(id) => Operand::Value(&values[id.0 as usize]),
            Arg::Number(value) => Operand::Scalar(renamed(value, numbers)),
        });
    }
    apply_all(op.clone(), &args, tape::recording())
}

/// Control flow: a node of the open trace, or taken at once.
pub fn run(flow: &ControlFlow, args: Vec<Value>, numbers: &[Numeric]) -> Result<Vec<Value>> {
    if let Some(_entered) = entered(flow.kind.name(), &args)? {
        return emit(flow.clone(), args, tape::recording());
    }
    let device = executors::common(flow.kind.name(), args.iter().map(|value| &value.array))?;
    let _on = device.enter();
    match flow.kind {
        ControlFlowKind::Host(ref op) => match flow.bodies.first() {
            None => host::call(op, flow, args),
            Some(body) => {
                let was = tape::recording();
                let recording = tape::recording_as(false);
                let found = interpret_body(body, args.clone(), numbers);
                drop(recording);
                if was { host::recorded(op, flow, &args, found?) } else { found }
            }
        },
        ControlFlowKind::Branch => {
            let last = flow.bodies.len() as i64 - 1;
            let body = integer(&args[0].array)?.clamp(0, last) as usize;
            interpret_body(&flow.bodies[body], args[1..].to_vec(), numbers)
        }
        ControlFlowKind::While { carry, history } => {
            let mut now = args;
            let mut pasts: Vec<Vec<Value>> = vec![Vec::new(); carry as usize];
            while integer(&interpret_body(&flow.bodies[0], now.clone(), numbers)?[0].array)? != 0 {
                let next = interpret_body(&flow.bodies[1], now.clone(), numbers)?;
                for (k, next) in next.into_iter().enumerate() {
                    pasts[k].push(std::mem::replace(&mut now[k], next));
                }
            }
            now.truncate(carry as usize);
            if history {
                let count = pasts.first().map_or(0, Vec::len);
                for (k, past) in pasts.iter().enumerate() {
                    now.push(stack(past, now[k].dtype(), now[k].shape())?);
                }
                let count = executors::fill_i64(count as i64)?;
                now.push(Value::plain(executors::transfer(&count, device)?));
            }
            Ok(now)
        }
        ControlFlowKind::Scan { carry, xs, length, reverse } => {
            scan(flow, &args, numbers, (carry as usize, xs as usize), length, reverse)
        }
    }
}

fn scan(
    flow: &ControlFlow,
    args: &[Value],
    numbers: &[Numeric],
    (carry, xs): (usize, usize),
    length: Dim,
    reverse: bool,
) -> Result<Vec<Value>> {
    let given = args[carry..carry + xs].first().map(|x| x.shape()[0]);
    let length = given.unwrap_or(length).value();
    let stacked = &flow.results[carry..];
    let bytes = |ty: &Type| {
        let row = Shape::from_dims(&ty.shape.dims()[1..]);
        length.saturating_mul(row.count().saturating_mul(ty.dtype.size()))
    };
    check_room(stacked.iter().map(bytes).fold(0, usize::saturating_add))?;
    let mut now = args[..carry].to_vec();
    let mut rows: Vec<Vec<Value>> = vec![Vec::new(); flow.results.len() - carry];
    for round in 0..length {
        let at = if reverse { length - 1 - round } else { round };
        let mut operands = now;
        for x in &args[carry..carry + xs] {
            operands.push(element(x, at)?);
        }
        operands.extend_from_slice(&args[carry + xs..]);
        now = interpret_body(&flow.bodies[0], operands, numbers)?;
        rows.iter_mut().zip(now.drain(carry..)).for_each(|(row, y)| row.push(y));
    }
    for (row, ty) in rows.iter_mut().zip(&flow.results[carry..]) {
        if reverse {
            row.reverse();
        }
        now.push(stack(row, ty.dtype, &Shape::from_dims(&ty.shape.dims()[1..]))?);
    }
    Ok(now)
}

/// Element `i` of the leading axis.
fn element(x: &Value, i: usize) -> Result<Value> {
    let mut at = whole(x.shape());
    at[0] = SliceAxis { start: i.into(), step: 1, size: Dim::ONE };
    let record = tape::recording();
    let part = apply(Op::Slice(at), &[Operand::Value(x)], record)?;
    let rest = Shape::from_dims(&x.shape().dims()[1..]);
    apply(Op::Reshape(rest), &[Operand::Value(&part)], record)
}

/// Values along a new leading axis.
fn stack(rows: &[Value], dtype: DType, one: &Shape) -> Result<Value> {
    let long = |n: usize| -> Shape {
        std::iter::once(Dim::new(n)).chain(one.dims().iter().copied()).collect()
    };
    if rows.is_empty() {
        let none = Array::zeros(dtype, long(0))?;
        return Ok(Value::plain(executors::transfer(&none, device::current())?));
    }
    let record = tape::recording();
    let wide = |x: &Value| apply(Op::Reshape(long(1)), &[Operand::Value(x)], record);
    let rows: Vec<Value> = rows.iter().map(wide).collect::<Result<_>>()?;
    let operands: Vec<Operand<'_>> = rows.iter().map(Operand::Value).collect();
    apply(Op::Concat(0), &operands, record)
}

/// A scalar of any whole dtype.
fn integer(x: &Array) -> Result<i64> {
    let x = executors::cast(&executors::download(x)?, DType::I64)?;
    // SAFETY: a scalar of int64.
    Ok(unsafe { x.ptr().cast::<i64>().read() })
}

/// Something done for its effect: a node of the open trace, or done at once.
pub fn perform(effect: &Effect, args: &[Value]) -> Result<()> {
    if let Some(_entered) = entered(effect.name(), args)? {
        let (trace, nodes) = trace::nodes(effect.name(), args)?;
        return trace.add(|graph| Ok(graph.effect(effect.clone(), &nodes))).map(drop);
    }
    let graph = Graph::new();
    let input = |x: &Value| graph.input(Type::new(x.dtype(), x.shape().clone()));
    let ids: Vec<Arg> = args.iter().map(|x| Arg::Node(input(x))).collect();
    graph.effect(effect.clone(), &ids);
    let arrays: SmallVec<[&Array; 4]> = args.iter().map(|x| &x.array).collect();
    let device = executors::common(effect.name(), arrays.iter().copied())?;
    let program = Program::new(device, graph.into_list(), Vec::new(), Scope::new());
    program.run(&arrays, &[], &[]).map(drop)
}

/// The trace that what is done with these values belongs to, if one is open: kept open meanwhile.
fn entered(name: &str, values: &[Value]) -> Result<Option<Option<Entered>>> {
    let operands: SmallVec<[Operand<'_>; 8]> = values.iter().map(Operand::Value).collect();
    match trace::wants(&operands) {
        true => trace::enter_for(name, &operands).map(Some),
        false => Ok(None),
    }
}

/// The value of a node that has none to speak of.
fn token() -> Result<Value> {
    Ok(Value::plain(Array::zeros(DType::F32, Shape::scalar())?))
}

// Control flow as a node, and on the tape.

/// A flow in a trace.
struct Emitted {
    trace: Arc<Trace>,
    id: Id,
    args: Vec<Value>,
    /// The entry of the flow
    entry: OnceLock<Weak<Entry>>,
}

struct ControlFlowRule(Arc<Emitted>);

/// Adds a control-flow op to the open trace: its results.
fn emit(flow: ControlFlow, args: Vec<Value>, record: bool) -> Result<Vec<Value>> {
    let name = flow.kind.name();
    if let (true, ControlFlowKind::Host(op)) = (record, &flow.kind) {
        host::check_rule(op, &flow, &args)?;
    }
    let (trace, nodes) = trace::nodes(name, &args)?;
    let is_unresolved = |arg: &Arg| matches!(arg, Arg::Node(id) if trace.is_unresolved(*id));
    if nodes.iter().any(is_unresolved) {
        let what = "a tensor of unknown rank is no operand of control flow or of the host";
        return Err(error::bad_graph(name, what, "give its placeholder a shape"));
    }
    if flow.results.is_empty() {
        // Without results it is there for its effects.
        if flow.has_effect() {
            trace.add(|graph| {
                graph.flow(flow, &nodes);
                Ok(Id(graph.len() as u32 - 1))
            })?;
        }
        return Ok(Vec::new());
    }
    let mut ids: SmallVec<[Id; 2]> = smallvec![];
    let host = flow.clone();
    trace.add(|graph| {
        ids = graph.flow(flow, &nodes);
        ids.first().copied().ok_or_else(|| error::internal("control flow without results"))
    })?;
    if trace.is_no_grad() {
        trace.mark_no_grad(&ids);
    }
    let plain: Vec<Value> = ids.iter().map(|&id| trace.value(id)).collect();
    if let (true, ControlFlowKind::Host(op)) = (record, &host.kind) {
        return host::recorded(op, &host, &args, plain);
    }
    let wants = record && args.iter().any(Value::requires_grad);
    let Some(&first) = ids.first().filter(|_| wants) else { return Ok(plain) };
    let id = trace.read(|graph| graph.nodes()[first.0 as usize].reads().next());
    let id = id.ok_or_else(|| error::internal("a result node names no node"))?;
    let inputs = args.clone();
    let emitted = Arc::new(Emitted { trace, id, args, entry: OnceLock::new() });
    let arrays = plain.into_iter().map(|value| value.array).collect();
    let values = record_host(Arc::new(ControlFlowRule(emitted.clone())), &inputs, arrays);
    let entry = values.iter().find_map(|value| match &value.history {
        History::Entry(entry, _) => Some(Arc::downgrade(entry)),
        History::None | History::Leaf(_) => None,
    });
    if let Some(entry) = entry {
        let _ = emitted.entry.set(entry);
    }
    Ok(values.into_vec())
}

impl Emitted {
    /// A result that the gradient reads.
    fn residual(&self, k: usize, record: bool) -> Value {
        let id = self.trace.read(|graph| graph.part(self.id, k));
        let value = self.trace.value(id);
        let entry = self.entry.get().and_then(Weak::upgrade);
        match entry {
            Some(entry) if record && value.dtype().is_float() => {
                entry.widen(k, &value.array);
                Value { history: History::Entry(entry, k as u32), ..value }
            }
            _ => value,
        }
    }
}

impl HostRule for ControlFlowRule {
    fn name(&self) -> &str {
        "control flow"
    }

    fn object(&self) -> Option<*mut c_void> {
        None
    }

    fn backward(&self, given: &[Option<Value>], record: bool) -> Result<Vec<Option<Value>>> {
        let emitted = &self.0;
        let _on = emitted.trace.device().enter();
        let mut given = given.to_vec();
        let kind = emitted.trace.read(|graph| graph.nodes()[emitted.id.0 as usize].kind.clone());
        let Kind::ControlFlow(flow) = kind else {
            return Err(error::internal("the gradient of control flow was asked of another node"));
        };
        given.resize(flow.results.len(), None);
        let has: Vec<bool> = given.iter().map(Option::is_some).collect();
        let wanted: Vec<bool> = emitted.args.iter().map(Value::requires_grad).collect();
        let count = || emitted.trace.read(unused_count);
        let Some(gradient) = control_flow_gradient(&flow, &has, &wanted, &count)? else {
            return Ok(vec![None; wanted.len()]);
        };
        emitted.trace.read(|graph| {
            graph.looks_at_all(&gradient.looked);
            graph.widen(emitted.id, gradient.widened);
        });
        let mut operands = Vec::with_capacity(gradient.feeds.len());
        for feed in gradient.feeds {
            operands.push(match feed {
                Feed::Operand(i) => emitted.args[i].clone(),
                Feed::Result(i) => emitted.residual(i, record),
                Feed::Cotangent(i) => {
                    given[i].clone().ok_or_else(|| error::internal("a cotangent is missing"))?
                }
                Feed::Zeros(ty) => {
                    apply(Op::Full(ty), &[Operand::Scalar(Scalar::Int(0).into())], false)?
                }
            });
        }
        let found = emit(gradient.flow, operands, record)?;
        Ok(gradient.places.into_iter().map(|place| place.map(|i| found[i].clone())).collect())
    }
}

// Transformed functions.

/// A list with values for its inputs, run in one piece where nothing is recorded or traced.
pub fn call(list: &Arc<List>, inputs: Vec<Value>) -> Result<Vec<Value>> {
    if let Some(_entered) = entered("call", &inputs)? {
        let numbers = match trace::top() {
            Some(trace) => trace.read(|graph| graph.numbers_of(list)),
            None => Vec::new(),
        };
        return interpret(list, inputs, &numbers);
    }
    if tape::recording() && inputs.iter().any(Value::requires_grad) {
        return interpret(list, inputs, &[]);
    }
    let arrays: SmallVec<[&Array; 8]> = inputs.iter().map(|value| &value.array).collect();
    let device = executors::common("call", arrays.iter().copied())?;
    let program = Program::new(device, (**list).clone(), Vec::new(), Scope::new());
    let found = program.run(&arrays, &[], &[])?;
    Ok(found.into_iter().map(Value::plain).collect())
}
