//! Products with prologues and epilogues, against the interpreter of lists.

use std::sync::Arc;

use smallvec::smallvec;

use super::{Choices, input};
use crate::array::Array;
use crate::cpu::target::Cpu;
use crate::cpu::testing::{bytes, layouts, noise, random};
use crate::dtype::{DType, Scalar};
use crate::executor::Executor;
use crate::graph::Graph;
use crate::graph::testing::one_by_one;
use crate::ops::attributes::{Contraction, ConvRole, ConvSpec, Cumulation, Reduction};
use crate::ops::emit::{Arg, Expr};
use crate::ops::op::Type;
use crate::reference::plan::Reference;
use crate::schedule::{Plan, Step, Work};
use crate::shape::{Bindings, Dim, Shape};
use crate::threads;

fn products(plan: &Plan) -> usize {
    plan.steps().iter().filter(|step| matches!(step.work, Work::Product(_))).count()
}

/// Asserts that a plan has the bits of its nodes one by one, for every layout of its operands and
/// any count of threads.
fn holds(graph: &Graph, inputs: &[Array], numbers: &[Scalar]) -> Plan {
    let plan = Plan::new(graph, &Cpu).unwrap();
    let refs: Vec<&Array> = inputs.iter().collect();
    let want = one_by_one(graph, &refs, numbers);
    let before = threads::num_threads();
    for (i, x) in inputs.iter().enumerate() {
        for (k, x) in layouts(x).iter().enumerate() {
            threads::set_num_threads(k % 2 + 1);
            let mut refs = refs.clone();
            refs[i] = x;
            let got = plan.run(&refs, numbers).unwrap();
            for (got, want) in got.iter().zip(&want) {
                assert!(bytes(got) == bytes(want), "{}\n{plan}", graph.print(|_| None));
            }
        }
    }
    threads::set_num_threads(before);
    plan
}

fn matmul<'g>(a: Expr<'g>, b: Expr<'g>) -> Expr<'g> {
    let (last, batch) = (a.rank() - 1, b.rank() - 2);
    a.contract(
        b,
        Contraction {
            a_batch: (0..batch).collect(),
            b_batch: (0..batch).collect(),
            a_contract: smallvec![last],
            b_contract: smallvec![b.rank() - 2],
        },
    )
}

#[test]
fn bias_and_activation_follow_a_product() {
    for (m, k, n) in [(1, 9, 40), (70, 30, 3), (7, 0, 9), (300, 40, 600), (33, 1100, 65)] {
        for dtype in [DType::F32, DType::F64] {
            let graph = Graph::new();
            let (x, w) = (input(&graph, dtype, &[m, k]), input(&graph, dtype, &[k, n]));
            let (b, r) = (input(&graph, dtype, &[n]), input(&graph, dtype, &[m, 1]));
            let scale = graph.number();
            graph
                .build(|| {
                    let z = (matmul(x, w) + b) * Expr::new(&graph, scale) - r;
                    smallvec![z, z.maximum(z.scalar(0)), z.less(b)]
                })
                .unwrap();
            let inputs = [
                noise(dtype, &[m, k], 1),
                noise(dtype, &[k, n], 2),
                noise(dtype, &[n], 3),
                noise(dtype, &[m, 1], 4),
            ];
            let plan = holds(&graph, &inputs, &[Scalar::Float(0.5)]);
            assert_eq!((plan.steps().len(), products(&plan)), (1, 1), "{plan}");
        }
    }
}

#[test]
fn integers_are_products_too() {
    for (dtype, joined) in [(DType::I64, 1), (DType::U32, 1), (DType::I8, 0), (DType::BF16, 0)] {
        let graph = Graph::new();
        let (x, w) = (input(&graph, dtype, &[5, 8]), input(&graph, dtype, &[8, 9]));
        graph.build(|| smallvec![matmul(x, w) * w.reduce(Reduction::Sum, &[0])]).unwrap();
        let inputs = [noise(dtype, &[5, 8], 1), noise(dtype, &[8, 9], 2)];
        // Narrow dtypes are summed elsewhere.
        assert_eq!(products(&holds(&graph, &inputs, &[])), joined, "{dtype}");
    }
}

