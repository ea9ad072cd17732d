//! Plans on a device: their steps are recorded one after the other and given together.
//!
//! A run waits only where the host must look at a value: at conditions of control flow, at what is
//! printed, and at operands of host ops.

use std::sync::Arc;

use smallvec::SmallVec;

use super::device::Gpu;
use super::executor::{Given, What};
use super::memory::{Held, own};
use super::work::Recording;
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::executor::{Executable, Input, Results, hooks, located};
use crate::graph::{ControlFlowKind, Effect};
use crate::layout::Layout;
use crate::ops::op::{Op, SliceAxis, Type};
use crate::schedule::{self, Bodies, Number, Plan, Sequel, Source, Step, Template, Work};
use crate::shape::{Dim, Shape};
use crate::site::Site;

/// A template whose plans are recorded step by step; kernels are kept by the device.
pub struct Program {
    gpu: &'static Gpu,
    template: Arc<Template>,
}

impl Program {
    /// The program of a template.
    pub fn new(gpu: &'static Gpu, template: Arc<Template>) -> Program {
        Program { gpu, template }
    }
}

impl Executable for Program {
    fn template(&self) -> &Arc<Template> {
        &self.template
    }

    fn run(&self, plan: &Arc<Plan>, inputs: &[&Array], numbers: &[Scalar]) -> Result<Results> {
        if !Arc::ptr_eq(plan.template(), &self.template) {
            return Err(error::internal("a plan was run by the executable of another"));
        }
        let mut tape = Tape { gpu: self.gpu, numbers, recording: Recording::default() };
        let inputs = inputs.iter().map(|x| self.gpu.held(x, &mut tape.recording));
        let inputs = inputs.collect::<Result<Vec<Held>>>()?;
        let results = tape.plan(plan, &inputs)?;
        Ok(self.gpu.values("call", results, tape.recording)?.into_iter().collect())
    }

    fn run_with(
        &self,
        plan: &Arc<Plan>,
        inputs: &mut [Input<'_>],
        numbers: &[Scalar],
    ) -> Result<Results> {
        // Nothing is written over, so what was given stays.
        let lent = inputs.iter().map(Input::array).collect::<Result<Vec<&Array>>>()?;
        self.run(plan, &lent, numbers)
    }
}

/// A run that is recorded.
struct Tape<'a> {
    gpu: &'static Gpu,
    numbers: &'a [Scalar],
    recording: Recording,
}

