//! Orders are compared with the best of all orders, packings with the least that any packing needs,
//! and rematerialisation with the saving that the choice claims.

use super::super::choose::Model;
use super::super::liveness::Liveness;
use super::super::order::Graph as Steps;
use super::super::pack::{Span, pack};
use super::*;
use crate::memory::block_bytes;
use crate::ops::attributes::Cumulation;
use crate::passes::cost;
use crate::passes::remat::recomputed;

const N: usize = 64;
/// Bytes of a large value.
const LARGE: usize = 4 * N * N;

fn large(graph: &Graph) -> Expr<'_> {
    input(graph, DType::F32, &[N, N])
}

fn running<'g>(x: Expr<'g>) -> Expr<'g> {
    x.cumulate(Cumulation::Max, 1, false)
}

/// The plan of a list whose nodes are steps of their own.
fn unfused(graph: &Graph) -> Plan {
    Plan::of(&graph.list(), Options { unfused: true, ..Options::new(&Cpu) }).unwrap()
}

/// The memory of steps, worked out from what they read and write alone.
struct Loads {
    before: Vec<u32>,
    /// By storage: bytes, the step that makes it, those that read it
    storages: Vec<(usize, usize, u32)>,
    donors: Vec<Vec<usize>>,
}

impl Loads {
    fn new(plan: &Plan) -> Loads {
        let (liveness, steps) = (Liveness::new(plan), Steps::new(&plan.steps, plan.slots.len()));
        let bits = |steps: &[u32]| steps.iter().fold(0u32, |bits, &step| bits | 1 << step);
        let count = plan.steps.len() as u32;
        let kept = |escapes: bool| if escapes { 0 } else { usize::MAX };
        let storage = |(s, readers): (&super::super::liveness::Storage, &SmallVec<[u32; 4]>)| {
            (s.bytes & kept(s.escapes), s.def as usize, bits(readers))
        };
        Loads {
            before: (0..count).map(|step| bits(steps.before(step))).collect(),
            storages: liveness.storages.iter().zip(&liveness.readers).map(storage).collect(),
            donors: liveness
                .donors
                .iter()
                .map(|d| d.iter().map(|&s| s as usize).collect())
                .collect(),
        }
    }

    /// The bytes that are alive while a step runs after the steps of a set.
    fn during(&self, done: u32, step: usize) -> usize {
        let (mut bytes, mut made, mut taken) = (0, 0, 0);
        for (s, &(size, def, readers)) in self.storages.iter().enumerate() {
            let is_there = done & (1 << def) != 0 && readers & !done != 0;
            let dies = is_there && readers & !done == 1 << step;
            made += if def == step { size } else { 0 };
            bytes += if is_there { size } else { 0 };
            taken += if dies && self.donors[step].contains(&s) { size } else { 0 };
        }
        bytes + made - taken.min(made)
    }

    /// The most bytes of the steps in order.
    fn in_order(&self) -> usize {
        let during = |step: usize| self.during((1u32 << step) - 1, step);
        (0..self.before.len()).map(during).max().unwrap_or(0)
    }

    /// The least that any order needs at its fullest step, by the sets of steps that may be done.
    fn least(&self) -> usize {
        let count = self.before.len();
        let mut least = vec![usize::MAX; 1 << count];
        least[0] = 0;
        for done in 0..(1u32 << count) {
            let known = least[done as usize];
            if known == usize::MAX {
                continue;
            }
            for step in 0..count {
                if done & (1 << step) == 0 && self.before[step] & !done == 0 {
                    let next = &mut least[(done | 1 << step) as usize];
                    *next = (*next).min(known.max(self.during(done, step)));
                }
            }
        }
        least[(1 << count) - 1]
    }
}

/// Branches that need much memory and leave little, written so that all wait for each other.
#[test]
fn branches_run_one_after_another() {
    let graph = Graph::new();
    let x = large(&graph);
    let branches: Vec<Expr<'_>> = (0..4).map(|_| running(x)).collect();
    let sums: Vec<Expr<'_>> =
        branches.iter().map(|&b| running(b).reduce(Reduction::Sum, &[0])).collect();
    graph.build(|| smallvec![sums[0] + sums[1] + sums[2] + sums[3]]).unwrap();
    let loads = Loads::new(&unfused(&graph));
    assert_eq!(loads.in_order(), loads.least());
    // Two large values at a time, and the sums.
    assert!(loads.least() <= 2 * LARGE + 5 * 4 * N, "{}", loads.least());
}

