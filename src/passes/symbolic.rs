//! Every op and composite on symbolic sizes: the list resized to other sizes equals the list that
//! is built for these sizes.

use super::random::bits;
use super::{Options, batch, expand, gradients, pipeline};
use crate::cpu::target::Cpu;
use crate::dtype::{DType, Numeric, Scalar};
use crate::error::Result;
use crate::graph::cases::{self, Operand};
use crate::graph::testing::run;
use crate::graph::{Graph, Kind, List, Node, resize};
use crate::ops::emit::{Arg, Emit, Id, catch};
use crate::ops::op::{Op, Type};
use crate::shape::{Bindings, Constraint, Dim, Relation, Scope, Shape, hint};

/// The list that is built of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Plain,
    Expanded,
    Gradient,
    Batch,
}

enum Case {
    Op(Op, Vec<Operand>),
    Call(cases::Call),
}

impl Case {
    fn all() -> Vec<Case> {
        let ops = cases::ops().into_iter().map(|(op, operands)| Case::Op(op, operands));
        ops.chain(cases::calls().into_iter().map(Case::Call)).collect()
    }

    fn name(&self) -> String {
        match self {
            Case::Op(op, operands) => format!("{op:?} {operands:?}"),
            Case::Call(call) => {
                format!("{} {:?} {:?}", call.composite.name, call.attributes, call.operands)
            }
        }
    }

    fn operands(&self) -> &[Operand] {
        match self {
            Case::Op(_, operands) => operands,
            Case::Call(call) => &call.operands,
        }
    }

    /// The types of the tensors.
    fn types(&self) -> Vec<Type> {
        let ty = |operand: &Operand| match operand {
            Operand::Tensor(ty, _) => Some(ty.clone()),
            Operand::Number(_) => None,
        };
        self.operands().iter().filter_map(ty).collect()
    }

    /// The case on tensors of other types.
    fn build(&self, types: &[Type], form: Form, size: Dim) -> Result<List> {
        let mut types = types.iter();
        let operands: Vec<Operand> = (self.operands().iter())
            .map(|operand| match operand {
                Operand::Tensor(_, below) => {
                    Operand::Tensor(types.next().expect("one each").clone(), *below)
                }
                number => number.clone(),
            })
            .collect();
        let graph = Graph::with_calls();
        match self {
            Case::Op(op, _) => {
                let args = cases::args(&operands, &graph);
                let y = catch(|| graph.emit(op.clone(), &args))?;
                graph.output(y);
            }
            Case::Call(call) => {
                let call = cases::Call { operands, attributes: call.attributes.clone(), ..*call };
                call.try_build(&graph)?;
            }
        }
        let graph = match form {
            Form::Plain => graph,
            Form::Expanded => expand(&graph)?,
            Form::Gradient => {
                let float = |id: &Id| graph.ty(*id).dtype.is_float();
                let outputs: Vec<(Id, Arg)> = (graph.outputs().iter().filter(|id| float(id)))
                    .map(|&id| (id, Arg::Number(1.0.into())))
                    .collect();
                let inputs: Vec<Id> = graph.list().inputs().filter(float).collect();
                let found = gradients(&graph, &outputs, &inputs)?;
                found.into_iter().flatten().for_each(|id| graph.output(id));
                expand(&graph)?
            }
            Form::Batch => {
                let inputs = graph.list().inputs().count();
                batch(&graph, &vec![true; inputs], size)?
            }
        };
        graph.verify()?;
        Ok(graph.into_list())
    }
}

/// Types with a symbol for every axis.
fn symbolic(types: &[Type], scope: &Scope) -> Vec<Type> {
    types.iter().map(|ty| ty.map_dims(|dim| scope.symbol(dim.known()))).collect()
}

/// Other sizes under which the constraints hold.
fn other_sizes(scope: &Scope, constraints: &[Constraint], seed: usize) -> Option<Bindings> {
    let mut state = seed as u64 + 1;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    let symbols = scope.symbols();
    for _ in 0..40 {
        let mut sizes = Bindings::default();
        for (symbol, hint) in &symbols {
            let n = hint.unwrap_or(2);
            let n = [n, n + 1, 2 * n, n + 7, 3 * n, n + 10][below(6)];
            sizes.bind(*symbol, Dim::new(n));
        }
        for _ in 0..4 {
            for c in constraints.iter().filter(|c| c.relation == Relation::Equal) {
                for (a, b) in [(c.left, c.right), (c.right, c.left)] {
                    if a.is_symbol() && sizes.size(a) != sizes.size(b) {
                        sizes.bind(a, sizes.resolve(b));
                        break;
                    }
                }
            }
        }
        if sizes.broken(constraints).is_none() {
            return Some(sizes);
        }
    }
    None
}

fn resolved(types: &[Type], sizes: &Bindings) -> Vec<Type> {
    types.iter().map(|ty| ty.map_dims(|dim| sizes.resolve(dim))).collect()
}

