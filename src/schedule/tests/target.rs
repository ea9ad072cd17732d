//! A target as narrow as WebGPU's default limits: plans keep within the limits that it states.

use super::*;
use crate::cpu::testing::array;
use crate::graph::cases;
use crate::graph::testing::values_of;
use crate::layout::Layout;
use crate::ops::declare::Composite;
use crate::passes::{expand, expand_for};
use crate::reference::plan::{Reference, Run};
use crate::schedule::block_fusion::tests::BLOCKS;
use crate::shape::Dim;
use crate::target::{BlockScratch, InPlace, Limits, Packed, Ranges};

/// Eight bindings of at most 128 MiB at multiples of 256 bytes, all writable, none overlapping.
/// Narrow elements take four bytes, and there is no float64.
struct Narrow {
    limits: Limits,
    /// A composite that it has a kernel for
    kernel: Option<&'static str>,
}

const LIMITS: Limits = Limits {
    instructions: 32,
    operands: 12,
    buffers: 8,
    alignment: 256,
    granularity: 16,
    largest: 128 << 20,
    buffer: 256 << 20,
    ranges: Ranges::Apart,
    large: 1 << 12,
    setup: 2,
    blocks: None,
    rows: None,
};

/// It fuses groups only: the reference runs its plans.
static PLAIN: Narrow = Narrow { limits: LIMITS, kernel: None };

/// Its buffers are as small as a few values.
static SHORT: Narrow = Narrow { limits: Limits { buffer: 1 << 9, ..LIMITS }, kernel: None };

/// It also fuses block by block wherever that can be done.
static FUSING: Narrow = Narrow { limits: Limits { blocks: Some(BLOCKS), ..LIMITS }, kernel: None };

impl Narrow {
    fn fuses(&self) -> bool {
        self.limits.blocks.is_some()
    }
}

impl Target for Narrow {
    fn name(&self) -> &'static str {
        "narrow"
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn lanes(&self) -> usize {
        4
    }
    fn supports(&self, _: &Op, operands: &[DType], result: DType) -> bool {
        result != DType::F64 && !operands.contains(&DType::F64)
    }
    fn stored(&self, dtype: DType) -> usize {
        dtype.size().max(4)
    }
    fn allocated(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(16)
    }
    fn has_kernel(&self, composite: &'static Composite) -> bool {
        self.kernel == Some(composite.name)
    }
    fn view(&self, op: &Op, dtype: DType, x: &Layout) -> Option<Layout> {
        Cpu.view(op, dtype, x)
    }
    fn fresh_layout(&self, op: &Op, shape: &Shape) -> Layout {
        Cpu.fresh_layout(op, shape)
    }
    #[allow(clippy::wildcard_enum_match_arm, reason = "nothing else is done in place here")]
    fn in_place(&self, op: &Op) -> InPlace {
        match op {
            Op::Map(_) => InPlace::Any,
            _ => InPlace::Nowhere,
        }
    }
    fn scratch(&self, op: &Op, _: &[(DType, &Layout)], _: &Layout) -> usize {
        if matches!(op, Op::Call(_)) { 1 << 10 } else { 0 }
    }
    fn block_scratch(&self, _: &Op, _: &[(DType, &Layout)], _: &Shape) -> BlockScratch {
        BlockScratch::Nothing
    }
    fn offers_epilogue(&self, op: &Op, dtype: DType) -> bool {
        self.fuses() && matches!(op, Op::Contract(_)) && dtype == DType::F32
    }
    fn offers_prologue(&self, op: &Op, dtype: DType, _: usize) -> bool {
        self.offers_epilogue(op, dtype)
    }
    fn packed(
        &self,
        _: &Op,
        _: [(DType, &Layout); 2],
        _: [Option<usize>; 2],
        _: &Layout,
    ) -> Packed {
        Packed { scratch: 0, times: [Some(1), Some(2)] }
    }
    fn splits_batch(&self, _: DType) -> bool {
        self.fuses()
    }
    fn reduction_group(&self, lines: usize, width: usize) -> Option<usize> {
        Cpu.reduction_group(lines, width)
    }
}

