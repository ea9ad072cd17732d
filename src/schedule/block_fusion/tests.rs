use smallvec::{SmallVec, smallvec};

use super::super::{Plan, Work};
use crate::array::Array;
use crate::cpu;
use crate::cpu::target::Cpu;
use crate::cpu::testing::{bytes, layouts, noise, random};
use crate::dtype::{DType, Scalar};
use crate::graph::Graph;
use crate::graph::testing::one_by_one;
use crate::layout::Layout;
use crate::memory;
use crate::ops::attributes::{Contraction, Reduction};
use crate::ops::declare::Composite;
use crate::ops::emit::{Arg, Expr};
use crate::ops::op::{Op, Type};
use crate::shape::Shape;
use crate::target::{BlockScratch, Blocks, InPlace, Limits, Packed, Target};
use crate::threads;

/// A CPU whose plans are fused by blocks wherever they can.
struct Eager;

/// Blocks wherever there can be some.
pub(crate) const BLOCKS: Blocks =
    Blocks { rows: 2, bytes: 256, least: 256, large: 0, of_rows: 0, each: 4, inside: 1 << 20 };

const LIMITS: Limits = Limits { blocks: Some(BLOCKS), rows: None, ..cpu::target::LIMITS };

impl Target for Eager {
    fn name(&self) -> &'static str {
        "eager"
    }
    fn limits(&self) -> &Limits {
        &LIMITS
    }
    fn lanes(&self) -> usize {
        Cpu.lanes()
    }
    fn supports(&self, op: &Op, operands: &[DType], result: DType) -> bool {
        Cpu.supports(op, operands, result)
    }
    fn has_kernel(&self, composite: &'static Composite) -> bool {
        Target::has_kernel(&Cpu, composite)
    }
    fn view(&self, op: &Op, dtype: DType, x: &Layout) -> Option<Layout> {
        Cpu.view(op, dtype, x)
    }
    fn fresh_layout(&self, op: &Op, shape: &Shape) -> Layout {
        Cpu.fresh_layout(op, shape)
    }
    fn in_place(&self, op: &Op) -> InPlace {
        Cpu.in_place(op)
    }
    fn scratch(&self, op: &Op, args: &[(DType, &Layout)], result: &Layout) -> usize {
        Cpu.scratch(op, args, result)
    }
    fn block_scratch(&self, op: &Op, args: &[(DType, &Layout)], result: &Shape) -> BlockScratch {
        Cpu.block_scratch(op, args, result)
    }
    fn offers_epilogue(&self, op: &Op, dtype: DType) -> bool {
        Cpu.offers_epilogue(op, dtype)
    }
    fn offers_prologue(&self, op: &Op, dtype: DType, operand: usize) -> bool {
        Cpu.offers_prologue(op, dtype, operand)
    }
    fn packed(
        &self,
        op: &Op,
        args: [(DType, &Layout); 2],
        made: [Option<usize>; 2],
        result: &Layout,
    ) -> Packed {
        Cpu.packed(op, args, made, result)
    }
    fn splits_batch(&self, dtype: DType) -> bool {
        Cpu.splits_batch(dtype)
    }
    fn reduction_group(&self, lines: usize, width: usize) -> Option<usize> {
        Cpu.reduction_group(lines, width)
    }
}

/// A plan that fuses blocks wherever it can.
pub(crate) fn eager(graph: &Graph) -> Plan {
    Plan::new(graph, &Eager).unwrap()
}

fn input<'g>(graph: &'g Graph, dtype: DType, sizes: &[usize]) -> Expr<'g> {
    Expr::new(graph, Arg::Node(graph.input(Type::new(dtype, Shape::of(sizes)))))
}

fn rows(plan: &Plan) -> Vec<String> {
    let by_rows = plan.steps().iter().filter(|step| matches!(step.work, Work::BlockFusion(_)));
    by_rows.map(|step| step.name()).collect()
}

/// Runs a plan on operands in every layout, and asserts the bits of the nodes one by one.
fn holds(graph: &Graph, plan: &Plan, inputs: &[Array], numbers: &[Scalar]) {
    let refs: Vec<&Array> = inputs.iter().collect();
    let want = one_by_one(graph, &refs, numbers);
    for x in layouts(&inputs[0]) {
        let mut refs = refs.clone();
        refs[0] = &x;
        let got = plan.run(&refs, numbers).unwrap();
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(got.shape(), want.shape());
            assert!(bytes(got) == bytes(want), "{}\n{plan}", graph.print(|_| None));
        }
    }
}

