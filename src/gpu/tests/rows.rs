//! Texts of row fusions: valid for every dtype, length, axis and composite.

use smallvec::smallvec;

use super::{DTYPES, validate};
use crate::dtype::DType;
use crate::gpu::step::kernels;
use crate::gpu::target::{Shaders, WEBGPU};
use crate::graph::{Graph, cases};
use crate::ops::attributes::Reduction;
use crate::ops::declare::Outputs;
use crate::ops::emit::{Arg, Expr};
use crate::ops::op::Type;
use crate::passes::expand;
use crate::schedule::{Operand, Plan, Step, Work};
use crate::shape::{Dim, Shape};
use crate::target::Abilities;

/// A device with subgroups.
static SUBGROUPS: Shaders = Shaders::new("webgpu", 8, 128 << 20, 256 << 20)
    .able(Abilities { has_subgroups: true, ..Abilities::LEAST });

/// The texts of the row fusions of a graph, validated.
fn texts(graph: &Graph) -> Vec<String> {
    let (texts, shuffled): (Vec<_>, Vec<_>) =
        [&WEBGPU, &SUBGROUPS].map(|target| texts_for(graph, target)).into();
    assert_eq!(texts.len(), shuffled.len());
    for (text, shuffled) in texts.iter().zip(&shuffled) {
        // Only neighbours are in one subgroup.
        let barriers = |text: &str| text.matches("workgroupBarrier").count();
        let shuffles = shuffled.matches("subgroupShuffle(").count();
        assert!(shuffles == 0 || barriers(shuffled) < barriers(text), "{shuffled}");
        assert_eq!(shuffles == 0, text == shuffled, "{shuffled}");
    }
    texts
}

fn texts_for(graph: &Graph, target: &'static Shaders) -> Vec<String> {
    let Ok(plan) = Plan::new(&expand(graph).unwrap(), target) else { return Vec::new() };
    plan.verify().unwrap();
    let mut texts = Vec::new();
    for (at, kernel) in kernels(&plan).unwrap() {
        if matches!(plan.steps()[at].work, Work::RowFusion(_)) {
            for dispatch in &kernel.dispatches {
                assert!(dispatch.bindings.len() <= 8, "{}", dispatch.text);
                validate(&dispatch.text);
                texts.push(dispatch.text.clone());
            }
        }
    }
    texts
}

#[test]
fn composites_have_valid_rows() {
    let mut count = 0;
    for call in cases::calls() {
        let graph = Graph::new();
        call.build(&graph);
        count += texts(&graph).len();
    }
    assert!(count > 20, "{count}");
}

