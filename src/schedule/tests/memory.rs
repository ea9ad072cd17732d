//! Placement of results: predicted peaks against the counters, donation, budgets.

use super::*;
use crate::cpu::target::Cpu;
use crate::executor::Input;
use crate::graph::cases;
use crate::graph::testing::values_of;
use crate::memory::tests::alone;
use crate::memory::{ALIGN, reset_peak, stats};
use crate::ops::attributes::Contraction;
use crate::passes::expand;
use crate::shape::Dim;

/// Runs a plan and compares the most bytes that it held with the predicted peak.
fn peak(name: &str, graph: &Graph, inputs: &[&Array]) {
    let plan = Plan::new(graph, &Cpu).unwrap();
    let numbers = numbers_of(graph);
    // Threads and pools are there from the first run on.
    if plan.run(inputs, &numbers).is_err() {
        return;
    }
    let before = stats().live_bytes;
    reset_peak();
    let results = plan.run(inputs, &numbers).unwrap();
    let used = stats().peak_bytes - before;
    drop(results);
    let predicted = plan.peak_bytes();
    assert!(used <= predicted, "{name}: {used} of {predicted}\n{plan}");
    let is_sort = |step: &Step| matches!(&step.work, Work::Op(op) if matches!(op, Op::Sort { .. }));
    if !plan.steps().iter().any(is_sort) {
        assert_eq!(used, predicted, "{name}\n{plan}\n{}", graph.print(|_| None));
    }
}

#[test]
fn every_op_takes_the_memory_that_was_predicted() {
    alone(|| {
        for (op, operands) in cases::ops() {
            let graph = Graph::new();
            let args = cases::args(&operands, &graph);
            let name = format!("{op:?}");
            graph.output(graph.emit(op, &args));
            let data: Vec<Array> = operands.iter().filter_map(|x| x.data(3)).collect();
            peak(&name, &graph, &data.iter().collect::<Vec<_>>());
        }
    });
}

#[test]
fn every_composite_takes_the_memory_that_was_predicted() {
    alone(|| {
        for call in cases::calls() {
            let graph = Graph::new();
            call.build(&graph);
            let graph = expand(&graph).unwrap();
            let data: Vec<Array> = call.operands.iter().filter_map(|x| x.data(3)).collect();
            peak(call.composite.name, &graph, &data.iter().collect::<Vec<_>>());
        }
    });
}

#[test]
fn programs_take_the_memory_that_was_predicted() {
    alone(|| {
        let dtypes = [DType::F32, DType::F16, DType::I8, DType::Bool];
        for dtype in dtypes {
            for seed in 0..30 {
                let graph = program(dtype, seed, 4 + seed as usize % 40);
                let inputs = values_of(&graph, seed);
                peak("program", &graph, &inputs.iter().collect::<Vec<_>>());
            }
        }
        for graph in super::control_flow::wild_ones() {
            let inputs = values_of(&graph, 5);
            peak("flows", &graph, &inputs.iter().collect::<Vec<_>>());
        }
    });
}

fn matmul<'g>(a: Expr<'g>, b: Expr<'g>) -> Expr<'g> {
    let spec = Contraction {
        a_batch: smallvec![],
        b_batch: smallvec![],
        a_contract: smallvec![1],
        b_contract: smallvec![0],
    };
    a.contract(b, spec)
}

/// `x ← tanh(x @ x) + x`, some times over.
fn deep(dtype: DType, n: usize, times: usize) -> Graph {
    let graph = Graph::new();
    let mut x = input(&graph, dtype, &[n, n]);
    for _ in 0..times {
        x = matmul(x, x).exp() + x;
    }
    graph.build(|| smallvec![x.reduce(Reduction::Sum, &[0])]).unwrap();
    graph
}

#[test]
fn products_take_the_memory_that_was_predicted() {
    alone(|| {
        for threads in [1, 2, 4] {
            threads::set_num_threads(threads);
            for dtype in [DType::F32, DType::F64, DType::F16] {
                for n in [1, 7, 33, 130, 300] {
                    let graph = deep(dtype, n, 3);
                    let x = random(dtype, &[n, n], 1);
                    peak("deep", &graph, &[&x]);
                }
            }
            for (m, k, n) in [(1, 3000, 70), (70, 9000, 3), (3, 200_000, 2), (700, 40, 1)] {
                let graph = Graph::new();
                let a = input(&graph, DType::F32, &[m, k]);
                let b = input(&graph, DType::F32, &[k, n]);
                graph.build(|| smallvec![matmul(a, b)]).unwrap();
                let inputs = [random(DType::F32, &[m, k], 1), random(DType::F32, &[k, n], 2)];
                peak("product", &graph, &inputs.each_ref());
            }
        }
    });
}

