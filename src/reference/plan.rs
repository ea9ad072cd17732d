//! The reference as a target and an executor: plans run step by step, each step in memory of its
//! own.
//!
//! It fuses nothing and offers nothing, so that a plan for it is the list in some order. What such
//! a plan gives shows what the planner itself does: what two targets disagree about is not the
//! plan's meaning.
//!
//! Long, because its tests, which hold it against the CPU, stand in it: they are no part of its
//! layer.

use std::sync::Arc;

use smallvec::SmallVec;

use super::memory::{self, inside, is_deferred, ready, submit};
use super::{Operand as Given, run};
use crate::array::{Array, Operand};
use crate::dtype::{DType, Scalar};
use crate::error::{self, Error, Result};
use crate::executor::{Executable, Executor, Input, Results, admit, hooks, located};
use crate::graph::{ControlFlowKind, Effect};
use crate::layout::Layout;
use crate::memory::ALIGN;
use crate::ops::declare::Composite;
use crate::ops::element::ElementOp;
use crate::ops::op::{Op, OperandType, SliceAxis, Type};
use crate::passes::Evaluator;
use crate::schedule::{
    self, Bodies, Epilogue, Group, Number, Plan, Product, Prologue, Source, Step, Template, Work,
};
use crate::shape::{Dim, Shape};
use crate::site::Site;
use crate::small::small;
use crate::target::{Limits, Ranges, Target};

/// Plain loops, for clarity.
pub struct Reference;

/// One op a step.
const LIMITS: Limits = Limits {
    instructions: 1,
    operands: usize::MAX,
    buffers: usize::MAX,
    alignment: ALIGN,
    granularity: 1,
    largest: usize::MAX,
    buffer: usize::MAX,
    ranges: Ranges::Free,
    large: usize::MAX,
    setup: 2,
    blocks: None,
    rows: None,
};

impl Target for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn limits(&self) -> &Limits {
        &LIMITS
    }

    fn lanes(&self) -> usize {
        1
    }

    fn supports(&self, _: &Op, _: &[DType], _: DType) -> bool {
        // What the rules of an op allow has a kernel here.
        true
    }

    fn has_kernel(&self, _: &'static Composite) -> bool {
        false
    }

    fn view(&self, _: &Op, _: DType, _: &Layout) -> Option<Layout> {
        None
    }

    fn fresh_layout(&self, _: &Op, shape: &Shape) -> Layout {
        Layout::contiguous(shape.clone())
    }
}

impl Evaluator for Reference {
    fn evaluate(&self, op: &Op, args: &[Operand<'_>]) -> Result<Array> {
        let mut given: SmallVec<[Given<'_>; 4]> = SmallVec::new();
        for arg in args {
            given.push(match *arg {
                Operand::Array(x) => Given::Array(x),
                Operand::Scalar(value) => Given::Scalar(value),
            });
        }
        run(op, &given)
    }

    fn has_kernel(&self, composite: &'static Composite) -> bool {
        Target::has_kernel(self, composite)
    }

    fn contiguous(&self, x: &Array) -> Result<Array> {
        run(&Op::Reshape(x.shape().clone()), &[Given::Array(x)])
    }
}

impl Executor for Reference {
    fn target(&self) -> &'static dyn Target {
        &Reference
    }

    fn allocate(&self, ty: &Type) -> Result<Array> {
        let own = ty.clone();
        one(submit(std::slice::from_ref(ty), &[], None, move |_| {
            Ok(vec![Array::uninit(own.dtype, own.shape)?])
        }))
    }

    fn upload(&self, x: &Array) -> Result<Array> {
        // A copy at once: the host may write its memory afterwards.
        let own = self.contiguous(x)?;
        Ok(ready(own))
    }

    fn download(&self, x: &Array) -> Result<Array> {
        self.contiguous(&inside(x)?)
    }

    fn execute(&self, op: &Op, args: &[Operand<'_>], site: Site) -> Result<Array> {
        let types: SmallVec<[OperandType<'_>; 4]> = small(args.iter().map(|arg| match *arg {
            Operand::Array(x) => OperandType::Tensor(x.dtype, x.shape()),
            Operand::Scalar(value) => OperandType::Scalar(value.into()),
        }));
        admit(self, op, &types)?;
        let (ty, op) = (op.infer(&types)?, op.clone());
        let (mut arrays, mut numbers) = (Vec::new(), Vec::new());
        for arg in args {
            match *arg {
                Operand::Array(x) => {
                    arrays.push(x);
                    numbers.push(None);
                }
                Operand::Scalar(value) => numbers.push(Some(value)),
            }
        }
        let work = move |arrays: &[Array]| {
            let mut arrays = arrays.iter();
            let mut given: Vec<Given<'_>> = Vec::with_capacity(numbers.len());
            for number in &numbers {
                given.push(match number {
                    Some(value) => Given::Scalar(*value),
                    None => Given::Array(arrays.next().ok_or_else(missing)?),
                });
            }
            Ok(vec![run(&op, &given)?])
        };
        one(submit(&[ty], &arrays, Some(site), work))
    }