#[test]
fn operands_of_a_batch_go_along() {
    let graph = Graph::new();
    let (x, w) = (input(&graph, DType::F32, &[3, 5, 8]), input(&graph, DType::F32, &[3, 8, 6]));
    let (mask, rest) = (input(&graph, DType::F32, &[5, 6]), input(&graph, DType::F32, &[3, 1, 1]));
    graph.build(|| smallvec![(matmul(x, w) * rest + mask).exp()]).unwrap();
    let inputs = [
        noise(DType::F32, &[3, 5, 8], 1),
        noise(DType::F32, &[3, 8, 6], 2),
        noise(DType::F32, &[5, 6], 3),
        noise(DType::F32, &[3, 1, 1], 4),
    ];
    assert_eq!(products(&holds(&graph, &inputs, &[])), 1);
}

#[test]
fn operands_that_walk_unevenly_are_read_afterwards() {
    // The rows of the product are two axes of the result, and the operand has only the inner one.
    let graph = Graph::new();
    let (x, w) = (input(&graph, DType::F32, &[3, 5, 8]), input(&graph, DType::F32, &[8, 6]));
    let place = input(&graph, DType::F32, &[5, 6]);
    graph.build(|| smallvec![matmul(x, w) + place]).unwrap();
    let inputs = [
        noise(DType::F32, &[3, 5, 8], 1),
        noise(DType::F32, &[8, 6], 2),
        noise(DType::F32, &[5, 6], 3),
    ];
    assert_eq!(products(&holds(&graph, &inputs, &[])), 1);
}

#[test]
fn convolutions_are_products() {
    for groups in [1, 2] {
        let spec = ConvSpec {
            stride: smallvec![1, 2],
            pad_low: smallvec![1, 0],
            pad_high: smallvec![1, 1],
            dilation: smallvec![1, 1],
            groups,
            input: smallvec![9.into(), 8.into()],
            kernel: smallvec![3.into(), 3.into()],
        };
        let graph = Graph::new();
        let x = input(&graph, DType::F32, &[2, 4, 9, 8]);
        let w = input(&graph, DType::F32, &[6, 4 / groups, 3, 3]);
        let b = input(&graph, DType::F32, &[6, 1, 1]);
        graph
            .build(|| {
                let y = x.conv(ConvRole::Output, w, Box::new(spec)) + b;
                smallvec![y.maximum(y.scalar(0))]
            })
            .unwrap();
        let inputs = [
            noise(DType::F32, &[2, 4, 9, 8], 1),
            noise(DType::F32, &[6, 4 / groups, 3, 3], 2),
            noise(DType::F32, &[6, 1, 1], 3),
        ];
        assert_eq!(products(&holds(&graph, &inputs, &[])), 1, "{groups} groups");
    }
}

#[test]
fn a_product_that_others_read_stays_alone() {
    let graph = Graph::new();
    let (x, w) = (input(&graph, DType::F32, &[5, 8]), input(&graph, DType::F32, &[8, 8]));
    graph
        .build(|| {
            let y = matmul(x, w);
            smallvec![y.exp(), matmul(y, w)]
        })
        .unwrap();
    let inputs = [noise(DType::F32, &[5, 8], 1), noise(DType::F32, &[8, 8], 2)];
    assert_eq!(products(&holds(&graph, &inputs, &[])), 0);
}

/// How many operands prologues compute.
fn prologues(plan: &Plan) -> usize {
    let made = |step: &Step| match &step.work {
        Work::Product(product) => product.before.iter().flatten().count(),
        Work::Group(_)
        | Work::BlockFusion(_)
        | Work::RowFusion(_)
        | Work::Op(_)
        | Work::ControlFlow(_)
        | Work::Effect(_)
        | Work::Alias => 0,
    };
    plan.steps().iter().map(made).sum()
}