/// Whether the text of a list gives that list.
fn reads_back(list: &List) -> std::result::Result<(), String> {
    let text = Graph::from_list(list.clone()).print(|_| None);
    let back = crate::graph::parse(&text).map_err(|error| format!("{error}\n{text}"))?;
    list.same(&back).map_err(|what| format!("{what}\n{text}"))
}

/// The first difference between two lists.
fn difference(a: &List, b: &List) -> Option<String> {
    let scalar = |x: Numeric| match x {
        Numeric::Told(i) => format!("#{i}"),
        Numeric::Known(x) => format!("{x:?}"),
    };
    let arg = |arg: &Arg| match *arg {
        Arg::Node(id) => format!("%{}", id.0),
        Arg::Number(x) => scalar(x),
    };
    let text = |node: &Node| {
        let args: Vec<String> = node.args.iter().map(arg).collect();
        let kind = match &node.kind {
            Kind::Op(op) => format!("{op:?}"),
            other @ (Kind::Input
            | Kind::Constant(_)
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier) => other.name().to_string(),
        };
        format!("{kind} {args:?} {:?}", node.ty)
    };
    let lines = |list: &List| -> Vec<String> { list.nodes.iter().map(text).collect() };
    let (x, y) = (lines(a), lines(b));
    if x == y && a.outputs == b.outputs {
        return None;
    }
    let first = x.iter().zip(&y).position(|(a, b)| a != b).unwrap_or(x.len().min(y.len()));
    let line = |lines: &[String]| lines.get(first).cloned().unwrap_or_default();
    Some(format!("node {first} of {} and {}:\n  {}\n  {}", x.len(), y.len(), line(&x), line(&y)))
}

const PINNED: usize = 3;

/// Checks all cases in a form. At most [`PINNED`] of a hundred may fix the size of the first axis of
/// the first operand that is no key (ops that name its size or unstack it): a key has one size. Draws
/// from a batch of keys are not counted there: they all fix how many keys there are.
fn check(form: Form) {
    let (mut count, mut free, mut wrong, mut pinned) = (0, 0, Vec::new(), Vec::new());
    for case in Case::all() {
        let types = case.types();
        let three = Dim::new(3);
        if !types.iter().any(|ty| ty.shape.rank() > 0) || case.build(&types, form, three).is_err() {
            continue;
        }
        count += 1;
        let is_drawn = types.iter().any(is_key);
        let scope = Scope::new();
        let symbols = symbolic(&types, &scope);
        let size = if form == Form::Batch { scope.symbol(Some(3)) } else { three };
        let list = match scope.run(|| case.build(&symbols, form, size)) {
            Ok(list) => list,
            Err(error) => {
                wrong.push(format!("{form:?} {}: {error}", case.name()));
                continue;
            }
        };
        let is_number = |c: &Constraint| {
            c.relation == Relation::Equal && c.right.known().is_some_and(|n| n < 2)
        };
        let mut read = scope.run(|| reads_back(&list));
        // Outside the scope nothing is known of the symbols, so a list that needs a size to be 1,
        // or one size to be a multiple of another, cannot be read back there.
        if !scope.constraints().iter().any(is_number) {
            read = read.and_then(|()| reads_back(&list));
        }
        if let Err(what) = read {
            wrong.push(format!("{form:?} {}: {what}", case.name()));
        }
        let constraints = scope.constraints();
        let texts: Vec<String> = constraints.iter().map(Constraint::to_string).collect();
        let mut failed = false;
        let mut compare = |sizes: &Bindings, what: &str| {
            let want = case.build(&resolved(&symbols, sizes), form, sizes.resolve(size));
            let found = match (resize(&list, sizes), want) {
                (Ok(got), Ok(want)) => difference(&got, &want),
                (Err(error), _) | (_, Err(error)) => Some(error.to_string()),
            };
            if let (Some(found), false) = (found, failed) {
                failed = true;
                let shapes = resolved(&symbols, sizes);
                wrong
                    .push(format!("{form:?} {} {what} {shapes:?} {texts:?}: {found}", case.name()));
            }
        };
        let hints = scope.symbols().into_iter().map(|(s, n)| (s, Dim::new(n.unwrap_or(0))));
        compare(&Bindings::of(hints), "as it was");
        let first = match form {
            Form::Batch => Some(size).filter(|_| !is_drawn),
            Form::Plain | Form::Expanded | Form::Gradient => first_axis(&types, &symbols),
        };
        free += usize::from(first.is_some());
        let mut moves = false;
        for seed in 0..12 {
            if let Some(sizes) = other_sizes(&scope, &constraints, seed) {
                moves |= first.is_none_or(|n| sizes.size(n) != scope.run(|| hint(n)));
                compare(&sizes, "otherwise");
            }
        }
        if !moves && first.is_some() {
            pinned.push(format!("{} {texts:?}", case.name()));
        }
    }
    let shown: Vec<String> = wrong.iter().take(25).cloned().collect();
    assert!(wrong.is_empty(), "{} of {count} cases:\n{}", wrong.len(), shown.join("\n"));
    assert!(
        pinned.len() * 100 <= free * PINNED,
        "{} of {free} pin the first axis:
{}",
        pinned.len(),
        pinned.join(
            "
"
        )
    );
}

