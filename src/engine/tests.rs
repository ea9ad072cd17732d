use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::backward::{Options, backward, gradients as sweep};
use super::eager::apply;
use super::eager::{self, Eager};
use super::executors::Device;
use super::index::{self, Item};
use super::program::Program;
use super::tape::signature;
use super::tape::{History, Leaf, Operand, Value};
use super::trace::Trace;
use crate::array::Array;
use crate::cpu::target::Cpu;
use crate::cpu::testing::{array, bytes};
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result as Fallible};
use crate::graph::Graph;
use crate::graph::cases::{self, Call};
use crate::graph::testing::one_by_one;
use crate::ops::declare::{Arguments, Attr};
use crate::ops::elementwise::arithmetic;
use crate::ops::emit::{Arg, Emit, Expr, Id, catch};
use crate::ops::op::Type;
use crate::passes::{expand_for, gradients};
use crate::schedule::Plan;
use crate::shape::{Dim, Extent, Scope, Shape};
use crate::target::Target;
use crate::threads;

/// The operands of a call with data.
struct Held(Vec<Result<Value, Scalar>>);

impl Held {
    fn new(call: &Call, leaves: bool) -> Held {
        let operand = |(i, operand): (usize, &cases::Operand)| match operand {
            cases::Operand::Number(value) => Err(*value),
            tensor => {
                let mut value = Value::plain(tensor.data(i as u64 * 13).unwrap());
                if leaves && value.dtype().is_float() {
                    let ty = Type::new(value.dtype(), value.shape().clone());
                    value.history = History::Leaf(Arc::new(Leaf::new(ty)));
                }
                Ok(value)
            }
        };
        Held(call.operands.iter().enumerate().map(operand).collect())
    }

    fn operands(&self) -> Vec<Operand<'_>> {
        let operand = |x: &'_ Result<Value, Scalar>| match x {
            Ok(_) => None,
            Err(value) => Some(*value),
        };
        self.0
            .iter()
            .map(|x| match operand(x) {
                Some(value) => Operand::Scalar(value.into()),
                None => Operand::Value(x.as_ref().unwrap_or_else(|_| unreachable!("no number"))),
            })
            .collect()
    }

    fn values(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().filter_map(|x| x.as_ref().ok())
    }
}

/// The results of a composite's body, op by op.
fn op_by_op(call: &Call, held: &Held) -> Result<Vec<Array>, String> {
    let cx = Eager::new(false);
    let args: SmallVec<[Arg; 6]> = held.operands().into_iter().map(|x| cx.operand(x)).collect();
    let outputs = catch(|| {
        let arguments = Arguments { cx: &cx, attributes: &call.attributes, operands: &args };
        call.composite.formula(&arguments)
    });
    let outputs = outputs.map_err(|error| error.to_string())?;
    outputs
        .into_iter()
        .map(|x| cx.value_of(x).map(|v| v.array).map_err(|e| e.to_string()))
        .collect()
}

#[test]
fn planned_composites_give_the_bits_of_their_ops() {
    let mut planned = 0;
    for call in cases::calls() {
        let held = Held::new(&call, false);
        let want = op_by_op(&call, &held);
        let operands = held.operands();
        let mut signature =
            signature::of(call.composite, &call.attributes, &operands).expect("few operands");
        for _ in 0..3 {
            let name = call.composite.name;
            match (signature.run(&operands), &want) {
                (Ok(None), _) => {}
                (Ok(Some(got)), Ok(want)) => {
                    planned += 1;
                    assert_eq!(got.len(), want.len(), "{name}");
                    for (got, want) in got.iter().zip(want) {
                        assert_eq!(got.shape(), want.shape(), "{name}");
                        assert_eq!(bytes(got), bytes(want), "{name} {:?}", call.attributes);
                    }
                }
                (Ok(Some(_)), Err(error)) => panic!("{name} should have failed: {error}"),
                (Err(error), want) => {
                    assert_eq!(want.as_ref().err(), Some(&error.to_string()), "{name}");
                }
            }
        }
    }
    assert!(planned > 50, "only {planned} calls were planned");
}

