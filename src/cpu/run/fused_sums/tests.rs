use smallvec::smallvec;

use super::FusedSums;
use crate::array::Array;
use crate::cpu::testing::{bytes, layouts, noise};
use crate::dtype::DType;
use crate::graph::Graph;
use crate::graph::testing::one_by_one;
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Arg, Expr};
use crate::ops::op::Type;
use crate::schedule::Work;
use crate::schedule::block_fusion::tests::eager;
use crate::shape::Shape;
use crate::threads;

fn sum<'g>(axes: &[usize], x: Expr<'g>) -> Expr<'g> {
    x.reduce_keep(Reduction::Sum, axes)
}

/// A batch norm by hand, the gradient of its loss with a weight for each element, and sums of what it
/// makes.
fn check(dtype: DType, sizes: &[usize]) {
    let graph = Graph::new();
    let axes: Vec<usize> = (0..sizes.len()).filter(|&axis| axis != 1).collect();
    let own: Vec<usize> =
        sizes.iter().enumerate().map(|(i, &n)| if i == 1 { n } else { 1 }).collect();
    let input = |sizes: &[usize]| {
        let id = graph.input(Type::new(dtype, Shape::of(sizes)));
        Expr::new(&graph, Arg::Node(id))
    };
    let (x, g, w) = (input(sizes), input(sizes), input(&own));
    graph
        .build(|| {
            let centred = x - sum(&axes, x) / 100.0;
            let scale = (sum(&axes, centred * centred) / 100.0 + 1e-5).rsqrt();
            let y = centred * scale;
            let slope = sum(&axes, g * w * centred);
            let dx = g * w * scale - centred * slope * 0.01 + sum(&axes, g) * 0.01;
            smallvec![dx, sum(&axes, g * y), sum(&axes, g)]
        })
        .unwrap();
    let plan = eager(&graph);
    let has_walks = plan.steps().iter().any(|step| {
        let Work::BlockFusion(fusion) = &step.work else { return false };
        FusedSums::of(&fusion.full).is_some()
    });
    assert_eq!(has_walks, dtype == DType::F32, "{dtype} {sizes:?}");
    let inputs = [noise(dtype, sizes, 1), noise(dtype, sizes, 2), noise(dtype, &own, 3)];
    let before = threads::num_threads();
    for other in layouts(&inputs[0]) {
        let refs: Vec<&Array> = vec![&other, &inputs[1], &inputs[2]];
        let want = one_by_one(&graph, &refs, &[]);
        for count in [1, 2] {
            threads::set_num_threads(count);
            let got = plan.run(&refs, &[]).unwrap();
            for (got, want) in got.iter().zip(&want) {
                assert!(bytes(got) == bytes(want), "{dtype} {sizes:?} {:?}", other.layout);
            }
        }
    }
    threads::set_num_threads(before);
}

#[test]
fn blocks_by_channel_have_the_bits_of_their_steps() {
    for sizes in [&[4, 16, 64, 64][..], &[8, 20, 40, 41], &[300, 12, 9, 7], &[9, 8, 2000]] {
        check(DType::F32, sizes);
        check(DType::F64, sizes);
    }
}