    fn lower(&self, plan: &Plan) -> Result<Arc<dyn Executable>> {
        Ok(Arc::new(Interpreted(plan.template().clone())))
    }

    fn replacing(&self, old: Option<&Array>, new: Array) -> Array {
        memory::replacing(old, new)
    }

    fn is_void(&self, x: &Array) -> bool {
        memory::is_void(x)
    }

    fn synchronize(&self) -> Result<()> {
        memory::synchronize()
    }
}

fn missing() -> Error {
    error::internal("an operand is missing")
}

/// The only array of a piece of work.
fn one(arrays: Result<Vec<Array>>) -> Result<Array> {
    arrays?.pop().ok_or_else(|| error::internal("work without a result"))
}

/// A template whose plans are read step by step: there is nothing to compile.
struct Interpreted(Arc<Template>);

impl Executable for Interpreted {
    fn template(&self) -> &Arc<Template> {
        &self.0
    }

    fn run(&self, plan: &Arc<Plan>, inputs: &[&Array], numbers: &[Scalar]) -> Result<Results> {
        if !Arc::ptr_eq(plan.template(), &self.0) {
            return Err(error::internal("a plan was run by the executable of another"));
        }
        let types: Vec<Type> = plan.outputs().iter().map(|&source| plan.ty(source)).collect();
        let is_known = types.iter().all(|ty| ty.shape.is_known());
        if is_deferred() && is_known && !needs_host(plan) {
            let (plan, numbers) = (plan.clone(), numbers.to_vec());
            let work = move |inputs: &[Array]| {
                let inputs: Vec<&Array> = inputs.iter().collect();
                Ok(interpret(&plan, &inputs, &numbers)?.into_vec())
            };
            return Ok(submit(&types, inputs, None, work)?.into());
        }
        let own = inputs.iter().map(|x| inside(x)).collect::<Result<Vec<Array>>>()?;
        let own: Vec<&Array> = own.iter().collect();
        let results = interpret(plan, &own, numbers)?;
        Ok(results.into_iter().map(ready).collect())
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

/// Whether a plan shows values to the host while it runs. Such a run is waited for: what is called
/// or printed there may look at the values that the run replaces.
fn needs_host(plan: &Plan) -> bool {
    plan.steps().iter().any(|step| match &step.work {
        Work::ControlFlow(flow) => {
            matches!(flow.kind(), ControlFlowKind::Host(_) if flow.plans().is_empty())
                || flow.plans().iter().any(|plan| needs_host(plan))
        }
        Work::Effect(effect) => matches!(**effect, Effect::Print(_)),
        Work::Group(_)
        | Work::Product(_)
        | Work::BlockFusion(_)
        | Work::RowFusion(_)
        | Work::Op(_)
        | Work::Alias => false,
    })
}

/// One run of a plan.
pub struct Run<'a> {
    plan: &'a Plan,
    inputs: &'a [&'a Array],
    numbers: &'a [Scalar],
    /// What steps have given so far
    pub slots: Vec<Option<Array>>,
}