#[test]
fn dead_values_share_memory() {
    let plan = Plan::new(&deep(DType::F32, 200, 6), &Cpu).unwrap();
    let one = 4 * 200 * 200;
    assert!(plan.memory().arena_bytes() <= 3 * one, "{plan}");
    assert!(plan.naive_bytes() >= 12 * one);
    assert!(plan.peak_bytes() < 8 * one);
}

#[test]
fn what_does_not_fit_a_budget_is_refused_with_its_largest_values() {
    let graph = deep(DType::F32, 200, 2);
    let plan = Plan::new(&graph, &Cpu).unwrap();
    assert!(plan.check_budget(plan.peak_bytes(), &|_| None).is_ok());
    let spell = |site: Site| Some(format!("model.py:{}", site.offset));
    let refusal = plan.check_budget(1000, &spell).err().unwrap();
    assert_eq!(refusal.code(), "over_budget");
    let text = refusal.to_string();
    assert!(text.contains("are granted\n  160000 bytes: "), "{text}");
    assert!(text.contains("float32 (200, 200) made at model.py:0"), "{text}");
    let bytes: Vec<usize> = plan.alive_at_peak().iter().map(|alive| alive.bytes).collect();
    assert!(bytes.iter().sum::<usize>() <= plan.peak_bytes() && bytes.is_sorted_by(|a, b| a >= b));
}

/// `w − 0.5 · (x · w) / |w|` and `m · 0.9 + x`, whose memories are given; an index comes before.
fn update() -> Graph {
    let graph = Graph::new();
    let (w, m) = (input(&graph, DType::F32, &[6, 70]), input(&graph, DType::F32, &[6, 70]));
    let (x, i) = (input(&graph, DType::F32, &[9, 70]), input(&graph, DType::I64, &[6]));
    graph
        .build(|| {
            let x = x.gather(&[i]);
            let next = m * 0.9 + x;
            let norm = (w * w).reduce(Reduction::Sum, &[0, 1]);
            smallvec![w - next * norm * 0.5, next, norm]
        })
        .unwrap();
    graph
}

fn given(dtype: DType, seed: u64) -> Array {
    random(dtype, &[6, 70], seed)
}

#[test]
fn donated_memory_is_written_and_given_back() {
    let graph = update();
    let donated = [(0, 0), (1, 1)];
    let plan =
        Plan::of(&graph.list(), Options { donated: &donated, ..Options::new(&Cpu) }).unwrap();
    assert_eq!(plan.memory().aliases(), donated);
    let (w, m, x) = (given(DType::F32, 1), given(DType::F32, 2), random(DType::F32, &[9, 70], 3));
    let good = crate::cpu::testing::array(DType::I64, &[6], &[0.0, 8.0, 3.0, 1.0, 2.0, 3.0]);
    let bad = crate::cpu::testing::array(DType::I64, &[6], &[0.0, 9.0, 3.0, 1.0, 2.0, 3.0]);
    let want = one_by_one(&graph, &[&w, &m, &x, &good], &[]);
    let (addresses, before) = ([w.ptr(), m.ptr()], [bytes(&w), bytes(&m)]);

    let mut inputs =
        [Input::Given(Some(w)), Input::Given(Some(m)), Input::Lent(&x), Input::Lent(&bad)];
    let refusal = plan.run_with(&mut inputs, &[]).err().unwrap();
    assert_eq!(refusal.code(), "index_out_of_bounds");
    for (input, before) in inputs.iter().zip(&before) {
        let Input::Given(Some(array)) = input else { panic!("an array was kept") };
        assert!(array.is_unique());
        assert_eq!(&bytes(array), before);
    }

    inputs[3] = Input::Lent(&good);
    let got = plan.run_with(&mut inputs, &[]).unwrap();
    assert!(matches!(inputs[0], Input::Given(None)) && matches!(inputs[1], Input::Given(None)));
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(bytes(got), bytes(want), "{plan}");
    }
    assert_eq!([got[0].ptr(), got[1].ptr()], addresses);
    assert!(got[0].is_unique() && got[1].is_unique());
}