#[test]
fn most_composites_have_a_case() {
    let with: Vec<&str> = cases::calls().iter().map(|call| call.composite.name).collect();
    let without: Vec<&str> = crate::ops::composite::tables()
        .map(|composite| composite.name)
        .filter(|name| !with.contains(name))
        .collect();
    assert!(without.len() * 8 < crate::ops::composite::tables().count(), "{without:?}");
}

#[test]
fn the_pass_and_the_sweep_give_the_same_gradient_bits() {
    let options = Options { retain_graph: false, create_graph: false };
    let mut compared = 0;
    for call in cases::calls() {
        let held = Held::new(&call, true);
        let name = format!("{} {:?}", call.composite.name, call.attributes);
        let Ok(ys) = eager::call(call.composite, &call.attributes, &held.operands(), true) else {
            continue;
        };
        let leaves: Vec<Value> = held.values().filter(|v| v.requires_grad()).cloned().collect();
        let ones = |y: &Value| {
            let n = y.shape().count();
            Value::plain(array(y.dtype(), &y.shape().sizes(), &vec![1.0; n]))
        };
        let outputs: Vec<(Value, Option<Value>)> =
            ys.iter().filter(|y| y.requires_grad()).map(|y| (y.clone(), Some(ones(y)))).collect();
        if outputs.is_empty() || leaves.is_empty() {
            continue;
        }
        let want = sweep("test", &outputs, &leaves, options).unwrap();
        // The first sweep derives the gradient, the second plans it, later ones run the plan.
        for round in 2..5 {
            let operands = held.operands();
            let ys = eager::call(call.composite, &call.attributes, &operands, true).unwrap();
            let ys = ys.into_iter().filter(Value::requires_grad);
            let outputs: Vec<_> = ys.map(|y| (y.clone(), Some(ones(&y)))).collect();
            for (want, got) in want.iter().zip(sweep("test", &outputs, &leaves, options).unwrap()) {
                let bits = |g: &Option<Value>| g.as_ref().map(|g| bytes(&g.array));
                assert_eq!(bits(&got), bits(want), "{name}, sweep {round}");
            }
        }

        let graph = Graph::with_calls();
        let (args, taken) = call.build(&graph);
        assert!(taken, "{name}");
        let inputs: Vec<Id> = args
            .iter()
            .filter_map(|arg| match arg {
                Arg::Node(id) if graph.ty(*id).dtype.is_float() => Some(*id),
                Arg::Node(_) | Arg::Number(_) => None,
            })
            .collect();
        let seeds: Vec<(Id, Arg)> = graph
            .outputs()
            .iter()
            .zip(&ys)
            .filter(|(_, y)| y.requires_grad())
            .map(|(id, _)| (*id, Arg::Number(1.0.into())))
            .collect();
        let before = graph.outputs().len();
        let found = gradients(&graph, &seeds, &inputs).unwrap();
        found.iter().flatten().for_each(|id| graph.output(*id));
        graph.verify().unwrap();
        let expanded = expand_for(&graph, &|call| Target::has_kernel(&Cpu, call)).unwrap();
        let data: Vec<&Array> = held.values().map(|v| &v.array).collect();
        let plan = Plan::new(&expanded, &Cpu).unwrap();
        for got in [one_by_one(&expanded, &data, &[]), plan.run(&data, &[]).unwrap().to_vec()] {
            let mut got = got[before..].iter();
            for (want, found) in want.iter().zip(&found) {
                assert_eq!(want.is_some(), found.is_some(), "{name}");
                let Some(want) = want else { continue };
                assert_eq!(
                    bytes(got.next().unwrap()),
                    bytes(&want.array),
                    "{name}\n{}",
                    graph.print(|_| None)
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 100, "only {compared} gradients were compared");
}

#[test]
fn floats_are_operands_of_a_plan_unless_the_formula_looks_at_them() {
    use crate::ops::composite::tables;
    let sgd = tables().find(|composite| composite.name == "sgd").unwrap();
    let x = array(DType::F32, &[5], &[1.0, -2.0, 0.5, 3.0, -1.5]);
    let g = array(DType::F32, &[5], &[0.5, 0.25, -1.0, 2.0, 1.0]);
    let step = |lr: f64, decay: f64| {
        let (p, g) = (Value::plain(x.clone()), Value::plain(g.clone()));
        let attributes = [const { crate::ops::declare::Attr::Operand }; 4];
        let numbers = [lr, decay].map(|v| Operand::Scalar(v.into()));
        let operands = [Operand::Value(&p), Operand::Value(&g), numbers[0], numbers[1]];
        let ys = eager::call(sgd, &attributes, &operands, false).unwrap();
        crate::cpu::testing::values(&ys[0].array)
    };
    // The third call of each kind runs a plan made for another rate.
    for decay in [0.0, 0.5, 0.0] {
        for lr in [0.5, 0.25, 2.0, 1.0] {
            let want: Vec<f64> = crate::cpu::testing::values(&x)
                .iter()
                .zip(crate::cpu::testing::values(&g))
                .map(|(p, g)| p - lr * (g + decay * p))
                .collect();
            assert_eq!(step(lr, decay), want, "lr {lr}, decay {decay}");
        }
    }
    assert_eq!(x.shape(), &Shape::of(&[5]));
}

/// A trace of a function of one matrix whose rows are a symbol: the shape of the result and what
/// was asked.
fn traced_rows(f: impl FnOnce(&Value) -> Fallible<Value>) -> (String, Vec<String>) {
    let scope = Scope::new();
    let rows = scope.symbol(Some(8));
    let shape = scope.run(|| {
        let trace = Trace::new(false);
        let _entered = trace.enter();
        let x = trace.input(Type::new(DType::F32, Shape::from_dims(&[rows, Dim::new(6)]))).unwrap();
        f(&x).unwrap().shape().to_string()
    });
    (shape, scope.constraints().iter().map(ToString::to_string).collect())
}

#[test]
fn indexing_an_axis_that_is_a_symbol_gives_expressions() {
    let slice = |a: Option<i64>, b: Option<i64>, c| {
        move |x: &Value| index::get(x, &[Item::Slice(a.map(Extent::from), b.map(Extent::from), c)])
    };
    let check = |found: (String, Vec<String>), shape: &str, asked: &[&str]| {
        assert_eq!(
            (found.0.as_str(), found.1),
            (shape, asked.iter().map(ToString::to_string).collect())
        );
    };
    check(traced_rows(slice(None, None, None)), "(s0, 6)", &["s0 != 0"]);
    check(traced_rows(slice(Some(1), None, None)), "(s0 - 1, 6)", &["1 <= s0", "s0 != 1"]);
    check(traced_rows(slice(Some(-2), None, None)), "(2, 6)", &["2 <= s0"]);
    check(traced_rows(slice(None, Some(5), None)), "(5, 6)", &["5 <= s0"]);
    check(traced_rows(slice(None, None, Some(2))), "((s0 + 1)//2, 6)", &["s0 != 0"]);
    check(traced_rows(slice(None, None, Some(-1))), "(s0, 6)", &["s0 != 0"]);
    check(
        traced_rows(slice(Some(-1), Some(2), Some(-2))),
        "(s0//2 - 1, 6)",
        &["3 <= s0", "s0 != 3"],
    );
    check(traced_rows(|x| index::get(x, &[Item::Int((-1).into())])), "(6,)", &["1 <= s0"]);
    check(traced_rows(|x| index::get(x, &[Item::Int(3.into())])), "(6,)", &["3 < s0"]);
    check(traced_rows(slice(Some(9), None, None)), "(0, 6)", &["s0 < 9"]);
}

#[test]
fn a_step_over_an_axis_that_is_a_symbol_asks_nothing() {
    let find = |name: &str| crate::ops::composite::tables().find(|c| c.name == name).unwrap();
    let call = |name: &str, attributes: &[Attr], args: &[&Value]| {
        let args: Vec<Operand<'_>> = args.iter().map(|x| Operand::Value(x)).collect();
        eager::call(find(name), attributes, &args, true).unwrap().swap_remove(0)
    };
    let leaf = |sizes: &[usize]| {
        let x = Value::plain(array(DType::F32, sizes, &vec![0.5; sizes.iter().product()]));
        let ty = Type::new(DType::F32, x.shape().clone());
        Value { history: History::Leaf(Arc::new(Leaf::new(ty))), ..x }
    };
    let (w, b) = (leaf(&[3, 6]), leaf(&[3]));
    let (shape, asked) = traced_rows(|x| {
        let y = call("linear", &[Attr::Operand, Attr::Operand, Attr::Operand], &[x, &w, &b]);
        let axis = Attr::Int(-1);
        let y = call("softmax", &[Attr::Operand, axis.clone()], &[&y]);
        let y = call(
            "layer_norm",
            &[Attr::Operand, axis, Attr::None, Attr::None, Attr::Float(1e-5)],
            &[&y],
        );
        let loss = call("mean", &[Attr::Operand, Attr::None, Attr::Bool(false)], &[&y]);
        let options = Options { retain_graph: false, create_graph: false };
        let found = sweep("test", &[(loss, None)], &[w.clone(), b.clone()], options)?;
        assert_eq!(found[0].as_ref().unwrap().shape().to_string(), "(3, 6)");
        Ok(y)
    });
    assert_eq!((shape.as_str(), asked.len()), ("(s0, 3)", 0), "{asked:?}");
}

#[test]
fn a_sweep_of_many_small_steps_can_be_broken_off() {
    thread_local! {
        static STOP: Cell<bool> = const { Cell::new(false) };
    }
    threads::set_watch(|| {
        if STOP.get() {
            error::throw(error::internal("broken off"));
        }
    });
    let x = Value::plain(array(DType::F32, &[1], &[2.0]));
    let leaf = Arc::new(Leaf::new(Type::new(DType::F32, x.shape().clone())));
    let mut y = Value { history: History::Leaf(leaf.clone()), ..x };
    for _ in 0..500 {
        let args = [Operand::Value(&y), Operand::Scalar(Scalar::Float(0.99).into())];
        y = apply::map(&arithmetic::multiply, &args).unwrap();
    }
    let options = Options { retain_graph: true, create_graph: false };
    STOP.set(true);
    let failed = threads::breakable(true, || backward(&[(y.clone(), None)], options)).unwrap_err();
    assert!(failed.to_string().contains("broken off"), "{failed}");
    assert!(leaf.gradient().unwrap().is_none());
    // What may not be broken off goes on.
    threads::breakable(false, || backward(&[(y, None)], options)).unwrap();
    assert!(leaf.gradient().unwrap().is_some());
}

#[test]
fn plans_are_made_for_as_many_threads_as_there_are() {
    let graph = Graph::new();
    let x = graph.input(Type::new(DType::F32, Shape::of(&[64, 512])));
    graph.output((Expr::new(&graph, Arg::Node(x)) * 2.0).node());
    let program = Program::new(Device::Cpu, graph.into_list(), Vec::new(), Scope::new());
    let value = Value::plain(array(DType::F32, &[2, 2], &[1.0, 2.0, 3.0, 4.0]));
    let signature = || {
        let mut tables = crate::ops::composite::tables();
        let lerp = tables.find(|composite| composite.name == "lerp").unwrap();
        let operands = [Operand::Value(&value); 3];
        signature::of(lerp, &[const { Attr::Operand }; 3], &operands).unwrap()
    };
    let before = threads::num_threads();
    let (plan, own) = (program.plan(&[]).unwrap(), signature());
    assert!(Arc::ptr_eq(&plan, &program.plan(&[]).unwrap()) && Arc::ptr_eq(&own, &signature()));
    threads::set_num_threads(before + 1);
    let (other, others) = (program.plan(&[]).unwrap(), signature());
    threads::set_num_threads(before);
    assert!(!Arc::ptr_eq(&plan, &other) && !Arc::ptr_eq(&own, &others));
}