#[test]
fn orders_need_little_more_than_the_best_of_all() {
    let (mut best, mut count, mut sum, mut worst) = (0, 0, 0.0, 1.0f64);
    for seed in 0..120 {
        let graph = Graph::new();
        let mut choices = Choices(seed * 7919 + 1);
        let mut values = vec![large(&graph)];
        while values.len() < 12 {
            let mut any = || values[choices.below(values.len())];
            let (x, y) = (any(), any());
            values.push(match choices.below(5) {
                0 => x.reduce_keep(Reduction::Max, &[1]),
                1 => running(x),
                2 => x + y,
                3 => x.exp(),
                _ => x.broadcast(Shape::of(&[N, N])) * y,
            });
        }
        let last = values.len() - 1;
        let ends = [last, last - 1, last - 2].map(|i| values[i].reduce(Reduction::Sum, &[0, 1]));
        graph.build(|| smallvec![ends[0] + ends[1] + ends[2]]).unwrap();
        let plan = unfused(&graph);
        if plan.steps().len() > 17 {
            continue;
        }
        let loads = Loads::new(&plan);
        let (got, least) = (loads.in_order(), loads.least());
        assert!(got >= least, "{got} below {least}\n{plan}");
        let ratio = got as f64 / least as f64;
        (sum, worst) = (sum + ratio, worst.max(ratio));
        best += usize::from(got == least);
        count += 1;
    }
    let mean = sum / count as f64;
    assert!(count > 60 && 3 * best >= 2 * count, "{best} of {count}");
    assert!(mean < 1.05 && worst < 2.0, "{mean} {worst}");
}

fn spans(seed: u64, count: usize, steps: u32) -> Vec<Span> {
    let mut choices = Choices(seed * 7919 + 3);
    let span = |_| {
        let first = choices.below(steps as usize) as u32;
        let life = 1 << choices.below(6);
        let last = (first + choices.below(life) as u32).min(steps - 1);
        let most = 1 << choices.below(10);
        let bytes = 64 * (1 + choices.below(most));
        Span { bytes, first, last }
    };
    (0..count).map(span).collect()
}

/// The most bytes that are alive at one time, a lower bound of any packing.
fn needed(spans: &[Span]) -> usize {
    let at = |step: u32| {
        let there = spans.iter().filter(|span| span.first <= step && step <= span.last);
        there.map(|span| span.bytes).sum()
    };
    spans.iter().map(|span| at(span.first)).max().unwrap_or(0)
}

/// Packs spans, asserts that they do not overlap in time and memory, and returns the bytes.
fn packed(spans: &[Span]) -> usize {
    let (packing, _) = pack(spans, needed(spans), None);
    for (i, a) in spans.iter().enumerate() {
        assert!(packing.offsets[i] + a.bytes <= packing.bytes);
        for (k, b) in spans[..i].iter().enumerate() {
            let (x, y) = (packing.offsets[i], packing.offsets[k]);
            let in_time = a.first <= b.last && b.first <= a.last;
            let in_space = x < y + b.bytes && y < x + a.bytes;
            assert!(!(in_time && in_space), "{i} and {k}");
        }
    }
    assert!(packing.bytes >= needed(spans));
    packing.bytes
}

#[test]
fn packings_overlap_nowhere_and_waste_little() {
    let (mut total, mut least, mut worst) = (0, 0, 1.0f64);
    for seed in 0..60 {
        for (count, steps) in [(8, 6), (40, 30), (200, 150), (700, 300)] {
            let spans = spans(seed, count, steps);
            let (bytes, needed) = (packed(&spans), needed(&spans));
            (total, least) = (total + bytes, least + needed);
            worst = worst.max(bytes as f64 / needed as f64);
        }
    }
    assert!(total as f64 <= 1.03 * least as f64 && worst < 1.25, "{total} {least} {worst}");
}