fn interpret(plan: &Plan, inputs: &[&Array], numbers: &[Scalar]) -> Result<Results> {
    if inputs.len() != plan.inputs().len() {
        return Err(error::internal("a plan was run on the wrong count of inputs"));
    }
    let mut run = Run::new(plan, inputs, numbers);
    for step in plan.steps() {
        let results = run.step(step).map_err(|refusal| located(refusal, step.site))?;
        for (&slot, result) in step.results.iter().zip(results) {
            run.slots[slot as usize] = Some(result);
        }
    }
    plan.outputs().iter().map(|&source| run.array(source).cloned()).collect()
}

impl<'a> Run<'a> {
    /// A run that stands before the first step.
    pub fn new(plan: &'a Plan, inputs: &'a [&'a Array], numbers: &'a [Scalar]) -> Run<'a> {
        Run { plan, inputs, numbers, slots: vec![None; plan.slots().len()] }
    }

    fn array(&self, source: Source) -> Result<&Array> {
        let found = match source {
            Source::Input(i) => self.inputs.get(i as usize).copied(),
            Source::Constant(i) => self.plan.constants().get(i as usize),
            Source::Slot(i) => self.slots[i as usize].as_ref(),
        };
        found.ok_or_else(|| error::internal(format!("{source} is not there")))
    }

    fn number(&self, number: Number) -> Scalar {
        match number {
            Number::Constant(value) => value,
            Number::Input(i) => self.numbers[i as usize],
        }
    }

    fn arrays(&self, step: &Step) -> Result<Vec<&Array>> {
        let array = |arg: &schedule::Operand| match *arg {
            schedule::Operand::Array(source) => Some(self.array(source)),
            schedule::Operand::Number(_) => None,
        };
        step.args.iter().filter_map(array).collect()
    }

    /// The results of a step.
    pub fn step(&self, step: &Step) -> Result<Results> {
        match &step.work {
            Work::Op(op) => {
                let operand = |arg: &schedule::Operand| match *arg {
                    schedule::Operand::Array(source) => self.array(source).map(Given::Array),
                    schedule::Operand::Number(number) => Ok(Given::Scalar(self.number(number))),
                };
                let args = step.args.iter().map(operand).collect::<Result<Vec<Given<'_>>>>()?;
                Ok(Results::from_iter([run(op, &args)?]))
            }
            Work::Group(group) => self.group(step, group),
            Work::Alias => self.arrays(step)?.into_iter().map(|x| Ok(x.clone())).collect(),
            Work::Effect(effect) => self.effect(&self.arrays(step)?, effect),
            Work::ControlFlow(bodies) => self.flow(&self.arrays(step)?, bodies),
            Work::Product(product) => self.product(step, product),
            Work::BlockFusion(_) | Work::RowFusion(_) => {
                Err(error::internal(format!("the reference offers no {}", step.name())))
            }
        }
    }

