//! Self-check: compares the results of a plan with those of the list it was made from.
//!
//! The list is run on the same inputs, node by node as it was traced, but without its effects,
//! which happen once. The results must have the same bits; payloads of NaNs do not count. Where
//! results differ, the passes are run one by one until one changes a result. If none does, the
//! schedule is at fault. The program is then made smaller as long as it still shows the fault, and
//! written to a file.
//!
//! With the reference check the list is also expanded to ops, and each op's result is compared with
//! the reference's on the same operands, within the error bound of the op. So a wrong kernel is
//! found where it ran, whatever later ops make of its result.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustc_hash::FxHashMap;

use super::executors::{self, Device, executor};
use super::interpret::{self, Interpreter, Results};
use super::oracle::Oracle;
use super::site;
use crate::array::Array;
use crate::dtype::Scalar;
use crate::error::{self, Error, Kind as ErrorKind, Result};
use crate::executor::Input;
use crate::graph::replay::Calls;
use crate::graph::{self, Graph, Kind, List, resize};
use crate::ops::emit::{Arg, Id};
use crate::passes::{Options, alone, expand_for, stages, stripped};
use crate::shape::{Bindings, Scope};
use crate::watch;

/// The most nodes of a program that is made smaller; a larger one would take too long.
const LARGE: usize = 2000;

/// A run to be checked.
pub struct Held<'a> {
    /// The list as it was traced
    pub list: &'a List,
    /// The options of the passes
    pub options: &'a Options,
    /// The scope of its symbols
    pub scope: &'a Scope,
    /// The device that it runs on
    pub device: Device,
    /// The inputs as they were before the run
    pub inputs: &'a [Array],
    /// The sizes of the symbols
    pub sizes: Bindings,
    /// The numbers that were given
    pub given: &'a [Scalar],
    /// The calls of host ops that the run made
    pub calls: Calls,
    /// Whether each op is compared with the reference too
    pub by_reference: bool,
}

/// Copies of the inputs that a run may write over; the others as they are.
pub fn copies(inputs: &[Input<'_>]) -> Result<Vec<Array>> {
    let copy = |input: &Input<'_>| match input {
        Input::Lent(array) => Ok((*array).clone()),
        Input::Given(Some(array)) if !array.is_on_host() => {
            executors::transfer(&executors::download(array)?, array.device())
        }
        Input::Given(Some(array)) => {
            let copy = Array::uninit(array.dtype, array.shape().clone())?;
            // SAFETY: the copy is fresh.
            unsafe { executors::copy_into(&copy, array) };
            Ok(copy)
        }
        Input::Given(None) => Err(error::internal("an input is gone before the run")),
    };
    inputs.iter().map(copy).collect()
}