#[test]
fn packings_of_known_shapes_are_the_smallest() {
    // Of equal size, by the order of time.
    for seed in 0..40 {
        let mut equal = spans(seed, 100, 60);
        equal.iter_mut().for_each(|span| span.bytes = 128);
        assert_eq!(packed(&equal), needed(&equal));
    }
    // Each within the one before.
    let nested: Vec<Span> =
        (0..20).map(|i| Span { bytes: 64 * (i as usize + 1), first: i, last: 40 - i }).collect();
    assert_eq!(packed(&nested), needed(&nested));
    // Stairs: each meets the one before and the one after.
    let stairs: Vec<Span> = (0..20)
        .map(|i| Span { bytes: if i % 2 == 0 { 640 } else { 64 }, first: i, last: i + 1 })
        .collect();
    assert_eq!(packed(&stairs), needed(&stairs));
    // A span without bytes needs no place.
    assert_eq!(packed(&[Span { bytes: 0, first: 0, last: 3 }]), 0);
}

/// `h ← f(h)`, `n` times, and then `g ← f(g + h)` back along them: what backward does to a chain.
fn chain(n: usize) -> Graph {
    let graph = Graph::new();
    let mut values = vec![running(large(&graph))];
    for i in 1..n {
        values.push(running(values[i - 1]));
    }
    graph
        .build(|| {
            let mut g = values[n - 1];
            for &h in values.iter().rev() {
                g = running(g + h);
            }
            smallvec![g.reduce(Reduction::Sum, &[0])]
        })
        .unwrap();
    graph
}

/// With √n values alive and as many computed again from each, a chain needs 2√n values and one more
/// forward pass.
#[test]
fn a_chain_fits_in_twice_the_root_of_its_length() {
    for n in [9usize, 16, 25, 49] {
        let graph = chain(n);
        let list = graph.list().clone();
        let free = Plan::new(&graph, &Cpu).unwrap().peak_bytes();
        assert!(free >= n * LARGE);
        let root = n.isqrt();
        let budget = block_bytes((2 * root + 2) * LARGE) + LARGE;
        let within = Plan::within(&list, Options::new(&Cpu), &|dim| dim, budget).unwrap();
        let (again, _, plan) = within.parts();
        assert!(plan.peak_bytes() <= budget, "{n}: {} of {budget}\n{plan}", plan.peak_bytes());
        let recomputed = plan.recomputed().unwrap();
        assert_eq!((recomputed.before, recomputed.after), (free, plan.peak_bytes()));
        let flops = cost::of_list(&again).flops - cost::of_list(&list).flops;
        assert_eq!(recomputed.flops, flops);
        let extra = plan.steps().iter().filter(|step| step.name() == "cumulative_max").count();
        assert!(extra <= 3 * n, "{n}: {extra} steps for {}", 2 * n);
    }
}

/// A choice says how many bytes are alive once its nodes are computed again; a plan of the new list
/// agrees.
#[test]
fn what_is_computed_again_saves_what_the_choice_claims() {
    for n in [6usize, 12, 24] {
        let list = chain(n).list().clone();
        let plan = Plan::of(&list, Options::new(&Cpu)).unwrap();
        let mut model = Model::new(&list, &plan, &|dim| dim);
        let most = model.most();
        for part in [1, 2, n / 2] {
            let mut model = Model::new(&list, &plan, &|dim| dim);
            let target = most - (part * LARGE) as isize;
            let again = model.choose(target, true, &Default::default());
            assert!(!again.is_empty() && model.most() <= target, "{n} {part}");
            let next = recomputed(&list, &model.when, &again).unwrap();
            Graph::from_list(next.clone()).verify().unwrap();
            let made = Plan::of(&next, Options::new(&Cpu)).unwrap();
            let real = Model::new(&next, &made, &|dim| dim).most();
            assert!(real <= model.most(), "{n} {part}: {real} of {}\n{made}", model.most());
        }
        // Nothing is chosen where everything fits already.
        assert!(model.choose(most, true, &Default::default()).is_empty());
    }
}
