//! The one table of executors, and eager ops on the device of their operands.
//!
//! Ops reach their device by a match, so that an eager op on the CPU is a call of its kernel. Values lie
//! in host memory, so all are the CPU's; what works on host memory whatever the device is named here
//! too.

use std::sync::Arc;

use smallvec::SmallVec;

use super::tape;
use crate::array::Array;
use crate::cpu;
use crate::cpu::target::Cpu;
use crate::dtype::Scalar;
use crate::error::{self, Result};
use crate::executor::{Executable, Executor, Input, Results, admit as admit_on};
use crate::graph::Graph;
use crate::ops::elementwise::Elementwise;
use crate::ops::op::{Op, OperandType};
use crate::reference::plan::Reference;
use crate::schedule::Plan;
use crate::target::Target;

pub use crate::array::Operand;
pub use crate::cpu::copy::{concat, contiguous, copy_into, memory_bits};
pub use crate::cpu::{
    add_into_slice, cast, depth, fill_i64, nonzero, scatter, threefry, write_slice,
};

/// Where values lie and ops run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// This machine's processor
    Cpu,
    /// Plain loops on the same memory, for comparison: no value lies there
    Reference,
}

impl Device {
    /// The device of an op's operands.
    #[inline(always)]
    fn of<T>(_: &[T]) -> Device {
        Device::Cpu
    }
}

/// The executor of a device.
pub fn executor(device: Device) -> &'static dyn Executor {
    match device {
        Device::Cpu => &Cpu,
        Device::Reference => &Reference,
    }
}

/// What plans are made for.
pub fn target() -> &'static dyn Target {
    executor(Device::Cpu).target()
}

/// Refuses an op that is recorded, if the device of its operands has no kernel for it. Executors ask
/// themselves when they run an op at once; the CPU need not, since it has all that rules allow.
#[inline(always)]
pub fn admit(op: &Op, args: &[tape::Operand<'_>]) -> Result<()> {
    match Device::of(args) {
        Device::Cpu => Ok(()),
        device @ Device::Reference => {
            let operands: SmallVec<[OperandType<'_>; 4]> =
                args.iter().map(|arg| arg.ty()).collect();
            admit_on(executor(device).target(), op, &operands)
        }
    }
}

/// One elementwise op on promoted operands.
#[inline(always)]
pub fn map(def: &'static Elementwise, args: &[Operand<'_>]) -> Result<Array> {
    match Device::of(args) {
        Device::Cpu => cpu::map(def, args),
        Device::Reference => Reference.execute(&Op::Map(def), args),
    }
}

/// The same into an array of the result's type.
///
/// # Safety
/// `out` has the type that the op gives for `args`, its buffer is fresh or held by one operand's value
/// alone, and nobody reads or writes it meanwhile.
pub unsafe fn map_into(def: &Elementwise, args: &[Operand<'_>], out: &Array) -> Result<()> {
    match Device::of(args) {
        // SAFETY: as the caller's.
        Device::Cpu => unsafe { cpu::map_into(def, args, out) },
        Device::Reference => Err(error::internal("the reference writes over nothing")),
    }
}

/// One op.
pub fn execute(op: &Op, args: &[Operand<'_>]) -> Result<Array> {
    match Device::of(args) {
        Device::Cpu => cpu::execute(op, args),
        Device::Reference => Reference.execute(op, args),
    }
}

/// A plan with what runs it, which plans of other sizes share.
pub struct Planned {
    /// The plan
    pub plan: Arc<Plan>,
    executable: Arc<dyn Executable>,
}

impl Planned {
    /// A plan, lowered for its device.
    pub fn new(plan: impl Into<Arc<Plan>>) -> Result<Planned> {
        let plan = plan.into();
        let executable = executor(Device::Cpu).lower(&plan)?;
        Ok(Planned { plan, executable })
    }

    /// A plan of the same template, for other sizes.
    pub fn with_plan(&self, plan: impl Into<Arc<Plan>>) -> Planned {
        Planned { plan: plan.into(), executable: self.executable.clone() }
    }

    /// Computes the results.
    pub fn run(&self, inputs: &[&Array], numbers: &[Scalar]) -> Result<Results> {
        self.executable.run(&self.plan, inputs, numbers)
    }

    /// The same, with some results in the memory of inputs that were given for that.
    pub fn run_with(&self, inputs: &mut [Input<'_>], numbers: &[Scalar]) -> Result<Results> {
        self.executable.run_with(&self.plan, inputs, numbers)
    }
}

/// Computes the results of a graph by a plan that is made for this run.
pub fn run(graph: &Graph, inputs: &[&Array], numbers: &[Scalar]) -> Result<Results> {
    Planned::new(Plan::new(graph, target())?)?.run(inputs, numbers)
}