    /// The groups and the product, one after the other.
    fn product(&self, step: &Step, product: &Product) -> Result<Results> {
        let given = |(arrays, numbers): schedule::Given<'_>| -> Result<(Vec<Array>, Vec<Scalar>)> {
            let array = |arg: &schedule::Operand| match *arg {
                schedule::Operand::Array(source) => Some(self.array(source).cloned()),
                schedule::Operand::Number(_) => None,
            };
            let number = |arg: &schedule::Operand| match *arg {
                schedule::Operand::Number(number) => Some(self.number(number)),
                schedule::Operand::Array(_) => None,
            };
            let arrays = arrays.iter().filter_map(array).collect::<Result<_>>()?;
            Ok((arrays, numbers.iter().filter_map(number).collect()))
        };
        let (before, after) = product.parts(&step.args);
        let mut factors = Vec::new();
        for (prologue, part) in product.before.iter().zip(before) {
            let (mut arrays, numbers) = given(part)?;
            if let Some(Prologue { group, axes }) = prologue {
                arrays = elementwise(group, arrays, &numbers)?.into_vec();
                if let Some(axes) = axes {
                    let order = Op::Permute(axes.clone());
                    arrays = vec![run(&order, &[Given::Array(&arrays[0])])?];
                }
            }
            factors.append(&mut arrays);
        }
        let factors: Vec<Given<'_>> = factors.iter().map(Given::Array).collect();
        let result = run(&product.op, &factors)?;
        match &product.after {
            None => Ok(Results::from_iter([result])),
            Some(Epilogue { group, raw, .. }) => {
                let (mut arrays, numbers) = given(after)?;
                arrays.insert(*raw, result);
                elementwise(group, arrays, &numbers)
            }
        }
    }

    fn group(&self, step: &Step, group: &Group) -> Result<Results> {
        let arrays: Vec<Array> = self.arrays(step)?.into_iter().cloned().collect();
        let numbers = step.args.iter().filter_map(|arg| match *arg {
            schedule::Operand::Number(number) => Some(self.number(number)),
            schedule::Operand::Array(_) => None,
        });
        elementwise(group, arrays, &numbers.collect::<Vec<Scalar>>())
    }

    fn effect(&self, arrays: &[&Array], effect: &Effect) -> Result<Results> {
        match effect {
            Effect::Check(message) => {
                let truth = run(&Op::Cast(DType::Bool), &[Given::Array(arrays[0])])?;
                // SAFETY: a contiguous array of bools, one byte each.
                let bytes = unsafe { std::slice::from_raw_parts(truth.ptr(), truth.count()) };
                match bytes.iter().position(|&byte| byte == 0) {
                    None => Ok(Results::new()),
                    Some(i) => Err(Effect::failed(message, arrays[0].shape(), i)),
                }
            }
            Effect::Print(text) => {
                let arrays: Vec<Array> = arrays.iter().map(|&x| x.clone()).collect();
                match hooks() {
                    Some(hooks) => (hooks.print)(text, &arrays).map(|()| Results::new()),
                    None => Err(error::internal("nobody installed what prints")),
                }
            }
        }
    }

    fn body(&self, flow: &Bodies, i: usize, args: &[Array]) -> Result<Vec<Array>> {
        let args: Vec<&Array> = args.iter().collect();
        Ok(interpret(&flow.plans()[i], &args, self.numbers)?.into_vec())
    }

    fn flow(&self, args: &[&Array], flow: &Bodies) -> Result<Results> {
        let args: Vec<Array> = args.iter().map(|&x| x.clone()).collect();
        match *flow.kind() {
            ControlFlowKind::Host(_) if !flow.plans().is_empty() => {
                Ok(self.body(flow, 0, &args)?.into())
            }
            ControlFlowKind::Host(ref op) => {
                let given: Vec<&Array> = args.iter().collect();
                Ok(op.run(&given, flow.results())?.into())
            }
            ControlFlowKind::Branch => {
                let last = flow.plans().len() as i64 - 1;
                let i = integer(&args[0])?.clamp(0, last) as usize;
                Ok(self.body(flow, i, &args[1..])?.into())
            }
            ControlFlowKind::While { carry, history } => {
                let (mut now, captures) =
                    (args[..carry as usize].to_vec(), &args[carry as usize..]);
                let mut rounds: Vec<Vec<Array>> = Vec::new();
                loop {
                    let given = [&now, captures].concat();
                    if integer(&self.body(flow, 0, &given)?[0])? == 0 {
                        break;
                    }
                    let next = self.body(flow, 1, &given)?;
                    rounds.push(std::mem::replace(&mut now, next));
                }
                if history {
                    for k in 0..carry as usize {
                        let one = Type::new(now[k].dtype, now[k].shape().clone());
                        let all: Vec<Array> = rounds.iter().map(|round| round[k].clone()).collect();
                        now.push(stack(&all, &one)?);
                    }
                    let count = Scalar::Int(rounds.len() as i64);
                    let one = Op::Full(Type::new(DType::I64, Shape::scalar()));
                    now.push(run(&one, &[Given::Scalar(count)])?);
                }
                Ok(now.into())
            }
            ControlFlowKind::Scan { carry, xs, length, reverse } => {
                let (carry, xs) = (carry as usize, xs as usize);
                let given = args[carry..carry + xs].first().map(|x| x.shape()[0]);
                let Some(n) = given.unwrap_or(length).known() else {
                    return Err(error::unknown_size("scan", length));
                };
                let mut now = args[..carry].to_vec();
                let stacked = flow.results().len() - carry;
                let mut all: Vec<Vec<Array>> = vec![Vec::new(); stacked];
                for round in 0..n {
                    let at = if reverse { n - 1 - round } else { round };
                    let mut given = now;
                    for x in &args[carry..carry + xs] {
                        given.push(element(x, at)?);
                    }
                    given.extend_from_slice(&args[carry + xs..]);
                    let mut made = self.body(flow, 0, &given)?;
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
                    now.push(stack(&rows, &Type::new(ty.dtype, one))?);
                }
                Ok(now.into())
            }
        }
    }
}

