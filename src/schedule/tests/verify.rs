//! Spoiled plans are refused, each for its own defect.

use std::sync::Arc;

use smallvec::smallvec;

use super::input;
use crate::cpu::target::Cpu;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::layout::Layout;
use crate::ops::attributes::Reduction;
use crate::ops::element::ElementProgram;
use crate::schedule::block_fusion::tests::eager;
use crate::schedule::{Operand, Options, Placement, Plan, Source, StepTemplate, Work};
use crate::shape::Shape;

const SIZES: [usize; 2] = [64, 70];

/// Two groups with sums between them, whose values lie in the arena.
fn plan() -> Plan {
    let graph = Graph::new();
    let (x, y) = (input(&graph, DType::F32, &SIZES), input(&graph, DType::F32, &SIZES));
    graph
        .build(|| {
            let a = (x - y).exp() * y;
            let b = a / a.reduce_keep(Reduction::Sum, &[0]);
            let c = b - b.reduce_keep(Reduction::Max, &[0]);
            smallvec![c.reduce(Reduction::Sum, &[1])]
        })
        .unwrap();
    Plan::of(&graph.list(), Options::new(&Cpu)).unwrap()
}

/// Asserts that a plan keeps the law until it is spoiled, and how it is refused then.
fn refuses(mut plan: Plan, what: &str, spoil: impl FnOnce(&mut Plan)) {
    plan.verify().unwrap();
    spoil(&mut plan);
    let refusal = plan.verify().err().unwrap_or_else(|| panic!("{what}: allowed\n{plan}"));
    assert!(refusal.to_string().contains(what), "{what}: {refusal}\n{plan}");
}

/// The first step that reads what another made, with the place of that operand.
fn reader(plan: &Plan) -> (usize, usize) {
    let is_slot = |arg: &Operand| matches!(arg, Operand::Array(Source::Slot(_)));
    let mut found = plan.steps.iter().enumerate();
    let reading = |(i, step): (usize, &crate::schedule::Step)| {
        step.args.iter().position(is_slot).map(|k| (i, k))
    };
    found.find_map(reading).unwrap()
}

/// The slots of the arena whose values are alive at one time, largest first.
fn in_arena(plan: &Plan) -> Vec<usize> {
    let is_there = |k: &usize| matches!(&plan.memory.placements[*k], Placement::Fixed(0, _));
    let mut slots: Vec<usize> = (0..plan.slots.len()).filter(is_there).collect();
    slots.sort_by_key(|&k| std::cmp::Reverse(plan.slots[k].shape.count()));
    slots
}

/// The template of a step, which plans for other sizes share.
fn part(plan: &mut Plan, i: usize) -> &mut StepTemplate {
    Arc::make_mut(&mut plan.steps[i].template)
}

fn layout(placement: &mut Placement) -> &mut Layout {
    match placement {
        Placement::Fixed(_, layout) => layout,
        Placement::Loose => panic!("no place"),
    }
}

#[test]
fn values_are_read_after_they_are_written() {
    let what = "a value is read that is not there";
    refuses(plan(), what, |plan| {
        let (i, _) = reader(plan);
        plan.steps.swap(i - 1, i);
    });
    refuses(plan(), what, |plan| {
        let (i, k) = reader(plan);
        part(plan, i).args[k] = Operand::Array(Source::Input(9));
    });
    refuses(plan(), what, |plan| {
        // Free before its last reader.
        let slot = plan.steps[0].results[0];
        plan.steps[1].last.push(slot);
    });
    refuses(plan(), "a slot is written twice", |plan| {
        let slot = plan.steps[0].results[0];
        let last = plan.steps.len() - 1;
        part(plan, last).results[0] = slot;
    });
    refuses(plan(), "a result is not there at the end", |plan| {
        let first = Source::Slot(plan.steps[0].results[0]);
        Arc::get_mut(&mut plan.template).unwrap().outputs[0] = first;
    });
}

#[test]
fn values_lie_apart_inside_their_memory_and_aligned() {
    refuses(plan(), "overlap", |plan| {
        // A sum lies where what it sums does.
        let slots = in_arena(plan);
        let step =
            plan.steps.iter().find(|step| matches!(&step.work, Work::Op(op) if op.name() == "sum"));
        let step = step.unwrap();
        let (from, to) = match step.args[0] {
            Operand::Array(Source::Slot(from)) => (from as usize, step.results[0] as usize),
            Operand::Array(_) | Operand::Number(_) => panic!("a sum of an input"),
        };
        assert!(slots.contains(&from) && slots.contains(&to));
        let at = layout(&mut plan.memory.placements[from]).offset();
        let own = layout(&mut plan.memory.placements[to]);
        *own = Layout::contiguous_at(own.shape().clone(), at);
        // Views of the sum lie there too.
        let shows = Operand::Array(Source::Slot(to as u32));
        for i in 0..plan.steps.len() {
            if plan.memory.views[i] && plan.steps[i].args[0] == shows {
                let slot = plan.steps[i].results[0] as usize;
                let own = layout(&mut plan.memory.placements[slot]);
                *own = Layout::contiguous_at(own.shape().clone(), at);
            }
        }
    });
    refuses(plan(), "outside of its memory", |plan| {
        plan.memory.arena = 64;
    });
    refuses(plan(), "not aligned", |plan| {
        // The arena is large enough, so nothing else is wrong with the plan.
        let slot = in_arena(plan)[0];
        plan.memory.arena *= 2;
        let end = plan.memory.arena / 8 + 1;
        let own = layout(&mut plan.memory.placements[slot]);
        *own = Layout::contiguous_at(own.shape().clone(), end);
    });
}