/// The memory of a run, where elements lie as far apart as the target stores them.
struct Device<'a> {
    plan: &'a Plan,
    memories: Vec<Vec<u8>>,
    run: Run<'a>,
}

impl<'a> Device<'a> {
    fn new(plan: &'a Plan, inputs: &'a [&'a Array], numbers: &'a [Scalar]) -> Device<'a> {
        let memory = plan.memory();
        let sizes = std::iter::once(memory.arena).chain(memory.dedicated.iter().map(|a| a.bytes));
        let memories = sizes.map(|bytes| vec![0xa5; bytes]).collect();
        Device { plan, memories, run: Run::new(plan, inputs, numbers) }
    }

    /// Where the elements of a slot lie, if it has a place.
    fn places(&self, slot: u32) -> Option<(usize, Vec<usize>)> {
        let Placement::Fixed(memory, layout) = &self.plan.memory().placements[slot as usize] else {
            return None;
        };
        let stored = self.plan.target().stored(self.plan.slots()[slot as usize].dtype);
        let (sizes, strides) = (layout.shape().sizes(), layout.strides());
        let place = |mut i: usize| {
            let mut at = layout.offset() as isize;
            for (&n, &stride) in sizes.iter().zip(&strides).rev() {
                at += (i % n) as isize * stride;
                i /= n;
            }
            at as usize * stored
        };
        Some((*memory as usize, (0..layout.shape().count()).map(place).collect()))
    }

    fn load(&self, slot: u32) -> Option<Array> {
        let (memory, places) = self.places(slot)?;
        let ty = &self.plan.slots()[slot as usize];
        let (size, y) = (ty.dtype.size(), Array::uninit(ty.dtype, ty.shape.clone()).unwrap());
        for (i, at) in places.into_iter().enumerate() {
            let element = &self.memories[memory][at..at + size];
            // SAFETY: the array is fresh and has this element.
            unsafe {
                let to = y.buffer().ptr_mut().add(i * size);
                std::ptr::copy_nonoverlapping(element.as_ptr(), to, size);
            }
        }
        Some(y)
    }

    fn store(&mut self, slot: u32, x: &Array) -> bool {
        let Some((memory, places)) = self.places(slot) else { return false };
        for (at, element) in places.into_iter().zip(bytes(x).chunks(x.dtype.size())) {
            self.memories[memory][at..at + element.len()].copy_from_slice(element);
        }
        true
    }

    /// The results, each step reading from memory and writing there.
    fn finish(mut self) -> Vec<Array> {
        let plan = self.plan;
        for (step, &is_view) in plan.steps().iter().zip(&plan.memory().views) {
            for source in super::super::liveness::arrays(step) {
                if let Source::Slot(slot) = source
                    && let Some(x) = self.load(slot)
                {
                    self.run.slots[slot as usize] = Some(x);
                }
            }
            let results = self.run.step(step).unwrap();
            for (&slot, x) in step.results.iter().zip(&results) {
                // The elements of a view are in memory already.
                let is_there = match is_view {
                    true => self.places(slot).is_some(),
                    false => self.store(slot, x),
                };
                self.run.slots[slot as usize] = (!is_there).then(|| x.clone());
            }
        }
        let result = |&source: &Source| match source {
            Source::Slot(slot) => self.load(slot).or_else(|| self.run.slots[slot as usize].clone()),
            Source::Input(_) | Source::Constant(_) => None,
        };
        plan.outputs().iter().filter_map(result).collect()
    }
}