impl Tape<'_> {
    fn plan(&mut self, plan: &Plan, inputs: &[Held]) -> Result<Vec<Held>> {
        if inputs.len() != plan.inputs().len() {
            return Err(error::internal("a plan was run on the wrong count of inputs"));
        }
        let mut slots: Vec<Option<Held>> = vec![None; plan.slots().len()];
        let mut constants: Vec<Option<Held>> = vec![None; plan.constants().len()];
        for step in plan.steps() {
            let results = self
                .step(plan, step, inputs, &slots, &mut constants)
                .map_err(|refusal| located(refusal, step.site))?;
            for (&slot, result) in step.results.iter().zip(results) {
                slots[slot as usize] = Some(result);
            }
            for &slot in &step.last {
                slots[slot as usize] = None;
            }
        }
        let outputs = plan.outputs().iter();
        outputs.map(|&source| self.array(plan, source, inputs, &slots, &mut constants)).collect()
    }

    fn array(
        &mut self,
        plan: &Plan,
        source: Source,
        inputs: &[Held],
        slots: &[Option<Held>],
        constants: &mut [Option<Held>],
    ) -> Result<Held> {
        let found = match source {
            Source::Input(i) => inputs.get(i as usize).cloned(),
            Source::Slot(i) => slots[i as usize].clone(),
            Source::Constant(i) => {
                let place = &mut constants[i as usize];
                if place.is_none() {
                    let held =
                        self.gpu.constant(&plan.constants()[i as usize], &mut self.recording)?;
                    *place = Some(held);
                }
                place.clone()
            }
        };
        found.ok_or_else(|| error::internal(format!("{source} is not there")))
    }

    fn number(&self, number: Number) -> Scalar {
        match number {
            Number::Constant(value) => value,
            Number::Input(i) => self.numbers[i as usize],
        }
    }

    fn step(
        &mut self,
        plan: &Plan,
        step: &Step,
        inputs: &[Held],
        slots: &[Option<Held>],
        constants: &mut [Option<Held>],
    ) -> Result<Vec<Held>> {
        if let Work::Group(_) = &step.work
            && let Some(Sequel { group, operands }) = plan.elementwise(step)
        {
            let (mut held, mut numbers) = (Vec::new(), Vec::new());
            for operand in &operands {
                match *operand {
                    schedule::Operand::Array(x) => {
                        held.push(self.array(plan, x, inputs, slots, constants)?);
                    }
                    schedule::Operand::Number(number) => numbers.push(self.number(number)),
                }
            }
            let shape = match group.shape.is_known() {
                true => group.shape.clone(),
                false => joint(&held)?,
            };
            let types: Vec<Type> =
                group.program.dtypes().map(|dtype| Type::new(dtype, shape.clone())).collect();
            let given = held.iter().map(Given::Held);
            let given: SmallVec<[Given<'_>; 8]> =
                given.chain(numbers.into_iter().map(Given::Number)).collect();
            let what = What::Group(group.program.clone(), shape);
            let made = self.gpu.record(&what, &given, &types, step.site, &mut self.recording)?;
            return Ok(made.into_vec());
        }
        let mut args: SmallVec<[Option<Held>; 4]> = SmallVec::new();
        for operand in &step.args {
            args.push(match *operand {
                schedule::Operand::Array(x) => Some(self.array(plan, x, inputs, slots, constants)?),
                schedule::Operand::Number(_) => None,
            });
        }
        let arrays = || args.iter().flatten().cloned().collect::<Vec<Held>>();
        match &step.work {
            Work::Op(op) => {
                let given = args.iter().zip(&step.args).map(|(held, arg)| match (held, *arg) {
                    (Some(held), _) => Given::Held(held),
                    (None, schedule::Operand::Number(number)) => Given::Number(self.number(number)),
                    (None, schedule::Operand::Array(_)) => Given::Number(Scalar::Int(0)),
                });
                let given: SmallVec<[Given<'_>; 4]> = given.collect();
                Ok(vec![self.op(op, &given, step.site)?])
            }
            Work::Alias => Ok(arrays()),
            Work::Effect(effect) => self.effect(arrays(), effect, step.site).map(|()| Vec::new()),
            Work::ControlFlow(bodies) => self.flow(arrays(), bodies),
            Work::Group(_) | Work::Product(_) | Work::BlockFusion(_) => {
                Err(error::internal(format!("the device offers no {}", step.name())))
            }
        }
    }

    /// One op, which may be a view.
    fn op(&mut self, op: &Op, given: &[Given<'_>], site: Site) -> Result<Held> {
        use crate::ops::op::OperandType;
        if let [Given::Held(x)] = given
            && let Some(layout) = op.view(x.dtype, &x.layout)
        {
            return Ok(x.seen(layout));
        }
        let types: SmallVec<[OperandType<'_>; 4]> = given
            .iter()
            .map(|arg| match arg {
                Given::Held(x) => OperandType::Tensor(x.dtype, x.layout.shape()),
                Given::Number(value) => OperandType::Scalar((*value).into()),
            })
            .collect();
        let ty = op.infer(&types)?;
        let what = What::Op(op.clone());
        let made = self.gpu.record(&what, given, &[ty], site, &mut self.recording);
        Ok(made?.swap_remove(0))
    }

    /// The array in host memory. What is recorded is given before.
    fn look(&mut self, x: Held) -> Result<Array> {
        self.flush()?;
        self.gpu.read(x, Recording::default())
    }

    /// Gives what is recorded, and raises what it refuses.
    fn flush(&mut self) -> Result<()> {
        let recording = std::mem::take(&mut self.recording);
        let may_fail = !(recording.needs.is_empty() && recording.faults.is_empty());
        let job = self.gpu.give("call", recording)?;
        match may_fail {
            true => self.gpu.settled(&job),
            false => Ok(()),
        }
    }

    fn integer(&mut self, x: Held) -> Result<i64> {
        let x = self.op(&Op::Cast(DType::I64), &[Given::Held(&x)], Site::default())?;
        let x = self.look(x)?;
        // SAFETY: the array is a scalar of int64.
        Ok(unsafe { x.ptr().cast::<i64>().read_unaligned() })
    }

    fn effect(&mut self, arrays: Vec<Held>, effect: &Effect, site: Site) -> Result<()> {
        match effect {
            Effect::Check(message) => {
                let given = Given::Held(&arrays[0]);
                let truth = self.op(&Op::Cast(DType::Bool), &[given], site)?;
                let truth = self.look(truth)?;
                // SAFETY: a contiguous array of bools, one byte each.
                let bytes = unsafe { std::slice::from_raw_parts(truth.ptr(), truth.count()) };
                match bytes.iter().position(|&byte| byte == 0) {
                    None => Ok(()),
                    Some(i) => {
                        let what = format!("element {i} (in C order) is false");
                        Err(error::bad_value("check", message, what))
                    }
                }
            }
            Effect::Print(text) => {
                let arrays =
                    arrays.into_iter().map(|x| self.look(x)).collect::<Result<Vec<_>>>()?;
                match hooks() {
                    Some(hooks) => (hooks.print)(text, &arrays),
                    None => Err(error::internal("nobody installed what prints")),
                }
            }
        }
    }

    fn flow(&mut self, args: Vec<Held>, flow: &Bodies) -> Result<Vec<Held>> {
        match *flow.kind() {
            ControlFlowKind::Host(_) if !flow.plans().is_empty() => {
                self.plan(&flow.plans()[0], &args)
            }
            ControlFlowKind::Host(ref op) => {
                let given = args.into_iter().map(|x| self.look(x)).collect::<Result<Vec<_>>>()?;
                let found = op.run(&given.iter().collect::<Vec<&Array>>(), flow.results())?;
                found.iter().map(|y| self.gpu.held(y, &mut self.recording)).collect()
            }
            ControlFlowKind::Branch => {
                let last = flow.plans().len() as i64 - 1;
                let i = self.integer(args[0].clone())?.clamp(0, last) as usize;
                self.plan(&flow.plans()[i], &args[1..])
            }
            ControlFlowKind::While { carry, history } => {
                let (mut now, captures) =
                    (args[..carry as usize].to_vec(), &args[carry as usize..]);
                let mut rounds: Vec<Vec<Held>> = Vec::new();
                let mut count = 0;
                loop {
                    let given = [&now, captures].concat();
                    let condition = self.plan(&flow.plans()[0], &given)?.swap_remove(0);
                    if self.integer(condition)? == 0 {
                        break;
                    }
                    let next = self.plan(&flow.plans()[1], &given)?;
                    let before = std::mem::replace(&mut now, next);
                    count += 1;
                    if history {
                        rounds.push(before);
                    }
                }
                if history {
                    for k in 0..carry as usize {
                        let one = Type::new(now[k].dtype, now[k].layout.shape().clone());
                        let all: Vec<Held> = rounds.iter().map(|round| round[k].clone()).collect();
                        let all = self.stack(&all, &one)?;
                        now.push(all);
                    }
                    let one = Op::Full(Type::new(DType::I64, Shape::scalar()));
                    now.push(self.op(
                        &one,
                        &[Given::Number(Scalar::Int(count))],
                        Site::default(),
                    )?);
                }
                Ok(now)
            }
            ControlFlowKind::Scan { carry, xs, length, reverse } => {
                let (carry, xs) = (carry as usize, xs as usize);
                let given = args[carry..carry + xs].first().map(|x| x.layout.shape()[0]);
                let Some(n) = given.unwrap_or(length).known() else {
                    return Err(error::unknown_size("scan", length));
                };
                let mut now = args[..carry].to_vec();
                let stacked = flow.results().len() - carry;
                let mut all: Vec<Vec<Held>> = vec![Vec::new(); stacked];
                for round in 0..n {
                    let at = if reverse { n - 1 - round } else { round };
                    let mut given = now;
                    for x in &args[carry..carry + xs] {
                        given.push(self.element(x, at)?);
                    }
                    given.extend_from_slice(&args[carry + xs..]);
                    let mut made = self.plan(&flow.plans()[0], &given)?;
                    for (all, one) in all.iter_mut().zip(made.split_off(carry)) {
                        all.push(one);
                    }
                    now = made;
                }
                for (k, mut rows) in all.into_iter().enumerate() {
                    if reverse {
                        rows.reverse();
                    }
                    let ty = &flow.results()[carry + k];
                    let one: Shape = ty.shape.dims()[1..].iter().copied().collect();
                    let rows = self.stack(&rows, &Type::new(ty.dtype, one))?;
                    now.push(rows);
                }
                Ok(now)
            }
        }
    }

    /// Element `i` of the leading axis.
    fn element(&mut self, x: &Held, i: usize) -> Result<Held> {
        let at = x.layout.shape().dims().iter().enumerate().map(|(axis, &size)| match axis {
            0 => SliceAxis { start: Dim::new(i), size: Dim::new(1), step: 1 },
            _ => SliceAxis { start: Dim::new(0), size, step: 1 },
        });
        let slice = Op::Slice(at.collect());
        let part = self.op(&slice, &[Given::Held(x)], Site::default())?;
        let rest: Shape = x.layout.shape().dims()[1..].iter().copied().collect();
        self.op(&Op::Reshape(rest), &[Given::Held(&part)], Site::default())
    }

    /// Arrays of one type along a new leading axis.
    fn stack(&mut self, rows: &[Held], one: &Type) -> Result<Held> {
        let with = |n: usize| -> Shape {
            std::iter::once(Dim::new(n)).chain(one.shape.dims().iter().copied()).collect()
        };
        if rows.is_empty() {
            let layout = Layout::contiguous(with(0));
            return Ok(Held { dtype: one.dtype, layout, buffer: self.gpu.buffer(0)? });
        }
        let mut parts = Vec::new();
        for x in rows {
            parts.push(self.op(&Op::Reshape(with(1)), &[Given::Held(x)], Site::default())?);
        }
        let parts: Vec<Given<'_>> = parts.iter().map(Given::Held).collect();
        self.op(&Op::Concat(0), &parts, Site::default())
    }
}

/// The shape that arrays broadcast to.
fn joint(arrays: &[Held]) -> Result<Shape> {
    let start = Shape::scalar();
    arrays.iter().try_fold(start, |shape, x| shape.broadcast(x.layout.shape(), "group"))
}

impl Gpu {
    /// A constant of a plan, which is sent once.
    fn constant(&'static self, x: &Array, recording: &mut Recording) -> Result<Held> {
        if own(x)?.is_some() {
            return self.held(x, recording);
        }
        let key = x.data.address();
        if let Some((known, held)) = self.constants.lock().get(&key)
            && known.data.same(&x.data)
            && known.layout == x.layout
        {
            return Ok(held.clone());
        }
        let held = self.held(x, recording)?;
        let mut constants = self.constants.lock();
        if constants.len() >= MOST_CONSTANTS {
            constants.clear();
        }
        constants.insert(key, (x.clone(), held.clone()));
        Ok(held)
    }
}

/// The most constants that are kept on a device.
const MOST_CONSTANTS: usize = 1 << 10;
