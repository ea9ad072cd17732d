//! Values whose channels are innermost, against the interpreter of lists.

use smallvec::smallvec;

use super::input;
use crate::array::Array;
use crate::cpu::target::Cpu;
use crate::cpu::testing::{bytes, noise};
use crate::dtype::DType;
use crate::graph::Graph;
use crate::graph::testing::one_by_one;
use crate::ops::attributes::{ConvRole, ConvSpec, Reduction};
use crate::ops::emit::Expr;
use crate::schedule::Plan;
use crate::threads;

/// A graph under construction, with the sizes of its inputs.
struct Net<'g> {
    graph: &'g Graph,
    inputs: Vec<Vec<usize>>,
}

impl<'g> Net<'g> {
    fn input(&mut self, sizes: &[usize]) -> Expr<'g> {
        self.inputs.push(sizes.to_vec());
        input(self.graph, DType::F32, sizes)
    }

    /// The weights of a convolution: channels of its result and of a group, taps along an axis.
    fn weights(&mut self, sizes: [usize; 3]) -> (Expr<'g>, [usize; 3]) {
        let [outputs, channels, taps] = sizes;
        (self.input(&[outputs, channels, taps, taps]), sizes)
    }
}

/// A convolution along two axes of `side` positions, with as much padding as keeps them.
fn conv<'g>(
    x: Expr<'g>,
    (w, [_, _, taps]): (Expr<'g>, [usize; 3]),
    (side, stride, groups): (usize, usize, usize),
) -> Expr<'g> {
    let spec = ConvSpec {
        stride: smallvec![stride; 2],
        pad_low: smallvec![taps / 2; 2],
        pad_high: smallvec![taps / 2; 2],
        dilation: smallvec![1; 2],
        groups,
        input: smallvec![side.into(); 2],
        kernel: smallvec![taps.into(); 2],
    };
    x.conv(ConvRole::Output, w, Box::new(spec))
}

/// The plan of a graph, which has the bits of its nodes one by one with one thread and with two.
fn holds(graph: &Graph, inputs: &[Vec<usize>]) -> Plan {
    let plan = Plan::new(graph, &Cpu).unwrap();
    plan.verify().unwrap();
    let inputs: Vec<Array> =
        inputs.iter().zip(1..).map(|(sizes, i)| noise(DType::F32, sizes, i)).collect();
    let refs: Vec<&Array> = inputs.iter().collect();
    let want = one_by_one(graph, &refs, &[]);
    let before = threads::num_threads();
    for threads in [1, 2] {
        threads::set_num_threads(threads);
        let got = plan.run(&refs, &[]).unwrap();
        for (got, want) in got.iter().zip(&want) {
            assert!(bytes(got) == bytes(want), "{plan}");
        }
    }
    threads::set_num_threads(before);
    plan
}

fn relu(x: Expr<'_>) -> Expr<'_> {
    x.maximum(x.scalar(0))
}

/// How many values lie with their channels innermost.
fn last(plan: &Plan) -> usize {
    (0..plan.slots().len() as u32).filter(|&slot| plan.is_channels_last(slot)).count()
}

/// A net of a convolution of images, two inverted residuals and a mean.
fn inverted(batch: usize, second: bool) -> Plan {
    let graph = Graph::new();
    let mut net = Net { graph: &graph, inputs: Vec::new() };
    let x = net.input(&[batch, 3, 20, 20]);
    let weights = [[24, 3, 3], [24, 24, 1], [40, 24, 1], [40, 1, 3], [24, 40, 1], [72, 24, 1]]
        .map(|sizes| net.weights(sizes));
    let bias = net.input(&[40, 1, 1]);
    let [stem, first, expand, deep, project, end] = weights;
    graph
        .build(|| {
            let x = relu(conv(x, stem, (20, 2, 1)));
            let x = conv(x, first, (10, 1, 1));
            let y = relu(conv(x, expand, (10, 1, 1)) + bias);
            let y = relu(conv(y, deep, (10, 1, 40)) + bias);
            let x = x + conv(y, project, (10, 1, 1));
            let y = relu(conv(x, end, (10, 1, 1))).reduce(Reduction::Sum, &[2, 3]);
            if second { smallvec![y, x] } else { smallvec![y] }
        })
        .unwrap();
    let inputs = std::mem::take(&mut net.inputs);
    holds(&graph, &inputs)
}

#[test]
fn channels_are_innermost_between_convolutions_that_gain() {
    for batch in [1, 3] {
        // Each of the six values but the sum.
        let plan = inverted(batch, false);
        assert_eq!(last(&plan), 6, "{plan}");
        // A result of the plan is in C order, and so is what is added to it.
        let plan = inverted(batch, true);
        assert!((1..=4).contains(&last(&plan)), "{plan}");
        for source in plan.outputs() {
            if let crate::schedule::Source::Slot(slot) = *source {
                assert!(!plan.is_channels_last(slot), "{plan}");
            }
        }
    }
}

#[test]
fn groups_of_their_own_go_along() {
    // What is read twice is no epilogue.
    let graph = Graph::new();
    let mut net = Net { graph: &graph, inputs: Vec::new() };
    let x = net.input(&[2, 16, 9, 9]);
    let [first, deep, end] = [[32, 16, 1], [32, 1, 3], [16, 32, 1]].map(|sizes| net.weights(sizes));
    let scale = net.input(&[2, 32, 1, 1]);
    let row = net.input(&[9]);
    graph
        .build(|| {
            let x = conv(x, first, (9, 1, 1));
            let y = x.exp() * scale + row;
            let z = conv(y, deep, (9, 1, 32)) + y;
            smallvec![conv(z - x, end, (9, 1, 1)) + row]
        })
        .unwrap();
    let inputs = std::mem::take(&mut net.inputs);
    let plan = holds(&graph, &inputs);
    assert!(last(&plan) >= 3, "{plan}");
}

#[test]
fn where_nothing_gains_all_is_in_c_order() {
    let graph = Graph::new();
    let mut net = Net { graph: &graph, inputs: Vec::new() };
    let x = net.input(&[1, 16, 9, 9]);
    let [first, second] = [[32, 16, 3], [16, 32, 3]].map(|sizes| net.weights(sizes));
    graph
        .build(|| {
            let y = conv(x, first, (9, 1, 1));
            let y = y.maximum(y.scalar(0));
            smallvec![conv(y, second, (9, 1, 1)).reduce(Reduction::Sum, &[2, 3])]
        })
        .unwrap();
    let inputs = std::mem::take(&mut net.inputs);
    assert_eq!(last(&holds(&graph, &inputs)), 0);
}