fn is_key(ty: &Type) -> bool {
    ty.dtype == DType::U32 && ty.shape == Shape::of(&[2])
}

/// The first axis of the first operand that has one and is no key, where there is such an operand.
fn first_axis(types: &[Type], symbols: &[Type]) -> Option<Dim> {
    let free = types.iter().zip(symbols).filter(|(ty, _)| !is_key(ty));
    free.flat_map(|(_, symbol)| symbol.shape.dims().first().copied()).next()
}

#[test]
fn lists_for_other_sizes_are_those_built_for_them() {
    check(Form::Plain);
}

#[test]
fn expanded_lists_for_other_sizes_are_those_built_for_them() {
    check(Form::Expanded);
}

#[test]
fn gradients_for_other_sizes_are_those_built_for_them() {
    check(Form::Gradient);
}

#[test]
fn batches_of_other_sizes_are_those_built_for_them() {
    check(Form::Batch);
}

/// Runs the passes over a list with symbols. They must add no condition, and the list resized to
/// other sizes must give the right values.
fn check_passes(case: &Case, form: Form) -> Option<()> {
    let types = case.types();
    case.build(&types, form, Dim::new(3)).ok()?;
    let scope = Scope::new();
    let symbols = symbolic(&types, &scope);
    let list = scope.run(|| case.build(&symbols, form, Dim::new(3))).ok()?;
    let before = scope.constraints();
    let after = scope.run(|| pipeline(list.clone(), &Options::default(), &Cpu)).unwrap();
    let name = format!("{form:?} {}", case.name());
    assert_eq!(scope.constraints().len(), before.len(), "{name}: passes add no condition");
    // By themselves, these ops take sizes that their front ends would refuse.
    if matches!(case, Case::Op(Op::Conv(..) | Op::Fold(..) | Op::Windows(_), _)) {
        return Some(());
    }
    for seed in 0..3 {
        let Some(sizes) = other_sizes(&scope, &before, seed) else { continue };
        let below = case.operands().iter().filter_map(|operand| match operand {
            Operand::Tensor(_, below) => Some(*below),
            Operand::Number(_) => None,
        });
        let inputs: Vec<_> = (resolved(&symbols, &sizes).iter().zip(below).enumerate())
            .map(|(i, (ty, below))| cases::data(ty, below, i as u64 * 7))
            .collect();
        let of = |list: &List| -> Result<_> {
            let list = Graph::from_list(resize(list, &sizes)?);
            list.verify()?;
            run(&list.list(), &inputs, &[])
        };
        let Ok(want) = of(&list) else { continue };
        let got = of(&after).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (got, want) in got.iter().zip(&want) {
            assert!(got.shape() == want.shape() && bits(got) == bits(want), "{name} {sizes:?}");
        }
    }
    Some(())
}

#[test]
fn passes_ask_nothing_of_symbols_and_hold_for_other_sizes() {
    for form in [Form::Plain, Form::Expanded, Form::Gradient] {
        let checked = Case::all().iter().filter_map(|case| check_passes(case, form)).count();
        assert!(checked > 100, "{checked}");
    }
}

#[test]
fn numbers_of_sizes_are_worked_out_before_a_run() {
    use crate::ops::emit::Expr;
    use crate::ops::number::Calculation;
    let scope = Scope::new();
    let n = scope.symbol(Some(5));
    let graph = Graph::new();
    let list = scope.run(|| {
        let x = graph.input(Type::new(crate::dtype::DType::F32, Shape::from_dims(&[n])));
        let x = Expr::new(&graph, Arg::Node(x));
        let lr = Expr::new(&graph, graph.number());
        let rate = lr.calculate(Calculation::Div, x.count(n + Dim::ONE));
        let y = x * rate * x.count(n + Dim::ONE);
        if let Arg::Node(id) = y.arg() {
            graph.output(id);
        }
        graph.into_list()
    });
    assert!(scope.constraints().is_empty());
    assert_eq!(list.numbers.len(), 3, "a size is one number, however often it is used");
    let sizes = Bindings::of([(n, Dim::new(7))]);
    let values = list.evaluate_numbers(&[Scalar::Float(0.5)], &sizes).unwrap();
    assert_eq!(values[1..], [Scalar::Float(8.0), Scalar::Float(0.5 / 8.0)]);
    assert!(list.evaluate_numbers(&[], &sizes).is_err());
    assert!(list.evaluate_numbers(&[Scalar::Float(0.5)], &Bindings::default()).is_err());
    let known = resize(&list, &sizes).unwrap();
    assert_eq!(known.numbers.len(), 2, "the size has become a constant");
}
