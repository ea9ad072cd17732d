mod control_flow;
mod layouts;
mod memory;
mod order;
mod product;
mod target;
mod verify;

use smallvec::smallvec;

use super::*;
use crate::array::Array;
use crate::cpu;
use crate::cpu::target::Cpu;
use crate::cpu::testing::{bytes, layouts, random};
use crate::dtype::DType;
use crate::executor::{Executor, Input, Results};
use crate::graph::testing::one_by_one;
use crate::ops::attributes::Reduction;
use crate::ops::elementwise;
use crate::ops::elementwise::Elementwise;
use crate::ops::emit::{Arg, Emit, Expr, catch};
use crate::ops::op::Type;
use crate::shape::Bindings;
use crate::threads;

impl Plan {
    /// The plan as executables take it.
    pub(crate) fn shared(&self) -> Arc<Plan> {
        Arc::new(self.clone())
    }

    /// Computes the results on the CPU.
    pub(crate) fn run(&self, inputs: &[&Array], numbers: &[Scalar]) -> Result<Results> {
        Cpu.lower(self)?.run(&self.shared(), inputs, numbers)
    }

    /// The same on inputs that may be given away.
    pub(crate) fn run_with(&self, inputs: &mut [Input<'_>], numbers: &[Scalar]) -> Result<Results> {
        Cpu.lower(self)?.run_with(&self.shared(), inputs, numbers)
    }
}

fn input<'g>(graph: &'g Graph, dtype: DType, sizes: &[usize]) -> Expr<'g> {
    Expr::new(graph, Arg::Node(graph.input(Type::new(dtype, Shape::of(sizes)))))
}

/// The numbers of a graph whose only numeric input is the first.
fn numbers_of(graph: &Graph) -> Vec<Scalar> {
    graph.list().evaluate_numbers(&[Scalar::Float(-1.25)], &Bindings::default()).unwrap()
}

