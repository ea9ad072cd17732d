//! The one table of executors, and eager ops on the device of their operands.
//!
//! Ops on host memory are calls of the CPU's kernels. What else an operand may be (a node of a
//! trace, a value of another device) is found by one look at each operand, which these ops need
//! anyway; ops on other devices go to the executor of the device ([`execute_on`]).

use std::sync::Arc;

use smallvec::SmallVec;

use super::site;
use crate::array::{Array, Where};
use crate::cpu;
use crate::cpu::target::Cpu;
use crate::dtype::Scalar;
use crate::error::{self, Error, Result};
use crate::executor::{Executable, Executor, Input, Results, admit as admit_on};
use crate::gpu;
use crate::graph::{Graph, Host};
use crate::memory;
use crate::ops::declare::Kernel;
use crate::ops::elementwise::Elementwise;
use crate::ops::op::{self, Op, OperandType, Type};
use crate::reference::plan::Reference;
use crate::schedule::Plan;
use crate::target::Target;

pub use crate::array::Operand;
pub use crate::cpu::copy::{cast_into, concat, contiguous, copy_into, memory_bits};
pub use crate::cpu::{
    Few, add_into_slice, cast, cheaper, computes_in, depth, fill_i64, map_type, nonzero, run_group,
    scatter, threefry, write_at, write_slice,
};
pub use crate::device::{self, Description, Device};
pub use crate::reference::defer;

/// The executor of a device.
pub fn executor(device: Device) -> &'static dyn Executor {
    match device {
        Device::Cpu => &Cpu,
        Device::Reference => &Reference,
        Device::Gpu(index) => gpu::executor(index),
    }
}

/// What plans for a device are made for.
pub fn target(device: Device) -> &'static dyn Target {
    executor(device).target()
}

/// Refuses allocations on a device beyond so many bytes.
pub fn set_memory_limit(device: Device, limit: Option<usize>) -> Result<()> {
    match device {
        Device::Cpu | Device::Reference => memory::set_limit(limit),
        Device::Gpu(index) => gpu::set_memory_limit(index, limit)?,
    }
    Ok(())
}

/// Starts measuring the most bytes of a device anew.
pub fn reset_peak(device: Device) {
    match device {
        Device::Cpu | Device::Reference => memory::reset_peak(),
        Device::Gpu(index) => gpu::reset_peak(index),
    }
}

/// Makes a device count as lost, if it can be. For tests.
pub fn lose(device: Device, why: &str) {
    match device {
        Device::Cpu | Device::Reference => {}
        Device::Gpu(index) => gpu::lose(index, why),
    }
}

/// Refuses an op that is recorded, if the device of its operands has no kernel for it. Executors
/// ask themselves when they run an op at once; the CPU need not, since it has all that rules allow.
#[inline(always)]
pub fn admit<'a>(
    device: Device,
    op: &Op,
    types: impl Iterator<Item = OperandType<'a>>,
) -> Result<()> {
    match device {
        Device::Cpu => Ok(()),
        // A composite without a kernel is the ops of its body, which whoever plans them asks for.
        Device::Reference | Device::Gpu(_) if matches!(op, Op::Call(_)) => Ok(()),
        Device::Reference | Device::Gpu(_) => {
            let operands: SmallVec<[OperandType<'_>; 4]> = types.collect();
            admit_on(executor(device).target(), op, &operands)
        }
    }
}

/// One elementwise op on promoted operands in host memory.
#[inline(always)]
pub fn map(def: &'static Elementwise, args: &[Operand<'_>]) -> Result<Array> {
    cpu::map(def, args)
}

