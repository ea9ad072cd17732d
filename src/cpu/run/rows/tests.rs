use smallvec::{SmallVec, smallvec};

use super::MADE;
use crate::array::Array;
use crate::cpu::testing::{bytes, layouts, noise};
use crate::dtype::{DType, Scalar};
use crate::graph::Graph;
use crate::graph::testing::one_by_one;
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Arg, Expr};
use crate::ops::op::Type;
use crate::schedule::block_fusion::tests::eager;
use crate::shape::Shape;
use crate::threads;

fn input<'g>(graph: &'g Graph, dtype: DType, sizes: &[usize]) -> Expr<'g> {
    Expr::new(graph, Arg::Node(graph.input(Type::new(dtype, Shape::of(sizes)))))
}

/// Operands of a formula over rows: two arrays, two rows that all rows read, a number for each row.
struct Given<'g> {
    x: Expr<'g>,
    g: Expr<'g>,
    w: Expr<'g>,
    b: Expr<'g>,
    s: Expr<'g>,
}

type Formula = for<'g> fn(&Given<'g>) -> SmallVec<[Expr<'g>; 4]>;

fn last(x: Expr<'_>) -> [usize; 1] {
    [x.rank() - 1]
}

fn sum(x: Expr<'_>) -> Expr<'_> {
    x.reduce_keep(Reduction::Sum, &last(x))
}

fn shifted(x: Expr<'_>) -> Expr<'_> {
    x - x.reduce_keep(Reduction::Max, &last(x))
}

/// Centred and scaled rows.
fn normal(x: Expr<'_>) -> [Expr<'_>; 2] {
    let centred = x - sum(x) / 7.0;
    let scale = (sum(centred * centred) / 7.0 + 1e-5).rsqrt();
    [centred * scale, scale]
}

const FORMULAS: [(&str, Formula); 8] = [
    ("softmax", |it| {
        let e = shifted(it.x).exp();
        smallvec![e / sum(e)]
    }),
    ("log_softmax", |it| {
        let z = shifted(it.x);
        smallvec![z - sum(z.exp()).log()]
    }),
    ("softmax of a sum, and its gradient", |it| {
        let e = shifted(it.x + it.g * 0.5).exp();
        let y = e / sum(e);
        let gy = it.g * y;
        smallvec![gy - y * sum(gy), y]
    }),
    ("layer norm", |it| {
        let [y, scale] = normal(it.x);
        smallvec![y * it.w + it.b, scale]
    }),
    ("layer norm between neighbours", |it| {
        let x = it.x.cast(DType::F32) + it.g;
        let [y, _] = normal(x);
        smallvec![(it.b + it.w * y).tanh() * it.s, x]
    }),
    ("gradient of layer norm", |it| {
        let [y, scale] = normal(it.x);
        let g = it.g * it.w;
        let dx = scale * (g - sum(g) / 7.0 - y * (sum(g * y) / 7.0));
        let all: SmallVec<[usize; 4]> = (0..it.x.rank() - 1).collect();
        let [dw, db] = [it.g * y, it.g].map(|x| x.reduce(Reduction::Sum, &all));
        smallvec![dx, dw, db]
    }),
    ("rms norm", |it| smallvec![it.x * (sum(it.x * it.x) * 0.1 + 1e-5).rsqrt() * it.w]),
    ("largest and least", |it| {
        let least = it.x.reduce_keep(Reduction::Min, &last(it.x));
        let product = (it.x * it.s).reduce(Reduction::Prod, &last(it.x));
        let is_large = it.x.greater(it.s);
        smallvec![is_large.select(it.x - least, it.g / it.s), product, least * 2.0]
    }),
];

fn holds(name: &str, formula: Formula, dtype: DType, sizes: &[usize], swapped: bool) {
    let n = sizes[sizes.len() - 1];
    let each: Vec<usize> = sizes[..sizes.len() - 1].iter().copied().chain([1]).collect();
    let all = [sizes, sizes, &[n], &[n], &each];
    let graph = Graph::new();
    let it = all.map(|sizes| input(&graph, dtype, sizes));
    let [x, g, w, b, s] = it;
    graph.build(|| formula(&Given { x, g, w, b, s }).into_iter().collect()).unwrap();
    let plan = eager(&graph);
    let inputs: Vec<Array> =
        all.iter().zip(1..).map(|(sizes, seed)| noise(dtype, sizes, seed)).collect();
    for other in layouts(&inputs[usize::from(swapped)]) {
        let mut refs: Vec<&Array> = inputs.iter().collect();
        refs[usize::from(swapped)] = &other;
        let want = one_by_one(&graph, &refs, &[]);
        let made = MADE.get();
        let got = plan.run(&refs, &[]).unwrap();
        assert!(MADE.get() > made, "{name} {dtype} {sizes:?} has no row program\n{plan}");
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(got.shape(), want.shape());
            assert!(bytes(got) == bytes(want), "{name} {dtype} {sizes:?} {:?}", other.layout);
        }
    }
}

#[test]
fn rows_have_the_bits_of_their_steps() {
    for (name, formula) in FORMULAS {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for sizes in [
                &[37, 2][..],
                &[53, 19],
                &[9, 33],
                &[40, 40],
                &[5, 64],
                &[3, 7, 40],
                &[6, 77],
                &[4, 5, 300],
            ] {
                holds(name, formula, dtype, sizes, false);
            }
        }
        holds(name, formula, DType::F32, &[150, 16], true);
        holds(name, formula, DType::F32, &[7, 1025], true);
        holds(name, formula, DType::F32, &[3, 5000], false);
        holds(name, formula, DType::F64, &[6, 2, 1, 1500], true);
    }
}

#[test]
fn results_may_lie_over_operands() {
    let (dtype, sizes) = (DType::F32, [40, 70]);
    let graph = Graph::new();
    let (x, g) = (input(&graph, dtype, &sizes), input(&graph, dtype, &sizes));
    graph
        .build(|| {
            // Both are dead afterwards, so blocks of what follows may be written over them.
            let (a, b) = (x.exp(), g.exp());
            let total = (a + b).reduce_keep(Reduction::Sum, &[0]);
            let y = shifted(a * total);
            smallvec![y / sum(y.exp()), (b - y).tanh() * sum(b)]
        })
        .unwrap();
    let plan = eager(&graph);
    let inputs = [noise(dtype, &sizes, 1), noise(dtype, &sizes, 2)];
    let refs: Vec<&Array> = inputs.iter().collect();
    let before = threads::num_threads();
    for count in [1, 3] {
        threads::set_num_threads(count);
        let (got, want) = (plan.run(&refs, &[]).unwrap(), one_by_one(&graph, &refs, &[]));
        got.iter().zip(&want).for_each(|(got, want)| assert!(bytes(got) == bytes(want), "{plan}"));
    }
    threads::set_num_threads(before);
}

#[test]
fn numbers_are_told_at_run_time() {
    let graph = Graph::new();
    let x = input(&graph, DType::F32, &[24, 100]);
    let eps = graph.number();
    graph.build(|| smallvec![x * (sum(x * x) + Expr::new(&graph, eps)).rsqrt()]).unwrap();
    let plan = eager(&graph);
    let x = noise(DType::F32, &[24, 100], 1);
    for eps in [1e-5, 0.5] {
        let numbers = [Scalar::Float(eps)];
        let (got, want) = (plan.run(&[&x], &numbers).unwrap(), one_by_one(&graph, &[&x], &numbers));
        assert_eq!(bytes(&got[0]), bytes(&want[0]));
    }
}