/// Graphs of every kind of step: random programs, every op and composite, control flow.
fn graphs() -> Vec<(Graph, Vec<Array>)> {
    let mut graphs = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::I8, DType::U32, DType::Bool] {
        for seed in 0..40 {
            graphs.push(program(dtype, seed, 4 + seed as usize % 40));
        }
    }
    graphs.extend(super::control_flow::wild_ones());
    let mut all: Vec<(Graph, Vec<Array>)> = graphs
        .into_iter()
        .map(|graph| {
            let inputs = values_of(&graph, 5);
            (graph, inputs)
        })
        .collect();
    for (op, operands) in cases::ops() {
        let graph = Graph::new();
        let args = cases::args(&operands, &graph);
        graph.output(graph.emit(op, &args));
        all.push((graph, operands.iter().filter_map(|x| x.data(3)).collect()));
    }
    for call in cases::calls() {
        let graph = Graph::new();
        call.build(&graph);
        let data = call.operands.iter().filter_map(|x| x.data(3)).collect();
        all.push((expand(&graph).unwrap(), data));
    }
    all
}

#[test]
fn plans_keep_to_what_a_narrow_target_says() {
    let (mut planned, mut blocks, mut split) = (0, 0, 0);
    for (graph, _) in graphs() {
        for target in [&PLAIN, &FUSING] {
            let plan = match Plan::new(&graph, target) {
                Ok(plan) => plan,
                Err(refusal) => {
                    assert_eq!(refusal.code(), "no_kernel", "{refusal}");
                    continue;
                }
            };
            plan.verify().unwrap();
            planned += 1;
            let is_block = |step: &Step| matches!(step.work, Work::BlockFusion(_));
            blocks += usize::from(plan.steps().iter().any(is_block));
            for dedicated in &plan.memory().dedicated {
                assert!(dedicated.bytes.is_multiple_of(16) && dedicated.bytes <= 128 << 20);
            }
            let wide = Plan::new(&graph, &Cpu).unwrap();
            split += usize::from(!target.fuses() && plan.steps().len() > wide.steps().len());
        }
    }
    assert!(planned > 400 && blocks > 50 && split > 10, "{planned} {blocks} {split}");
}

#[test]
fn plans_for_a_narrow_target_compute_in_its_memory_what_the_list_says() {
    let (mut count, mut narrow, mut divided) = (0, 0, 0);
    let targets = [&PLAIN, &SHORT];
    for (target, (graph, inputs)) in
        targets.iter().flat_map(|&target| graphs().into_iter().map(move |case| (target, case)))
    {
        let Ok(plan) = Plan::new(&graph, target) else { continue };
        plan.verify().unwrap();
        let whole = Plan::new(&graph, &PLAIN).unwrap();
        let (own, one) = (plan.memory(), whole.memory());
        if own.dedicated.len() > one.dedicated.len() {
            divided += 1;
            let more = &own.dedicated[one.dedicated.len()..];
            let all = own.arena + more.iter().map(|buffer| buffer.bytes).sum::<usize>();
            assert!(one.arena > 1 << 9 && all >= one.arena, "{plan}");
        } else {
            assert_eq!(own.arena, one.arena, "{plan}");
        }
        let inputs: Vec<&Array> = inputs.iter().collect();
        let numbers = numbers_of(&graph);
        let alone = Plan::new(&graph, &Reference).unwrap();
        let Ok(want) = Reference.lower(&alone).unwrap().run(&alone.shared(), &inputs, &numbers)
        else {
            continue;
        };
        let want: Vec<Array> = want.iter().map(|y| Reference.download(y).unwrap()).collect();
        let got = Device::new(&plan, &inputs, &numbers).finish();
        let is_slot = |source: &&Source| matches!(source, Source::Slot(_));
        let computed: Vec<&Array> = (alone.outputs().iter().zip(&want))
            .filter(|(source, _)| is_slot(source))
            .map(|(_, y)| y)
            .collect();
        assert_eq!(got.len(), computed.len());
        for (got, want) in got.iter().zip(computed) {
            assert_eq!(got.dtype, want.dtype);
            assert!(bytes(got) == bytes(want), "{}\n{plan}", graph.print(|_| None));
            narrow += usize::from(got.dtype.size() < 4);
        }
        count += 1;
    }
    assert!(count > 400 && narrow > 100 && divided > 5, "{count} {narrow} {divided}");
}