/// A reduction of rows beside their elements.
fn over(x: Expr<'_>, kind: Reduction, axis: usize) -> Expr<'_> {
    x.reduce(kind, &[axis]).unsqueeze(axis)
}

/// Rows less their largest, with the sum and the product of what is left.
fn graph(dtype: DType, sizes: &[Dim], axis: usize) -> Graph {
    let graph = Graph::new();
    let x = Expr::new(&graph, Arg::Node(graph.input(Type::new(dtype, Shape::from_dims(sizes)))));
    let made = graph.build(|| {
        let z = if dtype == DType::Bool { x } else { x - over(x, Reduction::Max, axis) };
        let y = z.not_equal(over(z, Reduction::Min, axis)).cast(dtype);
        smallvec![y, over(y, Reduction::Sum, axis), over(z, Reduction::Prod, axis)]
    });
    made.unwrap();
    graph
}

#[test]
fn rows_of_every_dtype_length_and_axis_are_valid() {
    let n = Dim::new;
    let open = Dim::named("n");
    let shapes = [
        vec![n(300), n(129)],
        vec![n(300), n(128)],
        vec![n(40), n(2000)],
        vec![n(3), n(4), n(7)],
        vec![n(20), n(300), n(33)],
        vec![open, n(100)],
        vec![n(100), open],
    ];
    let (mut count, mut shuffling) = (0, 0);
    for dtype in DTYPES {
        for sizes in &shapes {
            for axis in 0..sizes.len() {
                let graph = graph(dtype, sizes, axis);
                count += texts(&graph).len();
                let shuffled = texts_for(&graph, &SUBGROUPS);
                shuffling +=
                    shuffled.iter().filter(|text| text.contains("subgroupShuffle(")).count();
            }
        }
    }
    assert!(count > 100 && shuffling > 50, "{count}, {shuffling}");
}

#[test]
fn lengths_of_one_structure_share_a_text() {
    let text = |rows, columns| texts(&graph(DType::F32, &[Dim::new(rows), Dim::new(columns)], 1));
    assert_eq!(text(4096, 5000), text(5000, 5004));
    assert!(!text(4096, 5000).is_empty());
    assert_eq!(text(4096, 700), text(9000, 1000));
    assert!(!text(4096, 700).is_empty());
}

#[test]
fn rows_that_registers_hold_are_read_once() {
    let reads = |rows, columns| {
        let texts = texts(&graph(DType::F32, &[rows, columns], 1));
        let [text] = &texts[..] else { panic!("{} texts", texts.len()) };
        text.matches("m0[").count()
    };
    let n = Dim::new;
    for columns in [16, 17, 100, 129, 1000, 1023, 4096] {
        let lanes = if columns % 4 == 0 { 1 } else { 4 };
        assert_eq!(reads(n(300), n(columns)), lanes, "{columns}");
        assert_eq!(reads(Dim::named("n"), n(columns)), lanes, "{columns}");
    }
    // Each of the four passes reads what is too long, or of a length that is not known.
    assert_eq!(reads(n(300), n(4100)), 4);
    assert_eq!(reads(n(300), Dim::named("n")), 4 * 4);
}

/// Rows of weights that sum to 1, of zeros where a row is all minus infinity.
fn weights(x: Expr<'_>) -> Expr<'_> {
    let top = over(x, Reduction::Max, 1);
    let least = x.scalar(f64::NEG_INFINITY);
    let weights = (x - top.equal(least).select(x.scalar(0.0), top)).exp();
    weights / over(weights, Reduction::Sum, 1)
}

/// The sums of rows of one operand less the largest of the other's rows.
fn reach<'e>(a: Expr<'e>, b: Expr<'e>) -> Expr<'e> {
    over(a, Reduction::Sum, 1) - over(b, Reduction::Max, 1)
}

/// The row fusions of a graph of two operands by how many arrays each has.
fn fusions(rows: usize, results: impl for<'e> Fn([Expr<'e>; 2]) -> Outputs<'e>) -> Vec<usize> {
    let graph = Graph::new();
    let ty = || Type::new(DType::F32, Shape::of(&[rows, 512]));
    let x = [(); 2].map(|()| Expr::new(&graph, Arg::Node(graph.input(ty()))));
    graph.build(|| results(x)).unwrap();
    let plan = Plan::new(&graph, &WEBGPU).unwrap();
    plan.verify().unwrap();
    let is_fusion = |work: &Work| matches!(work, Work::RowFusion(_));
    assert!(plan.steps().iter().all(|step| is_fusion(&step.work)), "{plan}");
    let arrays = |step: &Step| step.args.iter().filter(|x| matches!(x, Operand::Array(_))).count();
    plan.steps().iter().map(arrays).collect()
}

/// Rows that have nothing in common but their sizes would need all operands at a time.
#[test]
fn rows_are_joined_where_they_are_connected() {
    assert_eq!(fusions(256, |[a, b]| smallvec![weights(a), weights(b)]), [1, 1]);
    assert_eq!(fusions(256, |[a, b]| smallvec![reach(a, b)]), [2]);
    assert_eq!(fusions(256, |[a, b]| smallvec![weights(weights(a) * b)]), [2]);
    // Small ones take less time together, and little memory.
    assert_eq!(fusions(16, |[a, b]| smallvec![weights(a), weights(b)]), [2]);
}