fn softmax(x: Expr<'_>) -> Expr<'_> {
    let last = [x.rank() - 1];
    let e = (x - x.reduce_keep(Reduction::Max, &last)).exp();
    e / e.reduce_keep(Reduction::Sum, &last)
}

fn product<'g>(a: Expr<'g>, b: Expr<'g>, transposed: bool) -> Expr<'g> {
    let last = a.rank() - 1;
    let batch: SmallVec<[usize; 6]> = (0..last - 1).collect();
    let depth = if transposed { last } else { last - 1 };
    a.contract(
        b,
        Contraction {
            a_batch: batch.iter().copied().collect(),
            b_batch: batch.iter().copied().collect(),
            a_contract: smallvec![last],
            b_contract: smallvec![depth],
        },
    )
}

#[test]
fn a_softmax_is_one_step_of_rows() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for sizes in [&[37, 19][..], &[3, 7, 40], &[2, 1, 5, 33], &[64, 1]] {
            let graph = Graph::new();
            let x = input(&graph, dtype, sizes);
            graph.build(|| smallvec![softmax(x)]).unwrap();
            let plan = eager(&graph);
            let names = rows(&plan);
            assert_eq!((names.len(), plan.steps().len()), (1, 1), "{sizes:?}\n{plan}");
            assert!(names[0].contains("max") && names[0].contains("sum"), "{names:?}");
            holds(&graph, &plan, &[noise(dtype, sizes, 1)], &[]);
        }
    }
}

#[test]
fn a_row_that_all_share_goes_with_no_axis_of_rows() {
    // It has as many elements as there are rows.
    for dtype in [DType::F32, DType::F16] {
        let sizes = [24, 24];
        let graph = Graph::new();
        let (x, w) = (input(&graph, dtype, &sizes), input(&graph, DType::F64, &[24]));
        graph.build(|| smallvec![softmax(x + w.cast(dtype))]).unwrap();
        let plan = eager(&graph);
        assert_eq!(rows(&plan).len(), 1, "{plan}");
        holds(&graph, &plan, &[noise(dtype, &sizes, 1), noise(DType::F64, &[24], 2)], &[]);
    }
}

#[test]
fn few_elements_are_summed_by_a_step_of_their_own() {
    // A block could not begin within the group that becomes one leaf of the sum.
    let before = threads::num_threads();
    for count in [1, 2] {
        threads::set_num_threads(count);
        let graph = Graph::new();
        let x = input(&graph, DType::F32, &[100, 12]);
        graph
            .build(|| {
                let largest = x.reduce_keep(Reduction::Max, &[1]);
                let each = (x - largest).exp().reduce(Reduction::Sum, &[1]).log();
                smallvec![each.reduce(Reduction::Sum, &[0])]
            })
            .unwrap();
        let plan = eager(&graph);
        assert_eq!((rows(&plan).len(), plan.steps().len()), (1, count), "{plan}");
        holds(&graph, &plan, &[noise(DType::F32, &[100, 12], 1)], &[]);
    }
    threads::set_num_threads(before);
}

#[test]
fn attention_is_one_step_over_its_batch() {
    let (sizes, out) = ([3, 2, 9, 5], [3, 2, 9, 4]);
    let graph = Graph::new();
    let (q, k) = (input(&graph, DType::F32, &sizes), input(&graph, DType::F32, &sizes));
    let v = input(&graph, DType::F32, &out);
    graph.build(|| smallvec![product(softmax(product(q * 0.5, k, true)), v, false)]).unwrap();
    let plan = eager(&graph);
    assert_eq!(plan.steps().len(), 1, "{plan}");
    let inputs =
        [noise(DType::F32, &sizes, 1), noise(DType::F32, &sizes, 2), noise(DType::F32, &out, 3)];
    holds(&graph, &plan, &inputs, &[]);
}

#[test]
fn what_others_read_is_a_result_of_the_rows() {
    let graph = Graph::new();
    let (x, w) = (input(&graph, DType::F32, &[24, 10]), input(&graph, DType::F32, &[10]));
    let eps = graph.number();
    graph
        .build(|| {
            let mean = x.reduce_keep(Reduction::Sum, &[1]) * 0.1;
            let y = x - mean;
            let variance = (y * y).reduce_keep(Reduction::Sum, &[1]) * 0.1;
            let scale = (variance + Expr::new(&graph, eps)).rsqrt();
            let z = y * scale * w;
            // Results: `z`, the reshaped scale, and a sum over all rows.
            smallvec![z, scale.reshape(Shape::of(&[24])), (z * y).reduce(Reduction::Sum, &[0])]
        })
        .unwrap();
    let plan = eager(&graph);
    assert_eq!(rows(&plan).len(), 1, "{plan}");
    let inputs = [noise(DType::F32, &[24, 10], 1), random(DType::F32, &[10], 2)];
    holds(&graph, &plan, &inputs, &[Scalar::Float(1e-5)]);
}

#[test]
fn what_needs_all_rows_is_not_among_them() {
    // Every row reads the sum over all rows.
    let graph = Graph::new();
    let x = input(&graph, DType::F32, &[40, 6]);
    graph
        .build(|| {
            let y = softmax(x);
            let total = y.reduce_keep(Reduction::Sum, &[0]);
            smallvec![softmax(y / total)]
        })
        .unwrap();
    let plan = eager(&graph);
    assert_eq!(rows(&plan).len(), 2, "{plan}");
    holds(&graph, &plan, &[noise(DType::F32, &[40, 6], 4)], &[]);
}

