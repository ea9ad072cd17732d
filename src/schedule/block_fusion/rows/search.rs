//! The search for sets of steps that compute rows.

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::super::liveness::makers;
use super::super::super::order::Graph;
use super::super::super::{Cut, Operand, Plan, Sequel, Source, Step, StepTemplate, Work};
use super::super::{is_movement, stronger};
use super::build::{Build, Frame};
use super::{RowFusion, RowProgram, Stage};
use crate::dtype::{Class, DType};
use crate::ops::element::ElementOp;
use crate::ops::op::Op;
use crate::shape::Dim;
use crate::target::RowLimits;

/// Steps that a search for a way back into a set looks at before it takes one for granted.
const SEEN: usize = 1 << 14;

/// Whether an elementwise step is so little work that it may be done again for each pass over a
/// row.
fn is_cheap(plan: &Plan, step: &Step, limits: &RowLimits) -> bool {
    let Some(Sequel { group, .. }) = plan.elementwise(step) else { return false };
    // What integers have too takes an instruction or two; functions of floats alone take many.
    let is_plain = |op: ElementOp| match op {
        ElementOp::Cast => true,
        ElementOp::Map(def) => def.classes.contains(Class::Int),
    };
    let instructions = group.program.instructions();
    instructions.len() <= limits.again && instructions.iter().all(|made| is_plain(made.op))
}

fn is_reshape(step: &Step) -> bool {
    matches!(&step.work, Work::Op(Op::Reshape(_)))
}

/// Steps and who reads them, with the sets that were found.
struct Search<'p> {
    plan: &'p Plan,
    limits: RowLimits,
    made: Vec<u32>,
    readers: Vec<SmallVec<[u32; 4]>>,
    is_result: Vec<bool>,
    /// By step: its set
    set: Vec<Option<u32>>,
    sets: Vec<Vec<u32>>,
}

impl<'p> Search<'p> {
    fn new(plan: &'p Plan, limits: RowLimits) -> Search<'p> {
        let slots = plan.slots.len();
        let mut readers: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new(); slots];
        for (i, step) in plan.steps.iter().enumerate() {
            for arg in &step.args {
                if let Operand::Array(Source::Slot(slot)) = *arg {
                    readers[slot as usize].push(i as u32);
                }
            }
        }
        let mut is_result = vec![false; slots];
        for source in &plan.template.outputs {
            if let Source::Slot(slot) = *source {
                is_result[slot as usize] = true;
            }
        }
        let made = makers(&plan.steps, slots);
        let set = vec![None; plan.steps.len()];
        Search { plan, limits, made, readers, is_result, set, sets: Vec::new() }
    }