impl Held<'_> {
    /// Refuses results that differ from those of the list.
    pub fn check(&self, found: &[Array]) -> Result<()> {
        if self.options.fast_math && !self.by_reference {
            return Ok(());
        }
        let list = Arc::new(stripped(self.list));
        let wanted = match self.by_reference {
            true => self.interpret_by_reference(&list),
            false => self.interpret(&list, self.inputs).map(|results| (results, None)),
        };
        let wanted = match wanted {
            Ok((_, Some(what))) => {
                let what = format!("self-check: the cpu and the reference differ: {what}");
                return Err(error::internal(what));
            }
            Ok((wanted, None)) => wanted,
            Err(error) if error.kind() == ErrorKind::Memory => return Ok(()),
            // Ctrl-C, or user code.
            Err(error) if matches!(error.code(), "foreign" | "impure") => return Err(error),
            Err(error) => {
                let what = format!("self-check: a plan computes what its list refuses: {error}");
                return Err(error::internal(what));
            }
        };
        if self.options.fast_math {
            return Ok(());
        }
        match difference(&wanted, found)? {
            None => Ok(()),
            Some(what) => Err(self.fault(&list, &wanted, &what)),
        }
    }

    fn interpret(&self, list: &Arc<List>, inputs: &[Array]) -> Result<Results> {
        let inputs: Vec<&Array> = inputs.iter().collect();
        let run = || interpret::run(self.device, list, &inputs, &self.sizes, self.given);
        watch::unchecked(|| self.calls.replay(run))
    }

    /// The results of a list, and the first op whose result differs from the reference.
    fn interpret_by_reference(&self, list: &List) -> Result<(Results, Option<String>)> {
        let graph = Graph::from_list(list.clone());
        // Calls with a kernel are not expanded: the bits of kernel and formula differ. Tests
        // compare the two.
        let kernels = |composite| executor(self.device).has_kernel(composite);
        let expanded = self.scope.run(|| expand_for(&graph, &kernels))?;
        let ops: Arc<List> = expanded.into_list().into();
        let oracle = Oracle::new(self.options.spoils_kernels());
        let inputs = self.inputs.to_vec();
        let run = Interpreter::start(self.device, &ops, inputs, &self.sizes, self.given)?;
        let run = || run.watched(oracle.clone()).finish();
        let results = watch::unchecked(|| self.calls.replay(run))?;
        Ok((results, oracle.found().map(str::to_string)))
    }

    /// The error for a difference: it names the pass at fault and the file with a program that
    /// shows the fault.
    fn fault(&self, list: &List, wanted: &[Array], what: &str) -> Error {
        let (mut pass, mut before) = (None, list.clone());
        let staged = self.scope.run(|| stages(list.clone(), self.options, executor(self.device)));
        for (name, after) in staged.unwrap_or_default() {
            let found = self.interpret(&Arc::new(after.clone()), self.inputs);
            if !matches!(found.and_then(|found| difference(wanted, &found)), Ok(None)) {
                pass = Some(name);
                break;
            }
            before = after;
        }
        let named = pass.map_or("the schedule".to_string(), |name| format!("pass {name}"));
        let smallest = self.smallest(pass, &before);
        let place = match write(&smallest, &format!("{named}: {what}")) {
            Ok(path) => {
                format!("the smallest program found that shows it is in {}", path.display())
            }
            Err(error) => format!("it could not be written down: {error}"),
        };
        error::internal(format!("self-check: {named} changes bits: {what}; {place}"))
    }

    /// Whether a program shows the fault.
    fn fails(&self, pass: Option<&str>, program: &Small) -> bool {
        let both = || -> Result<bool> {
            let list = Arc::new(program.list.clone());
            let wanted = self.interpret(&list, &program.inputs)?;
            let found = match pass {
                Some(name) => {
                    let work =
                        || alone(name, program.list.clone(), self.options, executor(self.device));
                    self.interpret(&self.scope.run(work)?.into(), &program.inputs)?
                }
                None => {
                    let spoiled = self.options.spoiled_for_schedule(&program.list);
                    let graph = Graph::from_list(spoiled.unwrap_or_else(|| program.list.clone()));
                    let kernels = |composite| executor(self.device).has_kernel(composite);
                    let planned = self.scope.run(|| expand_for(&graph, &kernels))?;
                    let numbers = planned.list().evaluate_numbers(self.given, &self.sizes)?;
                    let inputs: Vec<&Array> = program.inputs.iter().collect();
                    self.calls.replay(|| executors::run(&planned, &inputs, &numbers))?
                }
            };
            Ok(difference(&wanted, &found)?.is_some())
        };
        both().unwrap_or(false)
    }

    /// The smallest program found that still shows the fault.
    fn smallest(&self, pass: Option<&str>, list: &List) -> Small {
        let none = FxHashMap::default();
        let sized = self.scope.run(|| resize(list, &self.sizes)).unwrap_or_else(|_| list.clone());
        let whole = Small { list: sized, inputs: self.inputs.to_vec() };
        if whole.list.nodes.len() > LARGE || !self.fails(pass, &whole) {
            return Small { list: list.clone(), inputs: self.inputs.to_vec() };
        }
        let mut small = whole;
        // The first value that is wrong.
        let live = small.list.live();
        let values = (0..small.list.nodes.len() as u32).map(Id).filter(|id| {
            let node = small.list.node(*id);
            live[id.0 as usize]
                && matches!(node.kind, Kind::Op(_) | Kind::Result(_) | Kind::Barrier)
        });
        let found = values.map(|id| small.cut(&[id], &none)).find(|cut| self.fails(pass, cut));
        if let Some(found) = found {
            small = found;
        }
        // Its operands become inputs, as long as it stays wrong.
        let Ok(values) = self.values(&small) else { return small };
        let outputs = small.list.outputs.clone();
        let mut known: FxHashMap<Id, Array> = FxHashMap::default();
        for (id, value) in values {
            if outputs.contains(&id) {
                continue;
            }
            known.insert(id, value);
            if !self.fails(pass, &small.cut(&outputs, &known)) {
                known.remove(&id);
            }
        }
        small.cut(&outputs, &known)
    }

    /// The values of ops, latest first.
    fn values(&self, program: &Small) -> Result<Vec<(Id, Array)>> {
        let list = Arc::new(program.list.clone());
        let inputs = program.inputs.clone();
        let mut run = Interpreter::start(self.device, &list, inputs, &self.sizes, self.given)?;
        let mut all = || -> Result<()> {
            while run.step()?.is_some() {}
            Ok(())
        };
        watch::unchecked(|| self.calls.replay(&mut all))?;
        let ids = (0..list.nodes.len() as u32).rev().map(Id);
        let ops = ids.filter(|id| matches!(list.node(*id).kind, Kind::Op(_) | Kind::Result(_)));
        let value = |id| Some((id, run.value(id)?.first()?.clone()));
        Ok(ops.filter_map(value).collect())
    }
}