/// Each instruction of a group by itself, on all elements.
fn elementwise(group: &Group, mut values: Vec<Array>, numbers: &[Scalar]) -> Result<Results> {
    let program = &group.program;
    for (&value, &dtype) in numbers.iter().zip(program.numbers()) {
        let one = Op::Full(Type::new(dtype, Shape::scalar()));
        values.push(run(&one, &[Given::Scalar(value)])?);
    }
    for instruction in program.instructions() {
        let args: Vec<Given<'_>> =
            instruction.args.iter().map(|x| Given::Array(&values[x.0 as usize])).collect();
        let op = match instruction.op {
            ElementOp::Map(def) => Op::Map(def),
            ElementOp::Cast => Op::Cast(instruction.dtype),
        };
        let value = run(&op, &args)?;
        values.push(value);
    }
    let full =
        values.iter().try_fold(Shape::scalar(), |shape, x| shape.broadcast(x.shape(), "group"))?;
    let full = if group.shape.is_known() { group.shape.clone() } else { full };
    let result = |x: &crate::ops::element::Value| {
        run(&Op::Broadcast(full.clone()), &[Given::Array(&values[x.0 as usize])])
    };
    program.results().iter().map(result).collect()
}

/// A scalar as int64.
fn integer(x: &Array) -> Result<i64> {
    let x = run(&Op::Cast(DType::I64), &[Given::Array(x)])?;
    // SAFETY: the array is a scalar of int64.
    Ok(unsafe { x.ptr().cast::<i64>().read() })
}

/// Element `i` of the leading axis.
fn element(x: &Array, i: usize) -> Result<Array> {
    let at = x.shape().dims().iter().enumerate().map(|(axis, &size)| match axis {
        0 => SliceAxis { start: Dim::new(i), size: Dim::new(1), step: 1 },
        _ => SliceAxis { start: Dim::new(0), size, step: 1 },
    });
    let part = run(&Op::Slice(at.collect()), &[Given::Array(x)])?;
    let rest: Shape = x.shape().dims()[1..].iter().copied().collect();
    run(&Op::Reshape(rest), &[Given::Array(&part)])
}