    fn after(&self, step: u32) -> impl Iterator<Item = u32> + '_ {
        let slots = &self.plan.steps[step as usize].results;
        slots.iter().flat_map(|&slot| self.readers[slot as usize].iter().copied())
    }

    fn before(&self, step: u32) -> impl Iterator<Item = u32> + '_ {
        self.plan.steps[step as usize].args.iter().filter_map(|arg| match *arg {
            Operand::Array(Source::Slot(slot)) => Some(self.made[slot as usize]),
            Operand::Array(Source::Input(_) | Source::Constant(_)) | Operand::Number(_) => None,
        })
    }

    /// The step whose result a reshape shows.
    fn shown(&self, mut step: u32) -> u32 {
        while is_reshape(&self.plan.steps[step as usize])
            && let Some(before) = self.before(step).next()
        {
            step = before;
        }
        step
    }

    /// Whether a step that a set reads, and that reads nothing of it, is better done with it. What
    /// elements need first is computed again in every pass, what rows need once.
    fn pays_before(&self, frame: &Frame, i: u32) -> bool {
        let step = &self.plan.steps[i as usize];
        if let Some(Sequel { group, .. }) = self.plan.elementwise(step) {
            return frame.is_narrow(&group.shape)
                || (frame.is_trailing() && is_cheap(self.plan, step, &self.limits));
        }
        // A reduction beside others takes no pass of its own, unless what it reads is better
        // computed where it is reduced.
        let is_ready = || {
            self.before(i).all(|from| {
                let step = &self.plan.steps[from as usize];
                self.set[from as usize].is_some()
                    || self.plan.elementwise(step).is_none()
                    || is_cheap(self.plan, step, &self.limits)
            })
        };
        match &step.work {
            Work::Op(Op::Gather) => {
                let slots = &self.plan.slots;
                step.results.iter().all(|&slot| frame.is_narrow(&slots[slot as usize].shape))
            }
            Work::Op(Op::Reduce(..)) => is_ready(),
            Work::Op(_)
            | Work::Group(_)
            | Work::Product(_)
            | Work::BlockFusion(_)
            | Work::RowFusion(_)
            | Work::ControlFlow(_)
            | Work::Effect(_)
            | Work::Alias => false,
        }
    }

    /// Whether no path leaves these steps and comes back, through other sets too.
    fn is_closed(&self, members: &[u32]) -> bool {
        let mut seen = vec![false; self.plan.steps.len()];
        let mut open: Vec<u32> = Vec::new();
        let is_member = |step: u32| members.binary_search(&step).is_ok();
        for &member in members {
            open.extend(self.after(member).filter(|&step| !is_member(step)));
        }
        let mut count = 0;
        while let Some(step) = open.pop() {
            if std::mem::replace(&mut seen[step as usize], true) {
                continue;
            }
            count += 1;
            if is_member(step) || count > SEEN {
                return false;
            }
            open.extend(self.after(step));
            if let Some(set) = self.set[step as usize] {
                open.extend(self.sets[set as usize].iter().filter(|&&step| !seen[step as usize]));
            }
        }
        true
    }

    /// Grows a set from a reduction.
    fn grow(&self, seed: u32) -> Option<Vec<u32>> {
        let frame = Frame::of(self.plan, &self.plan.steps[seed as usize], &self.limits)?;
        let mut members = vec![seed];
        // In the order in which they came, so that the last can leave again.
        let mut came = vec![seed];
        let mut refused: Vec<u32> = Vec::new();
        loop {
            let mut near: Vec<(u32, bool)> = Vec::new();
            for &member in &members {
                near.extend(self.after(member).map(|step| (step, true)));
            }
            for &member in &members {
                near.extend(self.before(member).map(|step| (self.shown(step), false)));
            }
            let fits = |&(step, goes_down): &(u32, bool)| {
                let is_new = !members.contains(&step)
                    && self.set[step as usize].is_none()
                    && !refused.contains(&step);
                let reads = self.before(step).any(|from| members.contains(&from));
                is_new && (goes_down || reads || self.pays_before(&frame, step))
            };
            let Some(next) = near.iter().filter(|next| fits(next)).find_map(|&(step, _)| {
                let mut with = members.clone();
                with.push(step);
                // With the reshapes through which the set reads it.
                with.extend(self.after(step).filter(|&shown| {
                    is_reshape(&self.plan.steps[shown as usize])
                        && self.after(shown).any(|reader| members.contains(&reader))
                }));
                with.sort_unstable();
                with.dedup();
                let build = Build::new(self.plan, &frame, &self.made, &with)?;
                let is_small = build.stages.len() <= self.limits.stages
                    && build.levels().into_iter().max() <= Some(self.limits.passes);
                (is_small && self.is_closed(&with)).then_some(with)
            }) else {
                break;
            };
            refused.clear();
            came.extend(next.iter().filter(|step| !members.contains(step)));
            members = next;
        }
        while came.len() > 1 {
            if self.merge(&frame, &members).is_some() {
                return Some(members);
            }
            let last = came.pop()?;
            members.retain(|&step| step != last);
        }
        None
    }

    /// The steps that replace a set; `None` where they would not be faster, or cannot be.
    fn merge(&self, frame: &Frame, members: &[u32]) -> Option<Vec<Step>> {
        let plan = self.plan;
        let build = Build::new(plan, frame, &self.made, members)?;
        let levels = build.levels();
        let wide = |(stage, level): (&Stage, &usize)| {
            matches!(stage, Stage::Map { is_wide: true, .. }) && *level > 0
        };
        // Rows without gaps are summed as fast here as by a step of its own.
        let is_any = frame.is_trailing() || build.stages.iter().zip(&levels).any(wide);
        if build.stages.len() < 2 || !is_any || !self.is_closed(members) {
            return None;
        }
        let mut outside: SmallVec<[u32; 4]> = SmallVec::new();
        let mut results: SmallVec<[u32; 2]> = SmallVec::new();
        let mut cut = Cut::Result;
        for &i in members.iter().rev() {
            let step = &plan.steps[i as usize];
            let mut goes_out = false;
            for &slot in &step.results {
                let mut is_read = self.is_result[slot as usize];
                for reader in &self.readers[slot as usize] {
                    if !members.contains(reader) {
                        let name = plan.steps[*reader as usize].name_of_work();
                        cut = stronger(cut, Cut::Opaque(name));
                        is_read = true;
                    }
                    is_read |= outside.contains(reader);
                }
                if is_read && !is_movement(step) {
                    results.push(slot);
                }
                goes_out |= is_read;
            }
            if goes_out && is_movement(step) {
                outside.push(i);
            }
        }
        outside.reverse();
        results.reverse();
        // Rows that share a word of memory would have to be written together.
        let shares = |&slot: &u32| {
            let (size, is_wide) = (plan.slots[slot as usize].dtype.size(), build.values[&slot].1);
            let is_whole = frame.run().is_some_and(|run| run.is_multiple_of(4));
            size < 4 && !(is_wide && frame.is_trailing() && is_whole)
        };
        let bound = build.sources.len() + results.len() + usize::from(build.picked.is_some());
        if results.is_empty() || results.iter().any(shares) || bound > plan.target.limits().buffers
        {
            return None;
        }
        let mut all = vec![self.step(frame, members, build, &results, cut)];
        all.extend(outside.iter().map(|&i| plan.steps[i as usize].clone()));
        Some(all)
    }

    fn step(
        &self,
        frame: &Frame,
        members: &[u32],
        build: Build<'_>,
        results: &[u32],
        cut: Cut,
    ) -> Step {
        let plan = self.plan;
        let steps = || members.iter().map(|&i| &plan.steps[i as usize]);
        let mut nodes: SmallVec<[_; 4]> = steps().flat_map(|step| step.nodes.clone()).collect();
        nodes.sort_unstable_by_key(|id| id.0);
        // Refusals speak of the line of the op that refuses.
        let refuses = |step: &&Step| matches!(&step.work, Work::Op(op) if op.refuses());
        let site = steps().find(refuses).or_else(|| steps().next_back());
        let arrays: Vec<DType> =
            build.sources.iter().map(|&source| plan.ty(source).dtype).collect();
        // Elements of other columns are picked while results are written.
        let is_picked =
            (build.stages.iter()).any(|stage| matches!(stage, Stage::Pick { is_own: true, .. }));
        let program = RowProgram {
            results: results.iter().map(|slot| build.values[slot]).collect(),
            stages: build.stages,
            arrays,
            names: build.names.join(", "),
        };
        let hidden = steps()
            .filter(|step| !is_movement(step))
            .flat_map(|step| step.results.iter())
            .filter(|slot| !results.contains(slot))
            .map(|&slot| (plan.slots[slot as usize].dtype, plan.slots[slot as usize].shape.clone()))
            .collect();
        let fusion = RowFusion {
            program: Arc::new(program),
            sizes: frame.sizes.clone(),
            columns: frame.columns.clone(),
            shapes: build.shapes,
            spent: (build.strays.iter().zip(&build.sources))
                .map(|(&strays, &source)| {
                    !strays && !is_picked && plan.ty(source).shape.same(&frame.sizes)
                })
                .collect(),
            hidden,
        };
        let numbers = build.numbers.into_iter().map(Operand::Number);
        let template = StepTemplate {
            args: build.sources.iter().map(|&x| Operand::Array(x)).chain(numbers).collect(),
            results: results.iter().copied().collect(),
            cut,
            nodes,
            site: site.map_or_else(Default::default, |step| step.site),
        };
        Step::new(Work::RowFusion(Box::new(fusion)), template)
    }
}