/// A program with its inputs.
struct Small {
    list: List,
    inputs: Vec<Array>,
}

impl Small {
    /// The program that computes `outputs`; known nodes become its inputs.
    fn cut(&self, outputs: &[Id], known: &FxHashMap<Id, Array>) -> Small {
        let mut live = vec![false; self.list.nodes.len()];
        outputs.iter().for_each(|id| live[id.0 as usize] = true);
        for (i, node) in self.list.nodes.iter().enumerate().rev() {
            if live[i] && !known.contains_key(&Id(i as u32)) {
                node.reads().for_each(|id| live[id.0 as usize] = true);
            }
        }
        let mut list = List { numbers: self.list.numbers.clone(), ..List::default() };
        let mut names = vec![Id(0); live.len()];
        let (mut inputs, mut given) = (Vec::new(), self.inputs.iter());
        for (i, node) in self.list.nodes.iter().enumerate() {
            let own = if matches!(node.kind, Kind::Input) { given.next() } else { None };
            if !live[i] {
                continue;
            }
            let mut node = node.clone();
            if let Some(array) = known.get(&Id(i as u32)).or(own) {
                node.kind = Kind::Input;
                node.args.clear();
                inputs.push(array.clone());
            }
            for arg in &mut node.args {
                if let Arg::Node(id) = arg {
                    *id = names[id.0 as usize];
                }
            }
            names[i] = Id(list.nodes.len() as u32);
            list.nodes.push(node);
        }
        list.outputs = outputs.iter().map(|id| names[id.0 as usize]).collect();
        Small { list, inputs }
    }
}

/// Writes a program to a file, as text that `wengert.parse_graph` reads. Inputs that are small are
/// added in comments.
fn write(program: &Small, what: &str) -> std::io::Result<PathBuf> {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let n = SERIAL.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("wengert-check-{}-{n}.txt", std::process::id()));
    let mut text = format!("# {what}\n");
    let inputs = Graph::from_list(List::default());
    for array in &program.inputs {
        if let Ok(array) = executors::download(array) {
            inputs.constant(array);
        }
    }
    for line in inputs.list_mut().print_short(site::describe).lines() {
        let _ = writeln!(text, "# given: {line}");
    }
    let device = program.inputs.first().map_or(Device::Cpu, Array::device);
    text.push_str(&program.list.print_on(device, site::describe));
    std::fs::write(&path, text)?;
    Ok(path)
}

/// The first difference between results.
fn difference(wanted: &[Array], found: &[Array]) -> Result<Option<String>> {
    if wanted.len() != found.len() {
        return Ok(Some(format!("{} results became {}", wanted.len(), found.len())));
    }
    for (i, (a, b)) in wanted.iter().zip(found).enumerate() {
        if let Some(what) = graph::difference(&executors::download(a)?, &executors::download(b)?) {
            return Ok(Some(format!("result {i}: {what}")));
        }
    }
    Ok(None)
}
