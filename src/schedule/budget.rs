//! Plans within a memory budget, by rematerialisation.
//!
//! A plan says what is alive where it exceeds the budget. [`choose`](super::choose) chooses what to
//! compute again, [`remat`](crate::passes::remat) rewrites the list, and the list is planned again.
//! This is repeated as long as it helps. Passes over memory are computed again first, products and
//! sorts only where that was not enough.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::choose::Model;
use super::{Options, Plan};
use crate::error::Result;
use crate::graph::List;
use crate::ops::emit::Id;
use crate::passes::cost;
use crate::passes::remat::{Again, recomputed};
use crate::shape::Dim;

/// The most times that a list is planned again.
const ROUNDS: usize = 40;

/// Each round tries to save a share of the excess. Where that does not help, the share is halved,
/// at most this often; after that, the chosen values are not computed again.
const HALVINGS: u32 = 3;

/// The rematerialisation in a plan, and its effect.
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

/// A list with rematerialised nodes, and its plans.
pub struct Within {
    /// The list that is planned
    list: List,
    /// Its plan for all sizes
    template: Plan,
    /// Its plan for the sizes it was made for, where that is another plan
    sized: Option<Plan>,
}

impl Plan {
    /// Plans a list so that at these sizes it needs at most `budget` bytes, by computing values
    /// again that it cannot keep; or as few bytes as were found.
    pub fn within(
        list: &List,
        options: Options<'_>,
        size: &dyn Fn(Dim) -> Dim,
        budget: usize,
    ) -> Result<Within> {
        let mut best = Within::new(list.clone(), options, size)?;
        let before = best.plan().peak_bytes();
        let mut search = Search::default();
        for _ in 0..ROUNDS {
            let Some(chosen) = search.choose(&best, size, budget) else { break };
            let Some(list) = recomputed(&best.list, &chosen.when, &chosen.again) else { break };
            let next = Within::new(list, options, size)?;
            let most = Model::new(&next.list, next.plan(), size).most();
            let now = (best.plan().peak_bytes(), chosen.most);
            let helped = (next.plan().peak_bytes(), most) < now;
            search.note(&chosen, helped);
            if helped {
                best = next;
            }
        }
        best.tell(list, before);
        Ok(best)
    }
}

impl Within {
    fn new(list: List, options: Options<'_>, size: &dyn Fn(Dim) -> Dim) -> Result<Within> {
        let template = Plan::of(&list, options)?;
        let sized = match template.is_known() {
            true => None,
            false => Some(template.resized(size)?),
        };
        Ok(Within { list, template, sized })
    }

    /// Its plan for the sizes it was made for.
    fn plan(&self) -> &Plan {
        self.sized.as_ref().unwrap_or(&self.template)
    }

    /// The list, its plan for all sizes and that for the sizes it was made for.
    pub fn parts(self) -> (List, Arc<Plan>, Arc<Plan>) {
        let template = Arc::new(self.template);
        let sized = self.sized.map_or_else(|| template.clone(), Arc::new);
        (self.list, template, sized)
    }

    /// Records the rematerialisation in the plans, with the peak `before`.
    fn tell(&mut self, list: &List, before: usize) {
        let (old, new) = (cost::of_list(list), cost::of_list(&self.list));
        let made = Recomputed {
            nodes: self.list.nodes.len().saturating_sub(list.nodes.len()),
            flops: new.flops.saturating_sub(old.flops),
            before,
            after: self.plan().peak_bytes(),
        };
        self.template.recomputed = Some(made);
        if let Some(plan) = &mut self.sized {
            plan.recomputed = Some(made);
        }
    }
}

/// The nodes chosen to be computed again.
struct Chosen {
    when: Vec<u32>,
    again: BTreeMap<u32, Again>,
    most: isize,
}

/// The state of the search.
#[derive(Default)]
struct Search {
    /// Values that are not computed again, since that did not help
    banned: FxHashSet<Id>,
    /// Whether products and sorts may be computed again
    expensive: bool,
    halved: u32,
}

impl Search {
    /// What to compute again next; `None` where the plan fits, or where nothing more can be
    /// computed again.
    fn choose(&mut self, now: &Within, size: &dyn Fn(Dim) -> Dim, budget: usize) -> Option<Chosen> {
        let excess = now.plan().peak_bytes().checked_sub(budget).filter(|&excess| excess > 0)?;
        loop {
            let mut model = Model::new(&now.list, now.plan(), size);
            let (most, part) = (model.most(), excess.div_ceil(1 << self.halved) as isize);
            let target = (most - part).max(0);
            let again = model.choose(target, self.expensive, &self.banned);
            if !again.is_empty() {
                return Some(Chosen { when: model.when, again, most });
            }
            if std::mem::replace(&mut self.expensive, true) {
                return None;
            }
        }
    }

    fn note(&mut self, chosen: &Chosen, helped: bool) {
        if helped {
            self.banned.clear();
            self.halved = self.halved.saturating_sub(1);
        } else if self.halved < HALVINGS {
            self.halved += 1;
        } else {
            self.banned.extend(chosen.again.values().flat_map(|again| again.nodes.iter().copied()));
            self.halved = 0;
        }
    }
}