/// Small deterministic choices.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A random graph over three inputs of a dtype: elementwise ops with numbers, casts, broadcasts,
/// fills, reductions and views, whatever their dtypes allow.
fn program(dtype: DType, seed: u64, steps: usize) -> Graph {
    let graph = Graph::new();
    let mut choices = Choices(seed * 7919 + dtype as u64);
    let mut values = vec![
        input(&graph, dtype, &[6, 70]),
        input(&graph, dtype, &[70]),
        input(&graph, dtype, &[6, 1]),
    ];
    let numbers = [graph.number(), Arg::Number(0.75.into()), Arg::Number(Scalar::Int(3).into())];
    let ops: Vec<&'static Elementwise> = elementwise::tables().collect();
    while values.len() < steps + 3 {
        let x = values[choices.below(values.len())];
        let made = catch(|| match choices.below(12) {
            0 => x.reduce_keep(Reduction::Sum, &[x.rank().saturating_sub(1)][..x.rank().min(1)]),
            1 => x.broadcast(Shape::of(&[6, 70])),
            2 => x.cast([DType::F32, DType::F16, DType::I8, DType::Bool, dtype][choices.below(5)]),
            3 => x.scalar(2).full(x.dtype(), Shape::of(&[70])),
            4 => x.reshape(x.shape()).permute((0..x.rank()).rev().collect()),
            _ => {
                let def = ops[choices.below(ops.len())];
                let args: SmallVec<[Expr<'_>; 3]> = (0..def.params.len())
                    .map(|_| match choices.below(5) {
                        0 => Expr::new(&graph, numbers[choices.below(3)]),
                        1 => x,
                        _ => values[choices.below(values.len())],
                    })
                    .collect();
                def.call(&args)
            }
        });
        // Ops that refuse these dtypes and shapes are left out.
        if let Ok(y) = made {
            values.push(y);
        }
    }
    for x in &values[values.len() - 4..] {
        if let Arg::Node(id) = x.arg() {
            graph.output(id);
        }
    }
    graph
}

#[test]
fn a_plan_gives_the_bits_of_its_nodes_one_by_one() {
    let before = threads::num_threads();
    for dtype in
        [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8, DType::U32, DType::Bool]
    {
        let (mut fused, mut by_rows) = (0, 0);
        for seed in 0..60 {
            let graph = program(dtype, seed, 4 + seed as usize % 40);
            graph.verify().unwrap();
            let plan = Plan::new(&graph, &Cpu).unwrap();
            fused += usize::from(plan.pays(0));
            let inputs =
                [random(dtype, &[6, 70], seed), random(dtype, &[70], 1), random(dtype, &[6, 1], 2)];
            let numbers = numbers_of(&graph);
            let want = one_by_one(&graph, &inputs.each_ref(), &numbers);
            let rows = block_fusion::tests::eager(&graph);
            by_rows +=
                usize::from(rows.steps().iter().any(|s| matches!(s.work, Work::BlockFusion(_))));
            for (threads, x) in layouts(&inputs[0]).iter().enumerate() {
                threads::set_num_threads(threads % 2 + 1);
                for plan in [&plan, &rows] {
                    let got = plan.run(&[x, &inputs[1], &inputs[2]], &numbers).unwrap();
                    for (got, want) in got.iter().zip(&want) {
                        assert_eq!(
                            bytes(got),
                            bytes(want),
                            "{dtype} {seed}\n{}\n{plan}",
                            graph.print(|_| None)
                        );
                    }
                }
            }
        }
        assert!(fused > 20, "{dtype}: only {fused} plans have groups");
        assert!(by_rows > 5, "{dtype}: only {by_rows} plans are fused by blocks");
    }
    threads::set_num_threads(before);
}

#[test]
fn a_plan_prints_its_groups_and_why_they_end() {
    let graph = Graph::new();
    let (x, s) = (input(&graph, DType::F32, &[4, 5]), graph.number());
    graph
        .build(|| {
            let e = ((x - x.reduce_keep(Reduction::Max, &[1])) * Expr::new(&graph, s)).exp();
            let half = e * 0.5;
            smallvec![half / e.reduce_keep(Reduction::Sum, &[1])]
        })
        .unwrap();
    let text = Plan::new(&graph, &Cpu).unwrap().to_string();
    let want = "\
s0 = max(in0)
s1 = reshape(s0)  free s0
s2 = subtract, multiply, exp (4, 5) (in0, s1, #0)  free s1  # read by sum
s3 = sum(s2)
s4 = reshape(s3)  free s3
s5 = multiply, divide (4, 5) (s2, s4, 0.5)  free s2, s4  # result
return (s5,)
";
    assert_eq!(text, want, "{}", graph.print(|_| None));
}

#[test]
fn long_chains_are_cut_into_full_groups() {
    let graph = Graph::new();
    let mut x = input(&graph, DType::F32, &[3]);
    for _ in 0..100 {
        x = x + 1.0;
    }
    graph.build(|| smallvec![x]).unwrap();
    let plan = Plan::new(&graph, &Cpu).unwrap();
    let cuts: Vec<Cut> = plan.steps().iter().map(|step| step.cut).collect();
    assert_eq!(cuts, [Cut::Size, Cut::Size, Cut::Size, Cut::Result]);
    let zero = random(DType::F32, &[3], 0);
    let plus: Vec<f64> = cpu::testing::values(&zero).iter().map(|v| v + 100.0).collect();
    assert_eq!(cpu::testing::values(&plan.run(&[&zero], &[]).unwrap()[0]), plus);
}

#[test]
fn what_a_path_leaves_and_reenters_is_not_one_group() {
    // x + 1 feeds a sum that comes back to it: the two additions cannot share a program.
    let graph = Graph::new();
    let x = input(&graph, DType::F32, &[3]);
    graph
        .build(|| {
            let a = x + 1.0;
            smallvec![a + a.reduce_keep(Reduction::Sum, &[0]) + (x * 3.0)]
        })
        .unwrap();
    let plan = Plan::new(&graph, &Cpu).unwrap();
    let groups = plan.steps().iter().filter(|step| matches!(step.work, Work::Group(..))).count();
    assert_eq!((plan.steps().len(), groups), (4, 1), "{plan}");
}

#[test]
fn dead_nodes_and_plain_inputs_cost_nothing() {
    let graph = Graph::new();
    let x = input(&graph, DType::F32, &[3]);
    let _ = (x + 1.0).exp();
    graph.build(|| smallvec![x, x]).unwrap();
    let plan = Plan::new(&graph, &Cpu).unwrap();
    assert!(plan.steps().is_empty());
    let a = random(DType::F32, &[3], 5);
    let got = plan.run(&[&a], &[]).unwrap();
    assert!(got.iter().all(|y| y.data.same(&a.data)));
}

#[test]
fn a_dying_value_gives_its_memory() {
    let graph = Graph::new();
    let (x, y) = (input(&graph, DType::F32, &[64, 64]), input(&graph, DType::F32, &[64, 64]));
    graph
        .build(|| {
            let z = x.contract(
                y,
                crate::ops::attributes::Contraction {
                    a_batch: smallvec![],
                    b_batch: smallvec![],
                    a_contract: smallvec![1],
                    b_contract: smallvec![0],
                },
            );
            smallvec![(z + 1.0).exp()]
        })
        .unwrap();
    let plan = Plan::new(&graph, &Cpu).unwrap();
    let (a, b) = (random(DType::F32, &[64, 64], 1), random(DType::F32, &[64, 64], 2));
    let want = one_by_one(&graph, &[&a, &b], &[]);
    let before = (bytes(&a), bytes(&b));
    let got = plan.run(&[&a, &b], &[]).unwrap();
    assert_eq!(bytes(&got[0]), bytes(&want[0]));
    assert_eq!((bytes(&a), bytes(&b)), before);
    assert_eq!((plan.steps().len(), plan.memory().arena_bytes()), (1, 0));
}

#[test]
fn failures_come_out_as_errors() {
    let graph = Graph::new();
    let x = input(&graph, DType::F32, &[3]);
    let i = input(&graph, DType::I64, &[2]);
    graph.build(|| smallvec![x.gather(&[i]) + 1.0]).unwrap();
    let plan = Plan::new(&graph, &Cpu).unwrap();
    let index = cpu::testing::array(DType::I64, &[2], &[0.0, 7.0]);
    let error = plan.run(&[&random(DType::F32, &[3], 1), &index], &[]).err().unwrap();
    assert_eq!(error.code(), "index_out_of_bounds");
    assert_eq!(graph.ty(Id(0)).dtype, DType::F32);
    let empty: [&Array; 0] = [];
    assert_eq!(plan.run(&empty, &[]).err().unwrap().code(), "internal");
}
