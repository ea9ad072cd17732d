//! Plans within a budget: what does not fit is computed again.
//!
//! A plan says what is alive when too much is; what to compute again for that is chosen
//! ([`choose`](super::choose)), the list is written anew ([`remat`](crate::passes::remat)) and
//! planned; as long as that helps, it is repeated. Passes over memory are computed again first,
//! products and sorts only where that was not enough.

use rustc_hash::FxHashSet;

use super::choose::Model;
use super::{Options, Plan};
use crate::error::Result;
use crate::graph::List;
use crate::ops::emit::Id;
use crate::passes::cost;
use crate::passes::remat::recomputed;
use crate::shape::Dim;

/// How often a list is planned anew.
const ROUNDS: usize = 40;

/// How often choices that did not help are given up before the search ends.
const FAILURES: usize = 4;

/// What is computed again in a plan, and what that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recomputed {
    /// Nodes that run again
    pub nodes: usize,
    /// Operations on elements that they add
    pub flops: u64,
    /// Peak bytes without and with them, for the sizes that they were chosen for
    #[allow(missing_docs)]
    pub before: usize,
    #[allow(missing_docs)]
    pub after: usize,
}

/// A list some of which is computed again, with its plans.
pub struct Within {
    /// The list that is planned
    pub list: List,
    /// Its plan for all sizes
    pub template: Plan,
    /// Its plan for the sizes it was made for
    pub plan: Plan,
}

impl Plan {
    /// A plan of a list for sizes that needs at most `budget` bytes because it computes again what it
    /// cannot keep, or as near to that as was found.
    pub fn within(
        list: &List,
        options: Options<'_>,
        size: &dyn Fn(Dim) -> Dim,
        budget: usize,
    ) -> Result<Within> {
        let before = Plan::of(list, options)?;
        let plan = before.resized(size);
        let first = plan.peak_bytes();
        let mut best = Within { list: list.clone(), template: before, plan };
        let (mut banned, mut dear, mut failures): (FxHashSet<Id>, _, _) =
            (FxHashSet::default(), false, 0);
        for _ in 0..ROUNDS {
            let peak = best.plan.peak_bytes();
            if peak <= budget || failures == FAILURES {
                break;
            }
            let mut model = Model::new(&best.list, &best.plan, size);
            let target = model.most() - (peak - budget) as isize;
            let chosen = model.choose(target.max(0), dear, &banned);
            if chosen.is_empty() {
                if std::mem::replace(&mut dear, true) {
                    break;
                }
                continue;
            }
            let (list, _) = recomputed(&best.list, &model.when, &chosen);
            let template = Plan::of(&list, options)?;
            let plan = template.resized(size);
            if plan.peak_bytes() < peak {
                best = Within { list, template, plan };
                banned.clear();
            } else {
                banned.extend(chosen.values().flat_map(|again| again.nodes.iter().copied()));
                failures += 1;
            }
        }
        let (old, new) = (cost::of_list(list), cost::of_list(&best.list));
        let made = Recomputed {
            nodes: best.list.nodes.len().saturating_sub(list.nodes.len()),
            flops: new.flops.saturating_sub(old.flops),
            before: first,
            after: best.plan.peak_bytes(),
        };
        best.template.recomputed = Some(made);
        best.plan.recomputed = Some(made);
        Ok(best)
    }
}