#[test]
fn ops_without_a_kernel_are_refused_with_every_place() {
    crate::site::spell_with(|site| Some(format!("model.py:{}", site.offset)));
    let graph = Graph::new();
    let x = input(&graph, DType::F32, &[3]);
    let line = |offset: u32| graph.at(Site { code: 1, offset, ..Site::default() });
    line(3);
    let y = x.exp();
    line(4);
    let y = y.cast(DType::F64);
    line(5);
    y.exp();
    graph.output(Id(graph.len() as u32 - 1));
    assert!(Plan::new(&graph, &Cpu).is_ok());
    let error = Plan::new(&graph, &PLAIN).err().unwrap();
    assert_eq!(error.code(), "no_kernel");
    let want = "\
astype: narrow has no kernel for these dtypes: float32 to float64
  astype of float32 to float64 made at model.py:4
  exp of float64 to float64 made at model.py:5";
    assert_eq!(error.to_string(), want);
    // The same question is asked where an op runs at once, or is recorded.
    let double = array(DType::F64, &[1], &[0.5]);
    let cast = Op::Cast(DType::F32);
    let ty = crate::ops::op::OperandType::Tensor(double.dtype, double.shape());
    let refusal = crate::executor::admit(&PLAIN, &cast, &[ty]);
    assert_eq!(refusal.err().unwrap().code(), "no_kernel");
}

#[test]
fn ops_that_rules_allow_have_kernels_on_both_executors() {
    for (graph, _) in graphs() {
        for target in [&Cpu as &'static dyn Target, &Reference] {
            Plan::new(&graph, target).unwrap();
        }
    }
}

#[test]
fn values_beyond_a_range_are_refused_when_sizes_are_known() {
    let n = Dim::named("n");
    let graph = Graph::new();
    let ty = Type::new(DType::F32, Shape::from_dims(&[n]));
    let x = Expr::new(&graph, Arg::Node(graph.input(ty)));
    graph.build(|| smallvec![x.exp().cast(DType::I8).cast(DType::F32).exp()]).unwrap();
    let open = Plan::new(&graph, &PLAIN).unwrap();
    let sized = |count: usize| open.resized(&|d| if d == n { Dim::new(count) } else { d });
    assert!(sized(32 << 20).is_ok());
    let error = sized((32 << 20) + 1).err().unwrap();
    assert_eq!(error.code(), "beyond_limits");
    assert!(error.to_string().contains("takes 134217744 bytes, 134217728 fit"), "{error}");
    // Narrow elements are stored as words.
    let graph = Graph::new();
    let x = input(&graph, DType::F32, &[40 << 20]);
    graph.build(|| smallvec![x.cast(DType::I8).reduce(Reduction::Max, &[0])]).unwrap();
    assert_eq!(Plan::new(&graph, &PLAIN).err().unwrap().code(), "beyond_limits");
    assert!(Plan::new(&graph, &Cpu).is_ok());
    // Inputs may repeat elements, and are held to the bytes that lie there when they are there.
    let graph = Graph::new();
    let x = input(&graph, DType::I8, &[40 << 20]);
    graph.build(|| smallvec![x.reduce(Reduction::Max, &[0])]).unwrap();
    assert!(Plan::new(&graph, &PLAIN).is_ok());
}