#[test]
fn donated_memory_that_someone_else_holds_is_left_alone() {
    let graph = update();
    let plan =
        Plan::of(&graph.list(), Options { donated: &[(0, 0), (1, 1)], ..Options::new(&Cpu) })
            .unwrap();
    let (w, m, x) = (given(DType::F32, 1), given(DType::F32, 2), random(DType::F32, &[9, 70], 3));
    let i = crate::cpu::testing::array(DType::I64, &[6], &[0.0; 6]);
    let want = one_by_one(&graph, &[&w, &m, &x, &i], &[]);
    let before = bytes(&w);
    let mut inputs =
        [Input::Given(Some(w.clone())), Input::Given(Some(m)), Input::Lent(&x), Input::Lent(&i)];
    let got = plan.run_with(&mut inputs, &[]).unwrap();
    assert_eq!(bytes(&w), before);
    assert!(got.iter().zip(&want).all(|(got, want)| bytes(got) == bytes(want)));
    let again = plan.run(&[&w, &w, &x, &i], &[]).unwrap();
    assert_eq!(again.len(), 3);
    assert_eq!(bytes(&w), before);
}

#[test]
fn what_is_still_read_or_may_still_fail_is_not_donated() {
    let graph = Graph::new();
    let w = input(&graph, DType::F32, &[6, 70]);
    let i = input(&graph, DType::I64, &[6]);
    // The new value decides what fails; the old one is read after it.
    graph
        .build(|| {
            let next = w * 0.5;
            smallvec![next, next.gather(&[i])]
        })
        .unwrap();
    let plan =
        Plan::of(&graph.list(), Options { donated: &[(0, 0)], ..Options::new(&Cpu) }).unwrap();
    assert!(plan.memory().aliases().is_empty(), "{plan}");

    let graph = Graph::new();
    let w = input(&graph, DType::F32, &[70, 70]);
    graph.build(|| smallvec![w.permute(smallvec![1, 0]) * 0.5 + w, w]).unwrap();
    for output in [0, 1] {
        let plan =
            Plan::of(&graph.list(), Options { donated: &[(0, output)], ..Options::new(&Cpu) })
                .unwrap();
        assert!(plan.memory().aliases().is_empty(), "{plan}");
    }
}

#[test]
fn several_threads_run_one_plan() {
    let graph = deep(DType::F32, 40, 3);
    let plan = Plan::new(&graph, &Cpu).unwrap();
    let inputs: Vec<Array> = (0..8).map(|seed| random(DType::F32, &[40, 40], seed)).collect();
    let want: Vec<Vec<u8>> =
        inputs.iter().map(|x| bytes(&one_by_one(&graph, &[x], &[])[0])).collect();
    std::thread::scope(|scope| {
        for (x, want) in inputs.iter().zip(&want) {
            let plan = &plan;
            scope.spawn(move || {
                for _ in 0..20 {
                    assert_eq!(&bytes(&plan.run(&[x], &[]).unwrap()[0]), want);
                }
            });
        }
    });
}

#[test]
fn a_plan_with_open_sizes_is_resized() {
    let n = Dim::named("n");
    let graph = Graph::new();
    let ty = Type::new(DType::F32, Shape::from_dims(&[n, Dim::new(6)]));
    let x = Expr::new(&graph, Arg::Node(graph.input(ty)));
    let w = input(&graph, DType::F32, &[6, 6]);
    graph
        .build(|| {
            let y = matmul(x, w).exp() + x;
            smallvec![(y * y).reduce(Reduction::Sum, &[1]), y.permute(smallvec![1, 0])]
        })
        .unwrap();
    let open = Plan::new(&graph, &Cpu).unwrap();
    assert!(open.is_open());
    for size in [4, 1, 0, 9] {
        let plan = open.resized(&|d| if d == n { Dim::new(size) } else { d }).unwrap();
        assert_eq!(plan.steps().len(), open.steps().len());
        let (x, w) = (random(DType::F32, &[size, 6], 1), random(DType::F32, &[6, 6], 2));
        let want = one_by_one(&graph, &[&x, &w], &[]);
        let got = plan.run(&[&x, &w], &[]).unwrap();
        for (got, want) in got.iter().zip(&want) {
            assert_eq!((bytes(got), got.shape()), (bytes(want), want.shape()), "{plan}");
        }
        assert!(!plan.is_open() && plan.peak_bytes() > 0);
    }
}

