//! Programs for a device that somebody else owns.

use super::program::Program;
use super::site;
use crate::dtype::{DType, Numeric, Scalar};
use crate::error::{self, Result};
use crate::gpu::program::{self as played, Terms};
use crate::gpu::target::Shaders;
use crate::graph::{ControlFlowKind, Kind, List};
use crate::ops::emit::{Arg, Id};
use crate::ops::number::Number;
use crate::schedule::{Options, Plan};
use crate::site::Site;

/// What is exported of a program.
pub struct Wanted<'a> {
    /// The nodes whose values are the results, those of state last
    pub outputs: Vec<Id>,
    /// State: results that become the value of an input, `(input, result)` by position
    pub state: &'a [(u32, u32)],
    /// The inputs that are random keys, by position
    pub keys: &'a [usize],
    /// The numbers that are given, which become constants
    pub given: &'a [Scalar],
    /// What else cannot be exported
    pub refused: Vec<String>,
}

/// A program, lowered, with its plan.
pub struct Exported {
    /// What runs
    pub program: played::Program,
    /// What it was made from
    pub plan: Plan,
    /// The table of numbers of the plan
    pub numbers: Vec<Number>,
    /// The values of its entries that no size decides
    pub values: Vec<Option<Scalar>>,
}

/// The program for a target, lowered. Refuses all places at once that shaders cannot compute. Sizes
/// that are made are those of the scope's keeper, which the caller has entered.
pub fn export(program: &Program, target: &'static Shaders, wanted: Wanted<'_>) -> Result<Exported> {
    let list = program.list_for(target, wanted.outputs)?;
    let mut refused = wanted.refused;
    refused.extend(refusals(&list, wanted.keys));
    if !refused.is_empty() {
        return Err(not_exported(&refused));
    }
    let plan = Plan::of(&list, Options::new(target))?;
    let values = values(&list.numbers, wanted.given)?;
    let number = |i: u32| values.get(i as usize).copied().flatten();
    let terms = Terms { number: &number, state: wanted.state };
    let program = played::Program::of(&plan, &terms).map_err(|offences| {
        let text = |(error, site): &played::Offence| placed(error.message(), *site);
        not_exported(&offences.iter().map(text).collect::<Vec<String>>())
    })?;
    Ok(Exported { program, plan, numbers: list.numbers, values })
}

fn not_exported(refused: &[String]) -> error::Error {
    error::not_exported("export", refused.join("; "))
}

fn placed(what: impl std::fmt::Display, site: Site) -> String {
    match site::describe(site) {
        Some(line) => format!("{what} ({line})"),
        None => what.to_string(),
    }
}

/// The nodes that no shader computes, with the reasons.
fn refusals(list: &List, keys: &[usize]) -> Vec<String> {
    let inputs: Vec<Id> = list.inputs().collect();
    let keys: Vec<Id> = keys.iter().filter_map(|&i| inputs.get(i).copied()).collect();
    let mut found = Vec::new();
    for node in &list.nodes {
        let reads = |wanted: &dyn Fn(Id) -> bool| {
            node.args.iter().any(|arg| matches!(arg, Arg::Node(id) if wanted(*id)))
        };
        let is_double = |id: Id| list.node(id).ty.dtype == DType::F64;
        let what = match &node.kind {
            _ if reads(&|id| keys.contains(&id)) => "it draws random numbers".to_owned(),
            Kind::ControlFlow(flow) => match &flow.kind {
                ControlFlowKind::Host(op) => format!("{}: it runs on the host", op.0.name()),
                ControlFlowKind::Branch
                | ControlFlowKind::While { .. }
                | ControlFlowKind::Scan { .. } => "control flow runs on the host".to_owned(),
            },
            Kind::Effect(effect) => format!("{}: it runs on the host", effect.name()),
            Kind::Op(op) if node.ty.dtype == DType::F64 || reads(&is_double) => {
                format!("{}: shaders have no float64", op.name())
            }
            Kind::Input | Kind::Constant(_) | Kind::Op(_) | Kind::Result(_) | Kind::Barrier => {
                continue;
            }
        };
        let what = placed(what, node.site);
        if !found.contains(&what) {
            found.push(what);
        }
    }
    for &id in &list.outputs {
        let node = list.node(id);
        if node.ty.dtype == DType::F64 && matches!(node.kind, Kind::Input | Kind::Constant(_)) {
            found.push(placed("a result is float64, which shaders have not", node.site));
        }
    }
    found
}

/// The values of a table of numbers as far as no open size decides them.
fn values(table: &[Number], given: &[Scalar]) -> Result<Vec<Option<Scalar>>> {
    let mut given = given.iter();
    let mut values: Vec<Option<Scalar>> = Vec::with_capacity(table.len());
    for number in table {
        let value = |x: Numeric| match x {
            Numeric::Known(value) => Some(value.as_f64()),
            Numeric::Told(i) => values.get(i as usize).copied().flatten().map(|v| v.as_f64()),
        };
        values.push(match *number {
            Number::Input => {
                let given = given.next().copied();
                Some(given.ok_or_else(|| error::internal("a number is missing"))?)
            }
            Number::Size(dim) => dim.known().map(|n| Scalar::Float(n as f64)),
            Number::Calculated(how, [a, b]) => {
                value(a).zip(value(b)).map(|(a, b)| Scalar::Float(how.of(a, b)))
            }
        });
    }
    Ok(values)
}
