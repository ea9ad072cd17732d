//! Programs for a device that somebody else owns.

use super::program::Program;
use super::site;
use crate::dtype::{DType, Numeric, Scalar};
use crate::error::{self, Result};
use crate::gpu::program::{self as played, Terms};
use crate::gpu::target::Shaders;
use crate::graph::{ControlFlowKind, Effect, Kind, List};
use crate::ops::emit::{Arg, Id};
use crate::ops::number::Number;
use crate::schedule::{Options, Plan};
use crate::site::Site;

/// Why a loop on data is refused, and what to do.
const WHILE: &str = "only the device would know the count of rounds; use scan or fori_loop with a \
                     length, and wg.where for what ends early";

/// Why calls of Python are refused, and what to do.
const HOST: &str = "it runs on the host; return what it needs, and call it outside";

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
    refusals(&list, &mut refused);
    if !refused.is_empty() {
        return Err(not_exported(&refused));
    }
    let plan = Plan::of(&list, Options::new(target))?;
    let values = values(&list.numbers, wanted.given)?;
    let number = |i: u32| values.get(i as usize).copied().flatten();
    let terms = Terms { number: &number, state: wanted.state, keys: wanted.keys };
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
fn refusals(list: &List, found: &mut Vec<String>) {
    for node in &list.nodes {
        let is_double =
            |arg: &Arg| matches!(arg, Arg::Node(id) if list.node(*id).ty.dtype == DType::F64);
        let what = match &node.kind {
            Kind::ControlFlow(flow) => {
                flow.bodies.iter().for_each(|body| refusals(body, found));
                match &flow.kind {
                    ControlFlowKind::Branch | ControlFlowKind::Scan { .. } => continue,
                    ControlFlowKind::Host(_) if !flow.bodies.is_empty() => continue,
                    ControlFlowKind::Host(op) => format!("{}: {HOST}", op.0.name()),
                    ControlFlowKind::While { .. } => format!("{}: {WHILE}", flow.kind.name()),
                }
            }
            Kind::Effect(effect) => match **effect {
                Effect::Check(_) => continue,
                Effect::Print(_) => format!("{}: {HOST}", effect.name()),
            },
            Kind::Op(op) if node.ty.dtype == DType::F64 || node.args.iter().any(is_double) => {
                format!("{}: shaders have no float64; cast first", op.name())
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