#[test]
fn a_run_takes_what_the_plan_says() {
    let sizes = [48, 40];
    let graph = Graph::new();
    let x = input(&graph, DType::F32, &sizes);
    graph.build(|| smallvec![softmax(softmax(x).exp())]).unwrap();
    let plan = eager(&graph);
    assert_eq!(rows(&plan).len(), 1, "{plan}");
    let x = noise(DType::F32, &sizes, 4);
    let before = memory::stats().live_bytes;
    memory::reset_peak();
    let results = plan.run(&[&x], &[]).unwrap();
    assert_eq!(memory::stats().peak_bytes - before, plan.peak_bytes());
    drop(results);
}

#[test]
fn reductions_over_all_rows_take_up_blocks() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::I32] {
        for sizes in [&[3000][..], &[130, 37], &[6, 50, 9], &[4096, 2]] {
            let graph = Graph::new();
            let (x, y) = (input(&graph, dtype, sizes), input(&graph, dtype, sizes));
            let all: SmallVec<[usize; 4]> = (0..sizes.len()).collect();
            graph
                .build(|| {
                    let d = x - y;
                    let mut results = smallvec![
                        (d * d).reduce(Reduction::Sum, &all),
                        (d + d).reduce(Reduction::Max, &all)
                    ];
                    if sizes.len() > 1 {
                        results.push((d * x).reduce(Reduction::Sum, &all[..sizes.len() - 1]));
                        results.push(d);
                    }
                    results
                })
                .unwrap();
            let plan = eager(&graph);
            assert_eq!((rows(&plan).len(), plan.steps().len()), (1, 1), "{sizes:?}\n{plan}");
            let before = threads::num_threads();
            for count in [1, 3] {
                threads::set_num_threads(count);
                holds(&graph, &plan, &[noise(dtype, sizes, 1), noise(dtype, sizes, 2)], &[]);
            }
            threads::set_num_threads(before);
        }
    }
}

/// What a batch norm does to some channels, and its gradient by the operand but for a factor.
fn by_channel<'g>(x: Expr<'g>, g: Expr<'g>, w: Expr<'g>, axes: &[usize]) -> [Expr<'g>; 3] {
    let keep = |x: Expr<'g>| x.reduce_keep(Reduction::Sum, axes) * 0.01;
    let centred = x - keep(x);
    let scale = (keep(centred * centred) + 1e-3).rsqrt();
    let y = centred * scale * w;
    let dx = (g - keep(g) - y * keep(g * y)) * scale;
    [y, dx, (g * y).reduce(Reduction::Max, axes)]
}

#[test]
fn what_keeps_an_inner_axis_is_one_step_along_it() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        // Few and many places; blocks contiguous in their operand, and not; a last axis that the
        // reductions leave alone, along which lines are added up, so that there is no single step.
        for (sizes, axes) in [
            (&[3, 8, 5, 7][..], &[0, 2, 3][..]),
            (&[2, 9, 40, 41], &[0, 2, 3]),
            (&[1100, 4, 3], &[0, 2]),
            (&[5, 6, 1, 33], &[0, 2, 3]),
            (&[70, 4, 5], &[0]),
        ] {
            let graph = Graph::new();
            let (x, g) = (input(&graph, dtype, sizes), input(&graph, dtype, sizes));
            let mut own: SmallVec<[usize; 4]> = smallvec![1; sizes.len()];
            own[1] = sizes[1];
            let w = input(&graph, dtype, &own);
            graph.build(|| by_channel(x, g, w, axes).into_iter().collect()).unwrap();
            let plan = eager(&graph);
            let names = rows(&plan);
            if axes.contains(&(sizes.len() - 1)) {
                assert_eq!(names.len(), 1, "{sizes:?}\n{plan}");
                let others = plan.steps().iter().filter(|step| !super::is_movement(step));
                assert_eq!(others.count(), 1, "{sizes:?}\n{plan}");
            }
            let inputs = [noise(dtype, sizes, 1), noise(dtype, sizes, 2), noise(dtype, &own, 3)];
            let before = threads::num_threads();
            for count in [1, 3] {
                threads::set_num_threads(count);
                holds(&graph, &plan, &inputs, &[]);
            }
            threads::set_num_threads(before);
            let refs: SmallVec<[&Array; 4]> = inputs.iter().collect();
            memory::reset_peak();
            let live = memory::stats().live_bytes;
            let results = plan.run(&refs, &[]).unwrap();
            assert!(memory::stats().peak_bytes - live <= plan.peak_bytes(), "{plan}");
            drop(results);
        }
    }
}

#[test]
fn an_axis_that_would_become_the_last_is_not_cut() {
    // With one column the sums would go along rows, in another order.
    let graph = Graph::new();
    let x = input(&graph, DType::F32, &[90, 12]);
    graph
        .build(|| {
            let total = (x * x).reduce_keep(Reduction::Sum, &[0]);
            smallvec![x / total, (x / total).reduce(Reduction::Sum, &[0])]
        })
        .unwrap();
    let plan = eager(&graph);
    holds(&graph, &plan, &[noise(DType::F32, &[90, 12], 4)], &[]);
}
