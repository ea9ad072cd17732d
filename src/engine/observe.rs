//! Watched ops: timed, and checked for values that are not finite.

use smallvec::SmallVec;

use super::executors;
use super::site;
use super::tape::{Operand, Value};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::graph::print::array_text;
use crate::ops::attributes::Reduction;
use crate::ops::declare::Composite;
use crate::ops::elementwise::{Elementwise, comparison};
use crate::ops::op::{Op, Type};
use crate::passes::cost;
use crate::watch::{self, Event, Work};

/// Runs an op on arrays, timed and checked as the settings ask.
#[cold]
pub fn op(op: &Op, args: &[Operand<'_>], run: impl FnOnce() -> Result<Array>) -> Result<Array> {
    let start = watch::now();
    let result = run()?;
    if watch::timing() {
        let duration = watch::now() - start;
        let types: SmallVec<[Option<Type>; 4]> = args.iter().map(|&arg| type_of(arg)).collect();
        let cost = cost::of_call(op, &types, &own_type(&result));
        watch::record(Event {
            work: Work::Op,
            name: op.name().into(),
            site: site::current(),
            start,
            duration,
            thread: watch::thread(),
            bytes: cost.bytes,
            flops: cost.flops,
            detail: format!("{} {}", result.dtype, result.shape()),
        });
    }
    if watch::checking() {
        #[allow(
            clippy::wildcard_enum_match_arm,
            reason = "only elementwise ops name their operands"
        )]
        let names = |i: usize| match op {
            Op::Map(def) => def.params.get(i).map(|param| param.name),
            _ => None,
        };
        check(op.name(), &names, args, &result)?;
    }
    Ok(result)
}

/// Runs a composite. Of a composite that is one node only the results are checked, since its
/// formula is an implementation detail.
#[cold]
pub fn composite(
    composite: &'static Composite,
    args: &[Operand<'_>],
    run: impl FnOnce() -> Result<SmallVec<[Value; 1]>>,
) -> Result<SmallVec<[Value; 1]>> {
    let is_node = composite.stays();
    let results = timed(Work::Composite, composite.name, || match is_node {
        true => watch::unchecked(run),
        false => run(),
    })?;
    if is_node && watch::checking() {
        for result in &results {
            check(composite.name, &|_| None, args, &result.array)?;
        }
    }
    Ok(results)
}

/// Runs `run`, and records its time if times are recorded.
pub fn timed<T>(work: Work, name: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    if !watch::timing() {
        return run();
    }
    let start = watch::now();
    let result = run()?;
    watch::record(Event {
        work,
        name: name.into(),
        site: site::current(),
        start,
        duration: watch::now() - start,
        thread: watch::thread(),
        bytes: 0,
        flops: 0,
        detail: String::new(),
    });
    Ok(result)
}

fn own_type(array: &Array) -> Type {
    Type::new(array.dtype, array.shape().clone())
}

fn type_of(arg: Operand<'_>) -> Option<Type> {
    match arg {
        Operand::Value(value) => Some(own_type(&value.array)),
        Operand::Scalar(_) => None,
    }
}

/// Refuses a result that is not finite although all operands are.
fn check(
    name: &str,
    names: &dyn Fn(usize) -> Option<&'static str>,
    args: &[Operand<'_>],
    result: &Array,
) -> Result<()> {
    if is_finite(result)? {
        return Ok(());
    }
    for arg in args {
        let finite = match arg {
            Operand::Value(value) => is_finite(&value.array)?,
            Operand::Scalar(value) => value.known().is_none_or(|x| x.as_f64().is_finite()),
        };
        if !finite {
            return Ok(());
        }
    }
    let what = if every(&comparison::equal, result)? { "an infinity" } else { "nan" };
    let mut facts = Vec::with_capacity(args.len());
    for (i, &arg) in args.iter().enumerate() {
        let name = names(i).map_or_else(|| format!("operand {i}"), String::from);
        facts.push(format!("{name} is {}", described(arg)?));
    }
    let facts = if facts.is_empty() { "it has none".into() } else { facts.join(", ") };
    let refusal = error::not_finite(name, what, facts);
    Err(match site::describe(site::current()) {
        Some(line) => refusal.note(format!("at {line}")),
        None => refusal,
    })
}

/// An operand as text for messages: its type and range.
fn described(arg: Operand<'_>) -> Result<String> {
    let array = match arg {
        Operand::Scalar(value) => return Ok(value.to_string()),
        Operand::Value(value) => &executors::download(&value.array)?,
    };
    let ty = format!("{} {}", array.dtype, array.shape());
    if array.dtype == DType::Bool || array.count() == 0 {
        return Ok(ty);
    }
    let low = array_text(&reduced(Reduction::Min, array)?);
    let high = array_text(&reduced(Reduction::Max, array)?);
    Ok(if low == high { format!("{ty} of {low}") } else { format!("{ty} from {low} to {high}") })
}

/// Whether no element is a NaN or an infinity.
fn is_finite(array: &Array) -> Result<bool> {
    if !array.dtype.is_float() || array.count() == 0 {
        return Ok(true);
    }
    let array = &executors::download(array)?;
    let finite = executors::map(&comparison::isfinite, &[executors::Operand::Array(array)])?;
    Ok(truth(&reduced(Reduction::All, &finite)?))
}

/// Whether a comparison of an array with itself holds everywhere.
fn every(def: &'static Elementwise, array: &Array) -> Result<bool> {
    let array = &executors::download(array)?;
    let equal =
        executors::map(def, &[executors::Operand::Array(array), executors::Operand::Array(array)])?;
    Ok(truth(&reduced(Reduction::All, &equal)?))
}

/// A reduction over all axes.
fn reduced(kind: Reduction, array: &Array) -> Result<Array> {
    let axes = (0..array.shape().rank()).collect();
    match array.shape().rank() {
        0 => Ok(array.clone()),
        _ => executors::execute(&Op::Reduce(kind, axes), &[executors::Operand::Array(array)]),
    }
}

fn truth(array: &Array) -> bool {
    // SAFETY: a scalar of bool is one byte, which is set.
    unsafe { *array.ptr() != 0 }
}