#[test]
fn views_lie_in_what_they_show() {
    let what = "a view lies outside of what it shows";
    refuses(plan(), what, |plan| {
        let at = plan.memory.views.iter().position(|&is_view| is_view).unwrap();
        let slot = plan.steps[at].results[0] as usize;
        plan.memory.arena *= 2;
        let end = plan.memory.arena / 8;
        let own = layout(&mut plan.memory.placements[slot]);
        *own = Layout::contiguous_at(own.shape().clone(), end);
    });
}

#[test]
fn programs_fit_their_steps() {
    let group = |plan: &Plan| {
        plan.steps.iter().position(|step| matches!(step.work, Work::Group(_))).unwrap()
    };
    refuses(plan(), "a program has other operands", |plan| {
        let at = group(plan);
        if let Work::Group(group) = &mut plan.steps[at].work {
            group.program = Arc::new(ElementProgram::default());
        }
    });
    refuses(plan(), "a program has another operand", |plan| {
        plan.inputs[0].dtype = DType::F64;
    });
    refuses(plan(), "a program gives other results", |plan| {
        let at = group(plan);
        let slot = plan.steps[at].results[0] as usize;
        plan.slots[slot].shape = Shape::of(&[70, 64]);
    });
}

#[test]
fn donated_memory_is_written_last() {
    let graph = Graph::new();
    let (w, x) = (input(&graph, DType::F32, &SIZES), input(&graph, DType::F32, &SIZES));
    let i = input(&graph, DType::I64, &[6]);
    graph.build(|| smallvec![w * 0.5 + x, x.gather(&[i]).reduce(Reduction::Sum, &[0])]).unwrap();
    let donated = [(0, 0)];
    let made =
        || Plan::of(&graph.list(), Options { donated: &donated, ..Options::new(&Cpu) }).unwrap();
    assert_eq!(made().memory.aliases.as_slice(), donated);
    refuses(made(), "a step may fail after donated memory is written", |plan| {
        let writes =
            |step: &crate::schedule::Step| step.args.contains(&Operand::Array(Source::Input(0)));
        let at = plan.steps.iter().position(writes).unwrap();
        let step = plan.steps.remove(at);
        plan.steps.insert(0, step);
        let is_view = plan.memory.views.remove(at);
        plan.memory.views.insert(0, is_view);
    });
    refuses(made(), "an input cannot be given away", |plan| {
        Arc::get_mut(&mut plan.template).unwrap().outputs.push(Source::Input(0));
    });
}

#[test]
fn blocks_cover_their_shape() {
    let made = || {
        let graph = Graph::new();
        let x = input(&graph, DType::F32, &SIZES);
        graph
            .build(|| {
                let e = (x - x.reduce_keep(Reduction::Max, &[1])).exp();
                smallvec![e / e.reduce_keep(Reduction::Sum, &[1])]
            })
            .unwrap();
        eager(&graph)
    };
    let rows = |plan: &mut Plan, spoil: &dyn Fn(&mut crate::schedule::BlockFusion)| {
        for step in &mut plan.steps {
            if let Work::BlockFusion(fusion) = &mut step.work {
                spoil(fusion);
            }
        }
    };
    refuses(made(), "blocks do not cover their shape", |plan| {
        let slot = plan.steps[0].results[0] as usize;
        plan.slots[slot].shape = Shape::of(&[65, 70]);
    });
    refuses(made(), "blocks do not cover their shape", |plan| {
        // Bodies for blocks of another height.
        rows(plan, &|fusion| {
            let other = match &fusion.last {
                Some(last) => last.clone(),
                None => Arc::new(super::verify::plan()),
            };
            fusion.full = other;
            fusion.last = None;
        });
    });
    refuses(made(), "blocks have too little room", |plan| {
        rows(plan, &|fusion| fusion.capacity *= 2);
    });
}

#[test]
fn an_executable_runs_plans_of_its_template_only() {
    use crate::executor::Executor;
    let (a, b) = (plan(), plan());
    let lowered = Cpu.lower(&a).unwrap();
    let x = crate::cpu::testing::random(DType::F32, &SIZES, 1);
    assert_eq!(lowered.run(&b.shared(), &[&x, &x], &[]).err().unwrap().code(), "internal");
    // Plans for other sizes have the same template: nothing is compiled for them.
    let again = a.resized(&|dim| dim).unwrap();
    assert!(Arc::ptr_eq(again.template(), a.template()));
    let (want, got) =
        (lowered.run(&a.shared(), &[&x, &x], &[]), lowered.run(&again.shared(), &[&x, &x], &[]));
    let bytes = crate::cpu::testing::bytes;
    assert_eq!(bytes(&want.unwrap()[0]), bytes(&got.unwrap()[0]));
}
