//! Plans explained: steps, costs, cuts and memory, before anything runs.

use smallvec::SmallVec;

use super::{Cut, Group, Operand, Plan, Recomputed, Step, Work};
use crate::error::{self, Result};
use crate::ops::op::Type;
use crate::passes::cost;
use crate::site::Site;

/// A value that is alive when a run holds most memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Alive {
    /// The name of the step that makes it
    pub name: String,
    /// Its type
    pub ty: Type,
    /// Its bytes
    pub bytes: usize,
    /// The Python line that made it
    pub site: Site,
}

/// The most values that a refusal names.
const NAMED: usize = 5;

impl Plan {
    /// The most bytes that a run allocates at once: its arena, its results and the scratch of
    /// kernels, as [`memory::stats`](crate::memory::stats) counts them, for inputs in C order. A
    /// run may need more where [`Plan::is_open`].
    pub fn peak_bytes(&self) -> usize {
        self.memory.peak[0]
    }

    /// Whether sizes or counts of rounds that are known only during the run add to the peak.
    pub fn is_open(&self) -> bool {
        self.memory.open
    }

    /// The scratch at the peak: bytes that kernels take for themselves while they run. See
    /// [`Plan::naive_bytes`] for the results.
    pub fn scratch_bytes(&self) -> usize {
        self.memory.scratch
    }

    /// The bytes of all results, if each had a buffer of its own.
    pub fn naive_bytes(&self) -> usize {
        self.memory.naive
    }

    /// The values that are alive at the peak, largest first.
    pub fn alive_at_peak(&self) -> Vec<Alive> {
        let alive = |holder: &super::memory::Holder| {
            let step = &self.steps[holder.step as usize];
            Alive {
                name: step.name(),
                ty: self.slots[holder.slot as usize].clone(),
                bytes: holder.bytes,
                site: step.site,
            }
        };
        self.memory.alive.iter().map(alive).collect()
    }

    /// The operations of a step; 0 where its sizes are open, and for control flow, effects and
    /// aliases.
    pub fn flops(&self, step: &Step) -> u64 {
        let Some(result) = step.results.first().map(|&slot| &self.slots[slot as usize]) else {
            return 0;
        };
        if !result.shape.is_known() {
            return 0;
        }
        let each = |group: &Group| (group.len() * group.shape.count()) as u64;
        let types = |count: usize| -> SmallVec<[Option<Type>; 4]> {
            let ty = |arg: &Operand| match *arg {
                Operand::Array(source) => Some(self.ty(source)),
                Operand::Number(_) => None,
            };
            step.args.iter().take(count).map(ty).collect()
        };
        match &step.work {
            Work::Group(group) => each(group),
            Work::Op(op) => cost::of_call(op, &types(usize::MAX), result).flops,
            Work::Product(product) => {
                let types: [Option<Type>; 2] =
                    std::array::from_fn(|k| self.factor(product, step, k));
                let own = cost::of_call(&product.op, &types, result).flops;
                own + product.groups().map(each).sum::<u64>()
            }
            Work::BlockFusion(fusion) => {
                let body = fusion.body();
                let block: u64 = body.steps().iter().map(|step| body.flops(step)).sum();
                block * fusion.blocks() as u64
            }
            Work::RowFusion(fusion) => fusion.flops(),
            Work::ControlFlow(_) | Work::Effect(_) | Work::Alias => 0,
        }
    }

    /// Refuses a plan that needs more than `bytes` bytes. The error names the largest values at the
    /// peak and the Python lines that made them, as `spell` writes lines.
    pub fn check_budget(&self, bytes: usize, spell: &dyn Fn(Site) -> Option<String>) -> Result<()> {
        let peak = self.peak_bytes();
        if peak <= bytes {
            return Ok(());
        }
        let mut refusal = error::over_budget(peak, bytes);
        for value in self.alive_at_peak().iter().take(NAMED) {
            let at = spell(value.site).map(|line| format!(" made at {line}")).unwrap_or_default();
            let Alive { name, ty, bytes, .. } = value;
            let ty = format!("{} {}", ty.dtype, ty.shape);
            refusal = refusal.note(format!("{bytes} bytes: {name} {ty}{at}"));
        }
        if let Some(Recomputed { nodes, before, .. }) = self.recomputed {
            let what = format!("computing {nodes} nodes again brought it down from {before} bytes");
            refusal = refusal.note(what);
        }
        Err(refusal)
    }
}

impl Step {
    /// The name of the step: of a fusion, the ops in it.
    pub fn name(&self) -> String {
        match &self.work {
            Work::Group(group) => group.program.names(),
            Work::Product(product) => product.name(),
            Work::BlockFusion(fusion) => {
                let steps = fusion.steps().iter().map(Step::name);
                let carried = fusion.reductions().map(|kind| kind.name().to_string());
                let names: Vec<String> = steps.chain(carried).collect();
                format!("block fusion ({})", names.join(", "))
            }
            Work::RowFusion(fusion) => format!("row fusion ({})", fusion.program.names()),
            Work::Op(_) | Work::ControlFlow(_) | Work::Effect(_) | Work::Alias => {
                self.name_of_work().into()
            }
        }
    }

    /// The name of the kind of work.
    pub(super) fn name_of_work(&self) -> &'static str {
        match &self.work {
            Work::Group(..) => "group",
            Work::Product(product) => product.op.name(),
            Work::BlockFusion(_) => "block fusion",
            Work::RowFusion(_) => "row fusion",
            Work::Op(op) => op.name(),
            Work::ControlFlow(bodies) => bodies.kind().name(),
            Work::Effect(effect) => effect.name(),
            Work::Alias => "barrier",
        }
    }

    /// Why the fusion ends where it does; `None` for a step that is no fusion.
    pub fn reason(&self) -> Option<Cut> {
        match &self.work {
            Work::Group(..) | Work::BlockFusion(_) | Work::RowFusion(_) => Some(self.cut),
            Work::Product(product) => product.after.is_some().then_some(self.cut),
            Work::Op(_) | Work::ControlFlow(_) | Work::Effect(_) | Work::Alias => None,
        }
    }
}