#[test]
fn an_op_that_binds_too_much_is_refused_and_a_group_is_cut() {
    let graph = Graph::new();
    let inputs: Vec<Expr<'_>> = (0..12).map(|_| input(&graph, DType::F32, &[6])).collect();
    graph
        .build(|| {
            let mut sum = inputs[0];
            for x in &inputs[1..] {
                sum = sum + *x;
            }
            smallvec![sum]
        })
        .unwrap();
    let plan = Plan::new(&graph, &PLAIN).unwrap();
    assert!(plan.steps().len() > 1, "{plan}");
    let bindings = |step: &Step| step.args.len() + step.results.len();
    assert_eq!(plan.steps().iter().map(bindings).max(), Some(8), "{plan}");
    assert_eq!(plan.steps()[0].cut, Cut::Size, "{plan}");

    let graph = Graph::new();
    let parts: Vec<Arg> =
        (0..9).map(|_| Arg::Node(graph.input(Type::new(DType::F32, Shape::of(&[2]))))).collect();
    graph.output(graph.emit(Op::Concat(0), &parts));
    let refusal = Plan::new(&graph, &PLAIN).err().unwrap();
    assert_eq!(refusal.code(), "beyond_limits");
    assert!(refusal.to_string().contains("it binds 10 ranges, 8 are allowed"), "{refusal}");
}

#[test]
fn a_call_with_a_kernel_stays_one_step() {
    static KERNEL: Narrow = Narrow { limits: LIMITS, kernel: Some("softmax") };
    let call = cases::calls().into_iter().find(|call| call.composite.name == "softmax").unwrap();
    let graph = Graph::with_calls();
    call.build(&graph);
    let last = graph.outputs()[0];
    graph.build(|| smallvec![Expr::new(&graph, Arg::Node(last)).exp() * 2.0]).unwrap();
    let kernels = |composite: &'static Composite| KERNEL.has_kernel(composite);
    let kept = expand_for(&graph, &kernels).unwrap();
    let plan = Plan::new(&kept, &KERNEL).unwrap();
    let names: Vec<String> = plan.steps().iter().map(Step::name).collect();
    assert!(names.contains(&"softmax".to_string()), "{plan}");
    let step = plan.steps().iter().find(|step| step.name() == "softmax").unwrap();
    assert!(matches!(&step.work, Work::Op(Op::Call(_))) && plan.flops(step) > 0);
    // Its scratch is part of the peak, and nothing is written over what it reads.
    assert_eq!(plan.scratch_bytes(), 1 << 10, "{plan}");
    // Without a kernel it has to be expanded.
    assert_eq!(Plan::new(&kept, &PLAIN).err().unwrap().code(), "internal");
    let expanded = expand_for(&graph, &|_| false).unwrap();
    let names: Vec<String> =
        Plan::new(&expanded, &PLAIN).unwrap().steps().iter().map(Step::name).collect();
    assert!(!names.contains(&"softmax".to_string()) && names.len() > 2, "{names:?}");
}

/// A plan for the narrow target, checked against a target that says something else.
fn spoiled(what: &str, limits: Limits, factor: usize) {
    let graph = Graph::new();
    let x = input(&graph, DType::F32, &[6, 70]);
    graph
        .build(|| {
            let a = (x * x).exp();
            let b = a / a.reduce_keep(Reduction::Sum, &[0]);
            smallvec![b.reduce(Reduction::Sum, &[1])]
        })
        .unwrap();
    let mut plan = Plan::new(&graph, &PLAIN).unwrap();
    plan.verify().unwrap();
    plan.target = Box::leak(Box::new(Narrow { limits, kernel: None }));
    plan.memory.arena *= factor;
    plan.memory.dedicated.iter_mut().for_each(|dedicated| dedicated.bytes *= factor);
    let refusal = plan.verify().err().unwrap_or_else(|| panic!("{what}: allowed\n{plan}"));
    assert!(refusal.to_string().contains(what), "{what}: {refusal}\n{plan}");
}

#[test]
fn plans_that_bind_what_a_target_does_not_allow_break_the_law() {
    spoiled("a step binds too many ranges", Limits { buffers: 1, ..LIMITS }, 1);
    spoiled("a step binds too large a range", Limits { largest: 1000, ..LIMITS }, 1);
    spoiled("lies outside of its memory", Limits { granularity: 1 << 16, ..LIMITS }, 1);
    spoiled("a step binds ranges that overlap", Limits { granularity: 1 << 10, ..LIMITS }, 999);
    spoiled("is not aligned", Limits { alignment: 1 << 16, ..LIMITS }, 1);
}
