//! Products with what becomes of them.

use smallvec::smallvec;

use super::input;
use crate::array::Array;
use crate::cpu::target::Cpu;
use crate::cpu::testing::{bytes, layouts, noise};
use crate::dtype::{DType, Scalar};
use crate::graph::Graph;
use crate::graph::testing::one_by_one;
use crate::ops::attributes::{Contraction, ConvRole, ConvSpec, Reduction};
use crate::ops::emit::Expr;
use crate::schedule::{Plan, Work};
use crate::threads;

fn products(plan: &Plan) -> usize {
    plan.steps().iter().filter(|step| matches!(step.work, Work::Product(_))).count()
}

/// Bits of a plan are those of its nodes one by one, for every layout of its operands and any count of
/// threads.
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
    // Rows of the product are two axes of the result, and the operand has only the inner one.
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
        assert_eq!(products(&holds(&graph, &inputs, &[])), usize::from(groups == 1));
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
