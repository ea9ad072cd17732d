//! Plans within a memory budget, by rematerialisation.
//!
//! A plan says what is alive when too much is; what to compute again for that is chosen
//! ([`choose`](super::choose)), the list is written anew ([`remat`](crate::passes::remat)) and
//! planned; as long as that helps, it is repeated. Passes over memory are computed again first,
//! products and sorts only where that was not enough.

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

/// How often a list is planned anew.
const ROUNDS: usize = 40;

/// How often the part of the excess that is tried to save at once is halved where that did not help;
/// then what was chosen stays as it is.
const HALVINGS: u32 = 3;

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
    list: List,
    /// Its plan for all sizes
    template: Plan,
    /// Its plan for the sizes it was made for, where that is another
    sized: Option<Plan>,
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

    /// Notes in the plans what is computed again, and the peak `before`.
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

/// What was chosen to be computed again.
struct Chosen {
    when: Vec<u32>,
    again: BTreeMap<u32, Again>,
    most: isize,
}

/// How far the search is.
#[derive(Default)]
struct Search {
    /// Values that are not computed again, since that did not help
    banned: FxHashSet<Id>,
    /// Whether products and sorts may be
    expensive: bool,
    halved: u32,
}

impl Search {
    /// What to compute again next; none where the plan fits, or nothing can be.
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
