//! Which values of a plan lie with their channels innermost.
//!
//! Some convolutions read and write images faster so ([`ChannelsLast`]). A value lies so if its step
//! writes it so at no cost, every step that reads it takes it so, and some convolution gains from
//! that, directly or behind groups. What enters and leaves a plan lies in C order, so no value is
//! copied for its layout: the first convolution writes its result in the new order, and the last
//! reads its operand in it. Layouts decide no bits.

use super::liveness::arrays;
use super::{Placement, Plan, Source, Step, Work};
use crate::layout::Layout;
use crate::ops::op::Op;
use crate::target::ChannelsLast;

/// By slot: whether its channels lie innermost.
pub(super) fn channels_last(plan: &Plan) -> Vec<bool> {
    let offers: Vec<ChannelsLast> = plan.steps.iter().map(|step| offer(plan, step)).collect();
    let mut last = vec![false; plan.slots.len()];
    if !offers.iter().any(|&offer| gains(offer)) {
        return last;
    }
    for (step, &offer) in plan.steps.iter().zip(&offers) {
        let can = matches!(step.work, Work::Group(_)) || offer != ChannelsLast::Never;
        for &slot in &step.results {
            let shape = &plan.slots[slot as usize].shape;
            last[slot as usize] = can && shape.is_known() && shape.rank() > 2;
        }
    }
    for source in &plan.template.outputs {
        if let Source::Slot(slot) = *source {
            last[slot as usize] = false;
        }
    }
    // What one step or its readers cannot have may keep others from having theirs.
    loop {
        let before = last.clone();
        let wanted = wanted(plan, &offers, &last);
        for (step, &offer) in plan.steps.iter().zip(&offers) {
            let sources = arrays(step);
            let lies = |last: &[bool], source: &Source| match *source {
                Source::Slot(slot) => last[slot as usize],
                Source::Input(_) | Source::Constant(_) => false,
            };
            // Results of a step all lie one way.
            let keeps = match (&step.work, offer) {
                (Work::Group(group), _) => sources
                    .iter()
                    .any(|source| lies(&last, source) && plan.ty(*source).shape.same(&group.shape)),
                (_, ChannelsLast::Both) => lies(&last, &sources[0]),
                _ => true,
            };
            let all = step.results.iter().all(|&slot| last[slot as usize] && wanted[slot as usize]);
            if !keeps || !all {
                step.results.iter().for_each(|&slot| last[slot as usize] = false);
            }
            for (k, source) in sources.iter().enumerate() {
                if let Source::Slot(slot) = *source
                    && !reads(step, offer, k, &last)
                {
                    last[slot as usize] = false;
                }
            }
        }
        if last == before {
            return last;
        }
    }
}

impl Plan {
    /// Whether a value that is computed lies with its channels innermost.
    pub fn is_channels_last(&self, slot: u32) -> bool {
        let shape = &self.slots[slot as usize].shape;
        match self.memory.placements.get(slot as usize) {
            Some(Placement::Fixed(_, layout)) if !layout.is_contiguous() && shape.rank() > 2 => {
                layout.strides() == Layout::channels_last(shape).strides()
            }
            Some(Placement::Fixed(..) | Placement::Loose) | None => false,
        }
    }
}

/// How the convolution of a step takes to channels that are innermost.
fn offer(plan: &Plan, step: &Step) -> ChannelsLast {
    let op = match &step.work {
        Work::Op(op @ Op::Conv(..)) => op,
        Work::Product(product) if matches!(product.op, Op::Conv(..)) => &product.op,
        Work::Op(_)
        | Work::Product(_)
        | Work::Group(_)
        | Work::BlockFusion(_)
        | Work::RowFusion(_)
        | Work::ControlFlow(_)
        | Work::Effect(_)
        | Work::Alias => return ChannelsLast::Never,
    };
    match arrays(step).as_slice() {
        &[x, w, ..] => {
            let (x, w) = (plan.ty(x), plan.ty(w));
            match x.shape.is_known() && w.shape.is_known() {
                true => plan.target.channels_last(op, &x, &w),
                false => ChannelsLast::Never,
            }
        }
        _ => ChannelsLast::Never,
    }
}

fn gains(offer: ChannelsLast) -> bool {
    matches!(offer, ChannelsLast::Gains | ChannelsLast::Both)
}

/// Whether a step takes its `k`-th array with channels innermost.
fn reads(step: &Step, offer: ChannelsLast, k: usize, last: &[bool]) -> bool {
    let writes = || !step.results.is_empty() && step.results.iter().all(|&y| last[y as usize]);
    match &step.work {
        Work::Group(_) => writes(),
        Work::Op(Op::Reduce(_, axes)) => axes.iter().all(|&axis| axis > 1),
        Work::Op(_) | Work::Product(_) => match (k, offer) {
            (_, ChannelsLast::Never) | (1, _) => false,
            (0, ChannelsLast::Gains) => true,
            (0, ChannelsLast::Writes) => false,
            // The operands of an epilogue.
            (0, ChannelsLast::Both) | (2.., _) => writes(),
        },
        Work::BlockFusion(_)
        | Work::RowFusion(_)
        | Work::ControlFlow(_)
        | Work::Effect(_)
        | Work::Alias => false,
    }
}

/// By slot: whether some convolution gains from channels that lie innermost, or writes such a value
/// for a reduction to read.
fn wanted(plan: &Plan, offers: &[ChannelsLast], last: &[bool]) -> Vec<bool> {
    let mut wanted = vec![false; plan.slots.len()];
    let (mut reduced, mut pulled) = (vec![false; plan.slots.len()], Vec::new());
    for (step, &offer) in plan.steps.iter().zip(offers).rev() {
        for &slot in &step.results {
            wanted[slot as usize] |= gains(offer) && reduced[slot as usize];
        }
        let result = step.results.iter().any(|&y| last[y as usize] && wanted[y as usize]);
        pulled.clear();
        match &step.work {
            Work::Group(_) => pulled.extend(arrays(step).into_iter().filter(|_| result)),
            Work::Op(Op::Reduce(..)) => {
                for source in arrays(step) {
                    if let Source::Slot(slot) = source {
                        reduced[slot as usize] = true;
                    }
                }
            }
            Work::Op(_) | Work::Product(_) => {
                let sources = arrays(step).into_iter().enumerate();
                pulled.extend(sources.filter_map(|(k, source)| {
                    let pulls = if k == 0 { gains(offer) } else { k > 1 && result };
                    pulls.then_some(source)
                }));
            }
            Work::BlockFusion(_)
            | Work::RowFusion(_)
            | Work::ControlFlow(_)
            | Work::Effect(_)
            | Work::Alias => {}
        }
        for source in &pulled {
            if let Source::Slot(slot) = *source {
                wanted[slot as usize] = true;
            }
        }
    }
    wanted
}