/// Arrays of one type along a new leading axis.
fn stack(rows: &[Array], one: &Type) -> Result<Array> {
    let with = |n: usize| -> Shape {
        std::iter::once(Dim::new(n)).chain(one.shape.dims().iter().copied()).collect()
    };
    if rows.is_empty() {
        return Array::uninit(one.dtype, with(0));
    }
    let row = |x: &Array| run(&Op::Reshape(with(1)), &[Given::Array(x)]);
    let rows = rows.iter().map(row).collect::<Result<Vec<Array>>>()?;
    let rows: Vec<Given<'_>> = rows.iter().map(Given::Array).collect();
    run(&Op::Concat(0), &rows)
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::cpu::testing::{bytes, noise, values};
    use crate::graph::testing::{body, one_by_one};
    use crate::graph::{ControlFlow, Graph};
    use crate::ops::attributes::Reduction;
    use crate::ops::emit::{Arg, Expr};

    fn input<'g>(graph: &'g Graph, dtype: DType, sizes: &[usize]) -> Expr<'g> {
        Expr::new(graph, Arg::Node(graph.input(Type::new(dtype, Shape::of(sizes)))))
    }

    fn planned(graph: &Graph, inputs: &[&Array]) -> (Arc<Plan>, Results) {
        let plan = Arc::new(Plan::new(graph, &Reference).unwrap());
        let results = Reference.lower(&plan).unwrap().run(&plan, inputs, &[]).unwrap();
        let results = results.iter().map(|x| Reference.download(x).unwrap()).collect();
        (plan, results)
    }

    #[test]
    fn a_plan_for_the_reference_fuses_nothing() {
        let graph = Graph::new();
        let (x, w) = (input(&graph, DType::F64, &[12, 7]), input(&graph, DType::F64, &[7]));
        graph
            .build(|| {
                let y = (x * w + 0.5).exp();
                let e = y / y.reduce_keep(Reduction::Sum, &[1]);
                smallvec![(y * w).cast(DType::F32), e, y.less(w)]
            })
            .unwrap();
        let inputs = [noise(DType::F64, &[12, 7], 1), noise(DType::F64, &[7], 2)];
        let inputs = inputs.each_ref();
        let (plan, got) = planned(&graph, &inputs);
        assert!(plan.steps().iter().all(|step| step.nodes.len() == 1), "{plan}");
        let want = one_by_one(&graph, &inputs, &[]);
        // Only the sum may round otherwise.
        for k in [0, 2] {
            assert_eq!(bytes(&got[k]), bytes(&want[k]), "{k}\n{plan}");
        }
        for (got, want) in values(&got[1]).iter().zip(values(&want[1])) {
            assert!((got - want).abs() <= 1e-15 * 7.0, "{got} {want}");
        }
    }

    #[test]
    fn control_flow_is_driven_step_by_step() {
        let ty = |sizes: &[usize]| Type::new(DType::I32, Shape::of(sizes));
        let (three, rows) = (ty(&[3]), ty(&[5, 3]));
        fn grow<'g>(x: &Expr<'g>) -> Expr<'g> {
            x.less(x.scalar(100)).reduce(Reduction::All, &[0])
        }
        let loops = ControlFlow {
            kind: ControlFlowKind::While { carry: 1, history: true },
            bodies: smallvec![
                body(std::slice::from_ref(&three), |x| smallvec![grow(&x[0])]),
                body(std::slice::from_ref(&three), |x| smallvec![
                    x[0] * x[0].scalar(3) + x[0].scalar(1)
                ]),
            ],
            results: smallvec![three.clone(), ty(&[4, 3]), Type::new(DType::I64, Shape::scalar())],
        };
        let scan = ControlFlow {
            kind: ControlFlowKind::Scan { carry: 1, xs: 1, length: Dim::new(5), reverse: true },
            bodies: smallvec![body(&[three.clone(), three.clone()], |x| {
                smallvec![x[0] + x[1], x[0] * x[1]]
            })],
            results: smallvec![three.clone(), rows.clone()],
        };
        let branch = ControlFlow {
            kind: ControlFlowKind::Branch,
            bodies: smallvec![
                body(std::slice::from_ref(&three), |x| smallvec![x[0] + x[0].scalar(1)]),
                body(std::slice::from_ref(&three), |x| smallvec![x[0] * x[0].scalar(2)]),
            ],
            results: smallvec![three.clone()],
        };
        let index = Type::new(DType::I64, Shape::scalar());
        let cases: [(ControlFlow, &[Type]); 3] = [
            (loops, std::slice::from_ref(&three)),
            (scan, &[three.clone(), rows]),
            (branch, &[index, three.clone()]),
        ];
        for (flow, types) in cases {
            let graph = Graph::new();
            let args: Vec<Arg> =
                types.iter().map(|ty| Arg::Node(graph.input(ty.clone()))).collect();
            for id in graph.flow(flow, &args) {
                graph.output(id);
            }
            let inputs: Vec<Array> = types
                .iter()
                .map(|ty| {
                    let count = ty.shape.count();
                    let data: Vec<f64> = (0..count).map(|i| (i % 4 + 1) as f64).collect();
                    crate::cpu::testing::array(ty.dtype, &ty.shape.sizes(), &data)
                })
                .collect();
            let inputs: Vec<&Array> = inputs.iter().collect();
            let (plan, got) = planned(&graph, &inputs);
            let want = one_by_one(&graph, &inputs, &[]);
            assert_eq!(got.len(), want.len());
            for (got, want) in got.iter().zip(&want) {
                assert_eq!((got.dtype, got.shape().sizes()), (want.dtype, want.shape().sizes()));
                assert_eq!(bytes(got), bytes(want), "{plan}");
            }
        }
    }
}