#[test]
fn plans_of_other_sizes_share_all_but_their_arrangement() {
    use crate::cpu::program::LOWERED;
    let n = Dim::named("n");
    let ty = |dims: &[Dim]| Type::new(DType::F32, Shape::from_dims(dims));
    let graph = Graph::new();
    let x = Expr::new(&graph, Arg::Node(graph.input(ty(&[n, Dim::new(70)]))));
    let w = input(&graph, DType::F32, &[70, 70]);
    graph
        .build(|| {
            let y = (matmul(x, w) + 1.0).exp() - x;
            let e = (y - y.reduce_keep(Reduction::Max, &[1])).exp();
            let z = e / e.reduce_keep(Reduction::Sum, &[1]);
            let flat = z.reshape(Shape::from_dims(&[n * Dim::new(70)]));
            smallvec![flat * 2.0, z.reduce(Reduction::Sum, &[0])]
        })
        .unwrap();
    let open = Plan::new(&graph, &Cpu).unwrap();
    let before = LOWERED.get();
    let lowered = Cpu.lower(&open).unwrap();
    let programs = LOWERED.get() - before;
    assert_eq!(programs, open.template().programs.len());
    assert_eq!(programs, 2, "{open}");
    let parts: Vec<*const StepTemplate> =
        open.steps().iter().map(|step| Arc::as_ptr(&step.template)).collect();
    let (mut peaks, mut blocks) = (Vec::new(), Vec::new());
    for size in [3, 5, 2000, 4000] {
        let sizes = Bindings::of([(n, Dim::new(size))]);
        let plan = open.resized(&|dim| sizes.resolve(dim)).unwrap();
        assert!(Arc::ptr_eq(plan.template(), open.template()));
        for step in plan.steps() {
            // Whether a set becomes a block fusion depends on the sizes.
            let is_block = matches!(step.work, Work::BlockFusion(_));
            assert!(is_block || parts.contains(&Arc::as_ptr(&step.template)), "{plan}");
        }
        blocks.push(plan.steps().iter().any(|step| matches!(step.work, Work::BlockFusion(_))));
        peaks.push(plan.peak_bytes());
        let inputs = [random(DType::F32, &[size, 70], 1), random(DType::F32, &[70, 70], 2)];
        let sized = Graph::from_list(crate::graph::resize(&graph.list(), &sizes).unwrap());
        let want = one_by_one(&sized, &inputs.each_ref(), &[]);
        let got = lowered.run(&plan.shared(), &inputs.each_ref(), &[]).unwrap();
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(bytes(got), bytes(want), "{plan}");
        }
    }
    assert_eq!(LOWERED.get() - before, programs);
    assert!(peaks.is_sorted() && peaks[0] < peaks[3], "{peaks:?}");
    assert!(!blocks[0] && blocks[3], "{blocks:?}");
}

#[test]
fn several_puts_into_donated_memory_are_looked_at_before_the_first() {
    use crate::ops::attributes::ScatterMode;
    let graph = Graph::new();
    let caches = [(); 2].map(|()| input(&graph, DType::F32, &[6, 70]));
    let (v, i) = (input(&graph, DType::F32, &[70]), input(&graph, DType::I64, &[]));
    graph
        .build(|| {
            let first = caches[0].scatter(ScatterMode::Set, v, &[i]);
            smallvec![first, caches[1].scatter(ScatterMode::Set, v * 2.0, &[i + i])]
        })
        .unwrap();
    let donated = [(0, 0), (1, 1)];
    let plan =
        Plan::of(&graph.list(), Options { donated: &donated, ..Options::new(&Cpu) }).unwrap();
    assert_eq!(plan.memory().aliases(), donated, "{plan}");
    let v = random(DType::F32, &[70], 3);
    for (at, fits) in [(2, true), (-3, true), (3, false), (7, false)] {
        let (a, b) = (given(DType::F32, 1), given(DType::F32, 2));
        let (before, addresses) = ([bytes(&a), bytes(&b)], [a.ptr(), b.ptr()]);
        let i = cpu::fill_i64(at).unwrap();
        let want = crate::graph::testing::try_one_by_one(&graph, &[&a, &b, &v, &i], &[]);
        let mut inputs =
            [Input::Given(Some(a)), Input::Given(Some(b)), Input::Lent(&v), Input::Lent(&i)];
        match plan.run_with(&mut inputs, &[]) {
            Ok(got) => {
                assert!(fits, "{at}");
                assert_eq!([got[0].ptr(), got[1].ptr()], addresses);
                for (got, want) in got.iter().zip(&want.unwrap()) {
                    assert_eq!(bytes(got), bytes(want));
                }
            }
            Err(refusal) => {
                assert!(!fits, "{refusal}");
                for (input, before) in inputs.iter().zip(&before) {
                    let Input::Given(Some(array)) = input else { panic!("an array was kept") };
                    assert_eq!(&bytes(array), before);
                }
            }
        }
    }
}