impl Plan {
    /// Joins steps that compute rows, where the target offers that.
    pub(in crate::schedule) fn fuse_rows(&mut self) {
        let Some(limits) = self.target.limits().rows else { return };
        let mut search = Search::new(self, limits);
        let is_seed = |&i: &u32| matches!(&self.steps[i as usize].work, Work::Op(Op::Reduce(..)));
        let mut seeds: Vec<u32> = (0..self.steps.len() as u32).filter(is_seed).collect();
        // Rows that lie without gaps first, and a single row, which sums what others give, last.
        seeds.sort_by_key(|&i| {
            let frame = Frame::of(self, &self.steps[i as usize], &limits);
            frame.map_or((true, true), |frame| {
                (frame.rows().elements() == Dim::ONE, !frame.is_trailing())
            })
        });
        let mut taken: Vec<Option<Vec<Step>>> = (0..self.steps.len()).map(|_| None).collect();
        for seed in seeds {
            if search.set[seed as usize].is_some() {
                continue;
            }
            let Some(members) = search.grow(seed) else { continue };
            let frame = Frame::of(self, &self.steps[seed as usize], &limits);
            let Some(steps) = frame.and_then(|frame| search.merge(&frame, &members)) else {
                continue;
            };
            for &member in &members {
                taken[member as usize] = Some(Vec::new());
                search.set[member as usize] = Some(search.sets.len() as u32);
            }
            if let Some(&last) = members.last() {
                taken[last as usize] = Some(steps);
            }
            search.sets.push(members);
        }
        if search.sets.is_empty() {
            return;
        }
        let steps = self.steps.drain(..).zip(taken);
        let all: Vec<Step> =
            steps.flat_map(|(step, taken)| taken.unwrap_or_else(|| vec![step])).collect();
        let order = Graph::new(&all, self.slots.len()).by_key(|step| step);
        self.steps = all;
        self.reorder(&order);
        self.drop_unread();
    }
}