// Constants are packed when a plan is lowered, in the form in which kernels read them.
#[test]
fn constant_operands_of_products_give_the_bits_of_others() {
    for (m, k, n) in [(1, 70, 33), (5, 300, 64), (40, 257, 130), (3, 40, 7)] {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::I32] {
            for w in layouts(&noise(dtype, &[k, n], 5)) {
                let graph = Graph::new();
                let (x, b) = (input(&graph, dtype, &[m, k]), input(&graph, dtype, &[n]));
                let w = Expr::new(&graph, Arg::Node(graph.constant(w)));
                graph.build(|| smallvec![matmul(x, w), matmul(x, w) + b]).unwrap();
                holds(&graph, &[noise(dtype, &[m, k], 6), noise(dtype, &[n], 7)], &[]);
            }
        }
    }
}

#[test]
fn constant_weights_of_convolutions_give_the_bits_of_others() {
    for (c, o, side) in [(3, 40, 12), (20, 6, 9), (33, 70, 7)] {
        let spec = |kernel: usize| ConvSpec {
            stride: smallvec![1, 1],
            pad_low: smallvec![kernel / 2; 2],
            pad_high: smallvec![kernel / 2; 2],
            dilation: smallvec![1, 1],
            groups: 1,
            input: smallvec![side.into(); 2],
            kernel: smallvec![kernel.into(); 2],
        };
        for kernel in [1, 3] {
            let w = noise(DType::F32, &[o, c, kernel, kernel], 8);
            let graph = Graph::new();
            let x = input(&graph, DType::F32, &[2, c, side, side]);
            let w = Expr::new(&graph, Arg::Node(graph.constant(w)));
            let y = || x.conv(ConvRole::Output, w, Box::new(spec(kernel)));
            graph.build(|| smallvec![y(), y() * 2.0]).unwrap();
            holds(&graph, &[noise(DType::F32, &[2, c, side, side], 9)], &[]);
        }
    }
}

/// The results of a plan for the CPU that the reference runs step by step.
fn by_reference(plan: &Plan, inputs: &[Array], numbers: &[Scalar]) -> Vec<Array> {
    let inputs: Vec<&Array> = inputs.iter().collect();
    let steps = Reference.lower(plan).unwrap();
    let found = steps.run(&plan.shared(), &inputs, numbers).unwrap();
    found.iter().map(|x| Reference.download(x).unwrap()).collect()
}

// The size of panels depends on the machine, and so do the sizes for which a prologue pays.
#[test]
fn operands_are_made_while_they_are_packed() {
    let (mut made, mut cases) = (0, 0);
    for (m, k, n) in [(70, 300, 60), (300, 40, 130), (33, 265, 130)] {
        for (dtype, narrow) in [
            (DType::F32, DType::F16),
            (DType::F64, DType::I8),
            (DType::BF16, DType::U8),
            (DType::I64, DType::I16),
            (DType::U8, DType::I32),
            (DType::I32, DType::Bool),
        ] {
            let graph = Graph::new();
            let (x, w) = (input(&graph, dtype, &[m, k]), input(&graph, narrow, &[k, n]));
            let (s, b) = (input(&graph, dtype, &[n]), input(&graph, dtype, &[k, 1]));
            graph.build(|| smallvec![matmul(x, w.cast(dtype) * s + b)]).unwrap();
            let inputs = [
                random(dtype, &[m, k], 1),
                random(narrow, &[k, n], 2),
                random(dtype, &[n], 3),
                random(dtype, &[k, 1], 4),
            ];
            let plan = holds(&graph, &inputs, &[]);
            assert_eq!(plan.steps().len(), 2 - prologues(&plan), "{m} {k} {n} {dtype}\n{plan}");
            (made, cases) = (made + prologues(&plan), cases + 1);
            if !dtype.is_float() {
                let by_reference = by_reference(&plan, &inputs, &[]);
                let plan = plan.run(&inputs.each_ref(), &[]).unwrap();
                assert_eq!(bytes(&by_reference[0]), bytes(&plan[0]));
            }
        }
    }
    assert!(made * 2 > cases, "{made} of {cases}");
}