#[test]
fn few_steps_over_few_elements_are_light() {
    let chain = |n: usize, count: usize| {
        let graph = Graph::new();
        let x = input(&graph, DType::F32, &[n, n]);
        graph
            .build(|| {
                let mut y = x;
                for _ in 0..count {
                    y = (y - y.reduce(Reduction::Sum, &[1]).reshape(Shape::of(&[n, 1]))).exp();
                }
                smallvec![y]
            })
            .unwrap();
        Plan::new(&graph, &Cpu).unwrap()
    };
    assert!(chain(4, 3).is_light(1000) && !chain(4, 3).is_light(10));
    assert!(!chain(4, 100).is_light(1 << 20), "too many steps");
    let graph = Graph::new();
    let x = input(&graph, DType::F32, &[4, 4]);
    graph.build(|| smallvec![matmul(x, x)]).unwrap();
    assert!(
        !Plan::new(&graph, &Cpu).unwrap().is_light(1 << 20),
        "products are not linear in sizes"
    );
}

/// `tanh(x · w)` several times in a row, and a sum of each; only the sums are results.
#[test]
fn sums_do_not_wait_for_products() {
    let n = 64;
    let graph = Graph::new();
    let (mut x, w) = (input(&graph, DType::F32, &[n, n]), input(&graph, DType::F32, &[n]));
    let mut sums = Vec::new();
    for _ in 0..8 {
        x = matmul(x, x).exp();
        sums.push(x.reduce(Reduction::Sum, &[0]));
    }
    graph.build(|| sums.iter().map(|&sum| sum + w).collect()).unwrap();
    // Products may be refused memory for themselves, so the sum written over `w` comes after all.
    let plan =
        Plan::of(&graph.list(), Options { donated: &[(1, 0)], ..Options::new(&Cpu) }).unwrap();
    assert_eq!(plan.memory().aliases(), [(1, 0)], "{plan}");
    assert!(plan.memory().arena_bytes() <= 2 * 4 * n * n + 9 * ALIGN.max(4 * n), "{plan}");
}

#[test]
fn an_order_is_judged_by_what_it_needs() {
    for seed in 0..40 {
        let graph = program(DType::F32, seed, 30);
        let plan = Plan::new(&graph, &Cpu).unwrap();
        let alive: usize = plan.alive_at_peak().iter().map(|alive| alive.bytes).sum();
        assert!(alive <= plan.peak_bytes(), "{plan}");
        assert!(plan.memory().arena_bytes() <= plan.naive_bytes() + ALIGN * plan.slots().len());
    }
}

/// Values that are computed again for a budget have the same bits, at the peak that is predicted.
#[test]
fn programs_within_a_budget_have_the_same_bits() {
    alone(|| {
        let mut fewer = 0;
        for seed in 0..80 {
            let graph = program(DType::F32, seed, 20 + seed as usize % 40);
            let list = graph.list();
            let free = Plan::new(&graph, &Cpu).unwrap().peak_bytes();
            for budget in [0, free / 2, 3 * free / 4] {
                let within = Plan::within(&list, Options::new(&Cpu), &|dim| dim, budget).unwrap();
                let (again, _, plan) = within.parts();
                let again = Graph::from_list(again);
                again.verify().unwrap();
                assert!(plan.peak_bytes() <= free, "{plan}");
                fewer += usize::from(plan.peak_bytes() < free);
                let inputs = values_of(&graph, seed);
                let inputs: Vec<&Array> = inputs.iter().collect();
                let numbers = numbers_of(&graph);
                let want = one_by_one(&graph, &inputs, &numbers);
                let got = plan.run(&inputs, &numbers).unwrap();
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(bytes(got), bytes(want), "{plan}");
                }
                peak("within", &again, &inputs);
            }
        }
        assert!(fewer > 3, "{fewer} of 240 need less");
    });
}
