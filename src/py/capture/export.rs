//! Executables as programs for WebGPU: described in JSON, with the tensors that they hold.

use parking_lot::Mutex;
use pyo3::prelude::*;
use serde_json::{Value as Json, json};

use super::{Executable, Output, Place};
use crate::array::Array;
use crate::dtype::{Numeric, Scalar};
use crate::engine::executors;
use crate::engine::export::{Exported, Wanted, export};
use crate::engine::random;
use crate::engine::site::describe;
use crate::engine::tape::{First, Value};
use crate::error::{self, Result};
use crate::gpu::kernel::{MOST_ELEMENTS, Refusal, Times, Word};
use crate::gpu::program::Repeat;
use crate::gpu::shader::F16;
use crate::gpu::target::{Shaders, WEBGPU};
use crate::ops::emit::Id;
use crate::ops::number::Number;
use crate::ops::op::Type;
use crate::ops::origin;
use crate::py::errors::OrRaise;
use crate::py::tensor::{self, handle};
use crate::shape::{Dim, Relation};
use crate::target::Abilities;

/// The version of the description.
const VERSION: u32 = 2;

/// What an input of the program is to whoever plays it.
enum Role {
    /// An argument, by position
    Argument(usize),
    /// A value that it holds
    Held(Array),
    /// A key of random numbers, which each run draws
    Key,
}

/// The program of an executable for the arguments that it was traced with, as JSON; and the tensors
/// that it holds. `limits` are storage buffers of a shader and bytes of a binding; `has_f16` says
/// whether shaders may read floats of 16 bits.
#[pyfunction]
fn _export(
    py: Python<'_>,
    executable: &Executable,
    args: Vec<Bound<'_, PyAny>>,
    leaves: Vec<Bound<'_, PyAny>>,
    limits: (usize, usize),
    has_f16: bool,
) -> PyResult<(String, Vec<Py<PyAny>>)> {
    let exporting = Exporting { py, executable, args, generator: random::state() };
    let (described, held) = exporting.run(&leaves, target(limits, has_f16).or_raise(py)?)?;
    let tensor = |array| tensor::wrap(py, Value::plain(array));
    Ok((described.to_string(), held.into_iter().map(tensor).collect::<PyResult<_>>()?))
}

/// Limits of a target, and whether it has floats of 16 bits.
type Allowed = (usize, usize, bool);

/// The target of these limits, which lives as long as the process.
fn target((buffers, largest): (usize, usize), has_f16: bool) -> Result<&'static Shaders> {
    static MADE: Mutex<Vec<(Allowed, &'static Shaders)>> = Mutex::new(Vec::new());
    let wanted = (buffers, largest, has_f16);
    if wanted == (8, 128 << 20, false) {
        return Ok(&WEBGPU);
    }
    let mut made = MADE.lock();
    if let Some((_, known)) = made.iter().find(|(known, _)| *known == wanted) {
        return Ok(known);
    }
    if made.len() >= 64 {
        return Err(error::bad_value("export", "too many different limits", "at most 64"));
    }
    let new: &'static Shaders = Box::leak(Box::new(
        Shaders::new("webgpu", buffers, largest, largest.max(256 << 20))
            .able(Abilities { has_f16, ..Abilities::LEAST }),
    ));
    made.push((wanted, new));
    Ok(new)
}

struct Exporting<'a, 'py> {
    py: Python<'py>,
    executable: &'a Executable,
    args: Vec<Bound<'py, PyAny>>,
    /// The state of the generator with which a program starts
    generator: random::State,
}