/// The same into an array of the result's type.
///
/// # Safety
/// `out` has the type that the op gives for `args`, its buffer is fresh or held by one operand's
/// value alone, and nobody reads or writes it meanwhile.
pub unsafe fn map_into(def: &Elementwise, args: &[Operand<'_>], out: &Array) -> Result<()> {
    // SAFETY: as the caller's.
    unsafe { cpu::map_into(def, args, out) }
}

/// One op on operands in host memory.
pub fn execute(op: &Op, args: &[Operand<'_>]) -> Result<Array> {
    cpu::execute(op, args)
}

/// One op on operands that lie on a device, or on none.
pub fn execute_on(device: Device, op: &Op, args: &[Operand<'_>]) -> Result<Array> {
    match device {
        Device::Cpu => cpu::execute(op, args),
        Device::Reference | Device::Gpu(_) => executor(device).execute(op, args, site::current()),
    }
}

/// A value that is put where another stood, or none. Where its work fails later, the old one stands
/// there again.
#[inline]
pub fn replacing(old: Option<&Array>, new: Array) -> Array {
    match new.data.place() {
        Where::Device(_) => executor(new.device()).replacing(old, new),
        Where::Host(_) | Where::Traced(_) | Where::Busy(_) => new,
    }
}

/// Whether a value stands where none was, and its work has failed.
pub fn is_void(x: &Array) -> bool {
    match x.data.place() {
        Where::Device(_) => executor(x.device()).is_void(x),
        Where::Host(_) | Where::Traced(_) | Where::Busy(_) => false,
    }
}

/// Where compiled shaders of a GPU are kept on disk, or why they are not, and counts.
pub fn shader_cache(index: u8) -> (String, Vec<(&'static str, u64)>) {
    gpu::shader_cache(index)
}

/// Waits for what GPUs do, so that their times are known; raises nothing that data refused.
pub fn finish_timing() -> Result<()> {
    gpu::opened().try_for_each(gpu::finish)
}

/// Waits for all work that was given to a device, or to all, and raises what it refused.
pub fn synchronize(device: Option<Device>) -> Result<()> {
    if let Some(device) = device {
        return executor(device).synchronize();
    }
    let opened = Device::EVERYWHERE.into_iter().chain(gpu::opened().map(Device::Gpu));
    opened.into_iter().try_for_each(|device| executor(device).synchronize())
}

/// The devices of this machine. Drivers are asked for theirs; those in trouble have none.
pub fn devices() -> Result<Vec<Device>> {
    let gpus = (0..gpu::count()?).map(Device::Gpu);
    Ok(Device::EVERYWHERE.into_iter().chain(gpus).collect())
}

/// The device of a name, if it exists here. Drivers are asked for no other names than theirs.
pub fn named(op: &str, name: &str) -> Result<Device> {
    match Device::named(name) {
        Some(device) => present(op, device),
        None if name.starts_with("gpu") => Err(absent(op, name)),
        None => Err(error::unknown_device(op, name, gpu::KINDS)),
    }
}

/// The device, if it exists here.
pub fn present(op: &str, device: Device) -> Result<Device> {
    match device {
        Device::Cpu | Device::Reference => Ok(device),
        Device::Gpu(index) if gpu::is_present(index) => Ok(device),
        Device::Gpu(_) => Err(absent(op, device.name())),
    }
}

#[cold]
fn absent(op: &str, name: &str) -> Error {
    if let Err(trouble) = gpu::ready() {
        return trouble.of(op, name);
    }
    match devices() {
        Ok(devices) => {
            let names: Vec<&str> = devices.into_iter().map(Device::name).collect();
            error::no_gpu(op, name, format!("this machine has {}", names.join(", ")))
        }
        Err(error) => error,
    }
}

/// What is known of a device.
pub fn describe(device: Device) -> Result<Description> {
    match device {
        Device::Cpu => Ok(cpu::about::describe()),
        Device::Reference => Ok(Description {
            name: "plain loops, for comparison".into(),
            backend: "reference".into(),
            kind: "reference",
            driver: cpu::about::describe().driver,
            limits: vec![("threads", 1)],
            features: Vec::new(),
        }),
        Device::Gpu(index) => gpu::describe(index),
    }
}

/// What a device holds. The memory of the reference is host memory, and counted there.
pub fn memory_stats(device: Device) -> Result<memory::Stats> {
    match device {
        Device::Cpu | Device::Reference => Ok(memory::stats()),
        Device::Gpu(index) => gpu::memory_stats(index),
    }
}

/// The device of operands; that of new values, where none is a tensor. Refused where they differ.
pub fn common<'a>(op: &str, arrays: impl IntoIterator<Item = &'a Array>) -> Result<Device> {
    let mut found = None;
    for array in arrays {
        let device = array.device();
        if *found.get_or_insert(device) != device {
            let first = found.unwrap_or(device);
            return Err(error::devices_differ(op, first, device, device));
        }
    }
    Ok(found.unwrap_or_else(device::current))
}

/// The results of a call by a kernel, on operands in host memory; `None` where the kernel declines
/// these operands, which one with the bits of its formula may.
pub fn call(kernel: Kernel, call: &op::Call, args: &[Operand<'_>]) -> Result<Option<Results>> {
    cpu::calls::run(kernel, call, args)
}

/// The same on a device that has a kernel for the composite.
pub fn call_on(device: Device, call: &op::Call, args: &[Operand<'_>]) -> Result<Results> {
    executor(device).call(call, args, site::current())
}

/// The array on a device: itself, or a copy.
pub fn transfer(x: &Array, to: Device) -> Result<Array> {
    if x.device() == to {
        return Ok(x.clone());
    }
    let host = executor(x.device()).download(x)?;
    executor(to).upload(&host)
}

/// Whether nobody else holds the memory of an array, so that a run may write a result there.
pub fn is_sole(x: &Array) -> bool {
    executor(x.device()).is_sole(x)
}

/// The array in host memory: itself, or a copy, for which the device is waited for.
pub fn download(x: &Array) -> Result<Array> {
    transfer(x, Device::Cpu)
}

/// The arrays on a device, for a run there: keys and constants come from host memory.
fn inputs(device: Device, inputs: &[&Array]) -> Result<SmallVec<[Array; 8]>> {
    inputs.iter().map(|x| transfer(x, device)).collect()
}

/// A plan with what runs it, which plans of other sizes share.
pub struct Planned {
    /// The plan
    pub plan: Arc<Plan>,
    executable: Arc<dyn Executable>,
    device: Device,
}

impl Planned {
    /// A plan, lowered for its device.
    pub fn new(device: Device, plan: impl Into<Arc<Plan>>) -> Result<Planned> {
        let plan = plan.into();
        let executable = executor(device).lower(&plan)?;
        Ok(Planned { plan, executable, device })
    }

    /// A plan of the same template, for other sizes.
    pub fn with_plan(&self, plan: impl Into<Arc<Plan>>) -> Planned {
        Planned { plan: plan.into(), executable: self.executable.clone(), device: self.device }
    }

    /// Computes the results.
    pub fn run(&self, inputs: &[&Array], numbers: &[Scalar]) -> Result<Results> {
        if self.device == Device::Cpu {
            return self.executable.run(&self.plan, inputs, numbers);
        }
        let inputs = self::inputs(self.device, inputs)?;
        let inputs: SmallVec<[&Array; 8]> = inputs.iter().collect();
        self.executable.run(&self.plan, &inputs, numbers)
    }

    /// The same, with some results in the memory of inputs that were given for that.
    pub fn run_with(&self, inputs: &mut [Input<'_>], numbers: &[Scalar]) -> Result<Results> {
        if self.device == Device::Cpu {
            return self.executable.run_with(&self.plan, inputs, numbers);
        }
        let mut moved: SmallVec<[Option<Array>; 8]> = SmallVec::new();
        for input in inputs.iter() {
            let x = input.array()?;
            let is_there = x.device() == self.device;
            moved.push(if is_there { None } else { Some(transfer(x, self.device)?) });
        }
        let given = inputs.iter_mut().zip(&moved).map(|(input, moved)| match (input, moved) {
            (_, Some(x)) => Input::Lent(x),
            (Input::Lent(x), None) => Input::Lent(x),
            (Input::Given(x), None) => Input::Given(x.take()),
        });
        let mut given: SmallVec<[Input<'_>; 8]> = given.collect();
        let found = self.executable.run_with(&self.plan, &mut given, numbers);
        let left: SmallVec<[Option<Array>; 8]> = given
            .into_iter()
            .map(|input| match input {
                Input::Given(x) => x,
                Input::Lent(_) => None,
            })
            .collect();
        for ((input, left), moved) in inputs.iter_mut().zip(left).zip(&moved) {
            if let (Input::Given(place), None) = (input, moved) {
                *place = left;
            }
        }
        found
    }
}

/// Computes the results of a graph by a plan that is made for this run, on the device of the
/// inputs.
pub fn run(graph: &Graph, inputs: &[&Array], numbers: &[Scalar]) -> Result<Results> {
    let device = common("call", inputs.iter().copied())?;
    Planned::new(device, Plan::new(graph, target(device))?)?.run(inputs, numbers)
}

/// Runs the code of a host op on values of a device: they travel to the host, the results back.
pub fn execute_host(
    op: &Host,
    operands: &[Array],
    results: &[Type],
    device: Device,
) -> Result<Vec<Array>> {
    let given = operands.iter().map(download).collect::<Result<Vec<Array>>>()?;
    let found = op.run(&given.iter().collect::<Vec<&Array>>(), results)?;
    found.iter().map(|y| transfer(y, device)).collect()
}