#[test]
fn an_operand_may_be_made_with_its_axes_in_another_order() {
    let mut made = 0;
    for (m, k, n) in [(2, 160, 70), (65, 90, 50), (200, 300, 40)] {
        let graph = Graph::new();
        let (x, w) = (input(&graph, DType::F32, &[m, k]), input(&graph, DType::F32, &[n, k]));
        let (s, b) = (input(&graph, DType::F32, &[n, 1]), input(&graph, DType::F32, &[n]));
        graph
            .build(|| {
                let y = matmul(x, (w * s).permute(smallvec![1, 0])) + b;
                smallvec![y.maximum(y.scalar(0))]
            })
            .unwrap();
        let inputs = [
            noise(DType::F32, &[m, k], 1),
            noise(DType::F32, &[n, k], 2),
            noise(DType::F32, &[n, 1], 3),
            noise(DType::F32, &[n], 4),
        ];
        let plan = holds(&graph, &inputs, &[]);
        if prologues(&plan) == 1 {
            assert_eq!(plan.steps().len(), 1, "{plan}");
            assert_eq!(plan.steps()[0].name(), "matmul (b: multiply), add, maximum");
            made += 1;
        }
    }
    assert!(made > 0);
}

#[test]
fn operands_that_are_long_are_made_span_by_span() {
    let (m, k, n) = (90, 8300, 20);
    let graph = Graph::new();
    let (x, w) = (input(&graph, DType::F32, &[m, k]), input(&graph, DType::I8, &[k, n]));
    graph.build(|| smallvec![matmul(x, w.cast(DType::F32) * w.cast(DType::F32))]).unwrap();
    let inputs = [noise(DType::F32, &[m, k], 1), random(DType::I8, &[k, n], 2)];
    let inputs = inputs.each_ref();
    let plan = Plan::new(&graph, &Cpu).unwrap();
    assert_eq!(plan.steps().len(), 2 - prologues(&plan), "{plan}");
    let want = one_by_one(&graph, &inputs, &[]);
    assert!(bytes(&plan.run(&inputs, &[]).unwrap()[0]) == bytes(&want[0]));
}

#[test]
fn what_is_read_where_it_lies_is_no_prologue() {
    let graph = Graph::new();
    let (x, w) = (input(&graph, DType::F32, &[2, 90]), input(&graph, DType::F32, &[90, 80]));
    graph.build(|| smallvec![matmul(x, w * w)]).unwrap();
    let inputs = [noise(DType::F32, &[2, 90], 1), noise(DType::F32, &[90, 80], 2)];
    assert_eq!(prologues(&holds(&graph, &inputs, &[])), 0);
}

#[test]
fn what_others_read_too_or_is_small_is_no_prologue() {
    let small = (DType::F32, [5, 8], [8, 9], 1);
    let large = (DType::F32, [90, 80], [80, 90], 2);
    for (dtype, a, b, results) in [small, large] {
        let graph = Graph::new();
        let (x, w) = (input(&graph, dtype, &a), input(&graph, dtype, &b));
        graph
            .build(|| {
                let y = w * w;
                let product = matmul(x, y);
                if results == 1 { smallvec![product] } else { smallvec![product, y] }
            })
            .unwrap();
        let inputs = [noise(dtype, &a, 1), noise(dtype, &b, 2)];
        assert_eq!(prologues(&holds(&graph, &inputs, &[])), 0);
    }
}

#[test]
fn a_prologue_keeps_no_more_memory_than_its_result() {
    // Two arrays that only the group reads would have to stay until the product.
    let graph = Graph::new();
    let (x, w) = (input(&graph, DType::F32, &[80, 90]), input(&graph, DType::F32, &[90, 100]));
    graph
        .build(|| {
            let (u, v) =
                (w.cumulate(Cumulation::Sum, 0, false), w.cumulate(Cumulation::Max, 1, false));
            smallvec![matmul(x, u * v)]
        })
        .unwrap();
    let inputs = [noise(DType::F32, &[80, 90], 1), noise(DType::F32, &[90, 100], 2)];
    assert_eq!(prologues(&holds(&graph, &inputs, &[])), 0);
}