impl Exporting<'_, '_> {
    fn run(
        &self,
        leaves: &[Bound<'_, PyAny>],
        target: &'static Shaders,
    ) -> PyResult<(Json, Vec<Array>)> {
        let (py, executable) = (self.py, self.executable);
        let mut refused = Vec::new();
        let (mut roles, mut keys) = (Vec::new(), Vec::new());
        for (i, input) in executable.inputs.iter().enumerate() {
            roles.push(match &input.place {
                Place::Argument(k) => Role::Argument(*k),
                Place::Key => {
                    keys.push(i);
                    Role::Key
                }
                place @ (Place::Handle(_) | Place::Gradient(_)) => {
                    let array = executable.value(py, place, &self.args)?.array;
                    let array = executors::download(&array).or_raise(py)?;
                    Role::Held(executors::contiguous(&array).or_raise(py)?)
                }
            });
        }
        let list = executable.program.list();
        let inputs: Vec<Id> = list.inputs().collect();
        let mut outputs: Vec<Id> = Vec::new();
        for output in &executable.outputs {
            match output {
                Output::Result(i) => outputs.push(list.outputs[*i]),
                Output::Handle(place) => match self.input(place) {
                    Some(i) => outputs.push(inputs[i]),
                    None => refused.push("it returns a tensor that it does not read".into()),
                },
            }
        }
        let returned = outputs.len();
        let mut state = Vec::new();
        for (input, result) in self.updates(&mut refused) {
            state.push((input as u32, outputs.len() as u32));
            outputs.push(list.outputs[result]);
        }
        if !executable.moved.is_empty() {
            refused.push("it moves results to another device".into());
        }
        let given = executable.numbers(py, leaves)?;
        // Sizes that are made are freed with those of the trace.
        let _keeping = executable.program.scope().keeper().enter();
        let wanted = Wanted { outputs, state: &state, keys: &keys, given: &given, refused };
        let made = py.detach(|| export(&executable.program, target, wanted)).or_raise(py)?;
        self.describe(&made, roles, returned, &state).or_raise(py)
    }

    /// The input at a place.
    fn input(&self, place: &Place) -> Option<usize> {
        self.executable.inputs.iter().position(|input| match (&input.place, place) {
            (Place::Argument(a), Place::Argument(b)) => a == b,
            (Place::Handle(a), Place::Handle(b)) => a.is(b),
            _ => false,
        })
    }

    /// What the program keeps from run to run: `(input, result)`.
    fn updates(&self, refused: &mut Vec<String>) -> Vec<(usize, usize)> {
        let mut state = Vec::new();
        for updated in &self.executable.updates {
            match &updated.place {
                Place::Handle(_) => state.push((updated.input, updated.result)),
                Place::Argument(i) => {
                    refused.push(format!("it updates its argument {i}; return the new value"));
                }
                Place::Gradient(_) | Place::Key => {
                    let i = updated.input;
                    refused.push(format!("it updates its argument {i}; return the new value"));
                }
            }
        }
        for found in &self.executable.gradients {
            let is_it = |place: &Place| matches!(place, Place::Gradient(i) if *i == found.input);
            let input = self.executable.inputs.iter().position(|input| is_it(&input.place));
            match (found.after, found.first, input) {
                // Each run starts from a gradient of its own.
                (None, ..) | (Some(_), First::Nothing | First::Written, _) => {}
                (Some(Some(result)), First::Read, Some(input)) => state.push((input, result)),
                (Some(_), First::Read, _) => refused.push(format!(
                    "the gradient of input {} is there in some runs and not in others; set it to \
                     None first, e.g. optimizer.zero_grad()",
                    found.input
                )),
            }
        }
        state
    }

    fn describe(
        &self,
        made: &Exported,
        roles: Vec<Role>,
        returned: usize,
        state: &[(u32, u32)],
    ) -> Result<(Json, Vec<Array>)> {
        let (program, plan) = (&made.program, &made.plan);
        let mut held = Vec::new();
        let (mut constants, mut states) = (Vec::new(), Vec::new());
        let mut arguments: Vec<Option<usize>> = vec![None; self.args.len()];
        for ((i, role), &buffer) in roles.into_iter().enumerate().zip(&program.inputs) {
            let is_state = state.iter().any(|(input, _)| *input as usize == i);
            match role {
                Role::Argument(k) => arguments[k] = Some(buffer),
                Role::Held(array) if is_state || plan.reads_input(i as u32) => {
                    let to = if is_state { &mut states } else { &mut constants };
                    to.push(json!({"tensor": held.len(), "buffer": buffer}));
                    held.push(array);
                }
                Role::Held(_) | Role::Key => {}
            }
        }
        let generator = program.generator.map(|_| states.len());
        if let Some(buffer) = program.generator {
            states.push(json!({"tensor": held.len(), "buffer": buffer}));
            held.push(random::state_value(self.generator)?);
        }
        for (array, buffer) in &program.constants {
            constants.push(json!({"tensor": held.len(), "buffer": buffer}));
            held.push(executors::contiguous(array)?);
        }
        let mut inputs = Vec::new();
        for (k, arg) in self.args.iter().enumerate() {
            let mut ty = handle("export", arg)
                .map_err(|_| error::internal("an argument is no tensor"))?
                .with_own(|value| Type::new(value.dtype(), value.shape().clone()));
            if let Some(pattern) = self.executable.pattern(k) {
                ty.shape = pattern.clone();
            }
            inputs.push(json!({
                "dtype": ty.dtype.name(), "shape": shape(&ty), "buffer": arguments[k],
            }));
        }
        let outputs = plan.outputs().iter().zip(&program.outputs).take(returned);
        let outputs: Vec<Json> = outputs
            .map(|(&source, buffer)| {
                let ty = plan.ty(source);
                json!({"dtype": ty.dtype.name(), "shape": shape(&ty), "buffer": buffer})
            })
            .collect();
        let own = self.executable.constraints.iter().map(|c| {
            let relation = match c.relation {
                Relation::Equal => "==",
                Relation::NotEqual => "!=",
                Relation::Less => "<",
                Relation::LessEqual => "<=",
            };
            json!([size(c.left), relation, size(c.right), describe(c.site)])
        });
        let counts = program.counts.iter();
        let counts =
            counts.map(|&(count, site)| json!([size(count), "<=", MOST_ELEMENTS, describe(site)]));
        let refusals = program.refusals.iter().map(|(refusal, site)| match refusal {
            Refusal::Outside { op, sizes } => {
                let (op, says, axes) = origin::words(op, site.origin, sizes.len());
                let sizes: Vec<Json> = sizes.iter().map(|&dim| size(dim)).collect();
                let line = describe(*site);
                json!({"kind": "outside", "op": op, "says": says, "axes": axes, "sizes": sizes, "line": line})
            }
            Refusal::False { message, sizes } => {
                let (sizes, line) = (sizes.iter().map(|&dim| size(dim)), describe(*site));
                let sizes: Vec<Json> = sizes.collect();
                json!({"kind": "false", "message": message, "sizes": sizes, "line": line})
            }
        });
        let dispatches = program.dispatches.iter().map(|play| {
            json!({
                "name": play.name,
                "line": describe(play.site),
                "shader": play.text,
                "bind": play.bindings,
                "words": play.words.iter().map(word).collect::<Vec<Json>>(),
                "invocations": size(play.invocations),
                "rounds": size(play.rounds),
            })
        });
        let repeats = program.repeats.iter().filter(|repeat| !repeat.range.is_empty());
        let limits = plan.target().limits();
        let has_f16 = program.texts.iter().any(|text| text.starts_with(F16));
        let features: &[&str] = if has_f16 { &["shader-f16"] } else { &[] };
        let described = json!({
            "version": VERSION,
            "limits": {"storage_buffers": limits.buffers + 1, "binding_bytes": limits.largest},
            "features": features,
            "conditions": own.chain(counts).collect::<Vec<Json>>(),
            "numbers": numbers(&made.numbers, &made.values),
            "shaders": program.texts,
            "buffers": program.buffers.iter().map(|&bytes| size(bytes)).collect::<Vec<Json>>(),
            "inputs": inputs,
            "outputs": outputs,
            "constants": constants,
            "state": states,
            "repeats": repeats.map(repeat).collect::<Vec<Json>>(),
            "generator": generator,
            "faults": program.faults,
            "refusals": refusals.collect::<Vec<Json>>(),
            "dispatches": dispatches.collect::<Vec<Json>>(),
        });
        Ok((described, held))
    }
}

/// A size: a number, or the text of an expression.
fn size(dim: Dim) -> Json {
    match dim.known() {
        Some(n) => json!(n),
        None => json!(dim.to_string()),
    }
}

fn shape(ty: &Type) -> Vec<Json> {
    ty.shape.dims().iter().map(|&dim| size(dim)).collect()
}

fn word(word: &Word) -> Json {
    match *word {
        Word::Bits(bits) => json!(bits),
        Word::Size(dim) => match dim.known() {
            Some(n) => json!(n as u32),
            None => json!(dim.to_string()),
        },
        Word::Minus(dim) => match dim.known() {
            Some(n) => json!((n as u32).wrapping_neg()),
            None => json!(format!("-({dim})")),
        },
        Word::Number { number, dtype, is_high } => {
            json!({"number": number, "dtype": dtype.name(), "high": is_high})
        }
        // Programs write the place of each slot, and rounds as sizes.
        Word::Slot | Word::Round { .. } => json!(0),
    }
}

/// Dispatches that are repeated: the first, the one behind the last, how often, and the symbol of
/// the number of the round.
fn repeat(repeat: &Repeat) -> Json {
    let times = match repeat.times {
        Times::Size(n) => size(n),
        Times::Log { base, of } => json!({"log": base, "of": size(of)}),
    };
    let (from, to) = (repeat.range.start, repeat.range.end);
    json!({"from": from, "to": to, "times": times, "round": repeat.round.to_string()})
}

/// The numbers that sizes decide: the bits of a float64 in hexadecimal, the text of a size, or
/// arithmetic on earlier entries.
fn numbers(table: &[Number], values: &[Option<Scalar>]) -> Vec<Json> {
    let bits = |x: f64| json!({"bits": format!("{:016x}", x.to_bits())});
    let entry = |(number, value): (&Number, &Option<Scalar>)| match (value, *number) {
        (Some(value), _) => bits(value.as_f64()),
        (None, Number::Input) => bits(0.0),
        (None, Number::Size(dim)) => json!({"size": dim.to_string()}),
        (None, Number::Calculated(how, args)) => {
            let args = args.map(|x| match x {
                Numeric::Known(value) => bits(value.as_f64()),
                Numeric::Told(i) => json!(i),
            });
            json!({"do": how.name(), "of": args})
        }
    };
    table.iter().zip(values).map(entry).collect()
}

/// Adds the function to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(pyo3::wrap_pyfunction!(_export, module)?)
}
