//! Donation: which results may be written over inputs that nobody reads after the run.
//!
//! No step may fail once donated memory is written. So a pair shares memory only if every step that
//! may fail runs before. Puts by index are exempt: their indices are checked before donated memory
//! is first written, and then they cannot fail.

use rustc_hash::FxHashMap;

use super::liveness::{Liveness, arrays, makers, same};
use super::{Options, Plan, Source, Work};
use crate::layout::Layout;
use crate::target::InPlace;

/// The donated pairs that share memory in this order of steps, by the storage of the output; and the
/// position of the first step that writes donated memory. All indices of puts that run there or later
/// are computed before.
pub(super) fn aliases(
    plan: &Plan,
    liveness: &Liveness,
    position: &[u32],
    options: Options<'_>,
) -> (FxHashMap<u32, (u32, u32)>, u32) {
    let mut found: FxHashMap<u32, (u32, u32)> = FxHashMap::default();
    if options.donated.is_empty() {
        return (found, 0);
    }
    // Inputs that a result is a view of, and inputs whose memory is taken already.
    let mut taken = vec![false; plan.inputs.len()];
    plan.template.outputs.iter().filter_map(|&source| liveness.input(source)).for_each(|i| {
        taken[i as usize] = true;
    });
    let written = |&(_, output): &(u32, u32)| {
        let s = liveness.storage(plan.template.outputs[output as usize])?;
        Some(position[liveness.storages[s as usize].def as usize])
    };
    let first = options.donated.iter().filter_map(written).min().unwrap_or(0);
    // Indices that are not computed before `first` cannot be checked in time: their step counts as
    // one that may fail.
    let makers = if liveness.guarded.is_empty() {
        Vec::new()
    } else {
        makers(&plan.steps, plan.slots.len())
    };
    let is_late = |&&step: &&u32| {
        liveness.indices(plan, step).any(|slot| position[makers[slot as usize] as usize] >= first)
    };
    let late = liveness.guarded.iter().filter(is_late).map(|&step| step as usize);
    let fallible = (0..plan.steps.len()).filter(|&step| liveness.fallible[step]);
    let last_failure = fallible.chain(late).map(|step| position[step]).max();
    for &(input, output) in options.donated {
        let Source::Slot(slot) = plan.template.outputs[output as usize] else { continue };
        let Some(s) = liveness.owned(slot) else { continue };
        let storage = &liveness.storages[s as usize];
        let at = position[storage.def as usize];
        let reads_before = liveness.input_readers[input as usize].iter().all(|&step| {
            position[step as usize] < at
                || (step == storage.def && reads_in_place(plan, liveness, step, input))
        });
        if last_failure.is_none_or(|last| at > last)
            && same(&plan.inputs[input as usize], &plan.slots[slot as usize])
            && liveness.roots[slot as usize].1.as_ref().is_some_and(Layout::is_contiguous)
            && !taken[input as usize]
            && reads_before
            && !found.contains_key(&s)
            && is_checked(&plan.steps[storage.def as usize].work)
        {
            taken[input as usize] = true;
            found.insert(s, (input, output));
        }
    }
    // Not every pair found a place: what writes memory of its own is no write of donated memory.
    let written = |&s: &u32| position[liveness.storages[s as usize].def as usize];
    let first = found.keys().map(written).min().unwrap_or(0);
    (found, first)
}

/// Whether a target may look before a step writes whether something has failed. Invocations that
/// wait for each other can not all leave before.
fn is_checked(work: &Work) -> bool {
    match work {
        Work::RowFusion(_) => false,
        Work::Group(_)
        | Work::Product(_)
        | Work::BlockFusion(_)
        | Work::Op(_)
        | Work::ControlFlow(_)
        | Work::Effect(_)
        | Work::Alias => true,
    }
}

/// Whether a step reads an input only element by element, no later than it writes the result there.
pub(super) fn reads_in_place(plan: &Plan, liveness: &Liveness, step: u32, input: u32) -> bool {
    let step = &plan.steps[step as usize];
    let shows = |&source: &Source| liveness.input(source) == Some(input);
    let (direct, sources) = (Source::Input(input), arrays(step));
    match &step.work {
        Work::Group(group) => {
            group.shape.same(&plan.inputs[input as usize].shape)
                && sources.iter().all(|source| !shows(source) || *source == direct)
        }
        Work::BlockFusion(fusion) => {
            let mut at = sources.iter().enumerate();
            at.all(|(i, source)| !shows(source) || (*source == direct && fusion.spends(i)))
        }
        Work::RowFusion(fusion) => {
            let mut at = sources.iter().enumerate();
            at.all(|(i, source)| !shows(source) || (*source == direct && fusion.spends(i)))
        }
        Work::Op(op) => match plan.target.in_place(op) {
            InPlace::Any => sources.iter().all(|source| !shows(source) || *source == direct),
            InPlace::First => sources[0] == direct && !sources[1..].iter().any(shows),
            InPlace::Nowhere => false,
        },
        Work::Product(_) | Work::ControlFlow(_) | Work::Effect(_) | Work::Alias => false,
    }
}