#[test]
fn other_sizes_lower_nothing_for_their_prologues() {
    use crate::cpu::program::LOWERED;
    let (n, k, m) = (Dim::named("n"), 265, 130);
    let graph = Graph::new();
    let ty = Type::new(DType::F32, Shape::from_dims(&[n, Dim::new(k)]));
    let x = Expr::new(&graph, Arg::Node(graph.input(ty)));
    let (w, v) = (input(&graph, DType::I8, &[k, m]), input(&graph, DType::I16, &[m, k]));
    graph
        .build(|| {
            // A cast alone is no group of its own, a product and a sum are.
            let y = matmul(x, w.cast(DType::F32));
            smallvec![matmul(y, v.cast(DType::F32) * 0.5 + 1.0)]
        })
        .unwrap();
    let open = Plan::new(&graph, &Cpu).unwrap();
    assert_eq!(prologues(&open), 0, "{open}");
    let before = LOWERED.get();
    let lowered = Cpu.lower(&open).unwrap();
    let programs = LOWERED.get() - before;
    let mut made = Vec::new();
    for size in [2, 300, 3, 33] {
        let sizes = Bindings::of([(n, Dim::new(size))]);
        let plan = open.resized(&|dim| sizes.resolve(dim)).unwrap();
        assert!(Arc::ptr_eq(plan.template(), open.template()));
        let inputs = [
            random(DType::F32, &[size, k], 1),
            random(DType::I8, &[k, m], 2),
            random(DType::I16, &[m, k], 3),
        ];
        let sized = Graph::from_list(crate::graph::resize(&graph.list(), &sizes).unwrap());
        let want = one_by_one(&sized, &inputs.each_ref(), &[]);
        let got = lowered.run(&plan.shared(), &inputs.each_ref(), &[]).unwrap();
        assert_eq!(bytes(&got[0]), bytes(&want[0]), "{plan}");
        made.push(prologues(&plan));
    }
    assert_eq!(LOWERED.get() - before, programs);
    // The sizes that pay depend on the machine. Products of few rows read their weights where they
    // lie.
    assert!(made[0] == 0 && made[2] == 0 && made[1] + made[3] > 1, "{made:?}");
}

/// Up to three elementwise ops, on what is given and one of two others.
fn chain<'g>(choices: &mut Choices, x: Expr<'g>, loads: [Expr<'g>; 2]) -> Expr<'g> {
    (0..choices.below(4)).fold(x, |x, _| {
        let load = loads[choices.below(2)];
        match choices.below(4) {
            0 => x * load,
            1 => x - load,
            2 => x.maximum(load),
            _ => x + x.scalar(2),
        }
    })
}

#[test]
fn random_groups_before_and_after_products_keep_their_bits() {
    let mut made = 0;
    for seed in 0..40 {
        let mut choices = Choices(seed * 31 + 5);
        let (m, k, n) = (choices.below(90) + 1, choices.below(400) + 1, choices.below(150) + 1);
        let (p, q) = if m % 2 == 0 { (2, m / 2) } else { (1, m) };
        let dtype = [DType::F32, DType::F64, DType::I32, DType::BF16][seed as usize % 4];
        let graph = Graph::new();
        let (x, w) = (input(&graph, dtype, &[p, q, k]), input(&graph, dtype, &[k, n]));
        let loads = [
            input(&graph, dtype, &[q, 1]),
            input(&graph, dtype, &[p, 1, k]),
            input(&graph, dtype, &[k, 1]),
            input(&graph, dtype, &[n]),
        ];
        graph
            .build(|| {
                let (a, b) = (
                    chain(&mut choices, x, [loads[0], loads[1]]),
                    chain(&mut choices, w, [loads[2], loads[3]]),
                );
                let y = a.contract(
                    b,
                    Contraction {
                        a_batch: smallvec![],
                        b_batch: smallvec![],
                        a_contract: smallvec![2],
                        b_contract: smallvec![0],
                    },
                );
                smallvec![chain(&mut choices, y, [loads[0], loads[3]])]
            })
            .unwrap();
        let inputs = [
            random(dtype, &[p, q, k], 1),
            random(dtype, &[k, n], 2),
            random(dtype, &[q, 1], 3),
            random(dtype, &[p, 1, k], 4),
            random(dtype, &[k, 1], 5),
            random(dtype, &[n], 6),
        ];
        made += prologues(&holds(&graph, &inputs, &[]));
    }
    assert!(made > 8, "{made}");
}
