//! Single ops on a device.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use super::device::Gpu;
use super::key::{Compiled, Key, What};
use super::memory::{Buffer, Held, Memory, Place as Own, Ranges, Span, is_sole, own};
use super::plan::Program;
use super::staging::{PIECE, SMALL};
use super::work::{Binding, Bindings, Command, Download, Job, Recording, Run, Source};
use crate::array::{Array, Operand};
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::executor::flight::{self, Work};
use crate::executor::{Executable, Executor, Results, admit};
use crate::gpu::kernel::{Input, Kernel, Output, Place, View, Word};
use crate::gpu::step::with_epilogue;
use crate::gpu::{group, guard, op as kernels, rows};
use crate::layout::Layout;
use crate::memory::Buffer as HostBuffer;
use crate::ops::declare::Composite;
use crate::ops::element::{ElementOp, ElementProgram};
use crate::ops::op::{Call, Op, OperandType, Type};
use crate::passes::Evaluator;
use crate::schedule::{Plan, number_dtype};
use crate::shape::Shape;
use crate::site::Site;
use crate::small::small;
use crate::target::Target;

/// Where a step that is recorded puts its results.
#[derive(Default)]
pub struct Into {
    /// The memory of each; where there is none, a buffer of its own
    pub spans: SmallVec<[Option<Span>; 2]>,
    /// Nothing is written if this flag is set
    pub flag: Option<Arc<Buffer>>,
}

/// An operand of an op that is recorded.
pub enum Given<'a> {
    /// An array
    Held(&'a Held),
    /// A number
    Number(Scalar),
}

impl Gpu {
    /// An array that work reads, and what its work needs.
    pub fn held(&'static self, x: &Array, recording: &mut Recording) -> Result<Held> {
        let Some(memory) = own(x)? else { return self.sent(x, recording) };
        let memory = memory.operand()?;
        if memory.job.work.outcome().is_none()
            && recording.needs.iter().all(|known| !Arc::ptr_eq(known, &memory.job))
        {
            recording.needs.push(memory.job.clone());
        }
        let span = memory.place.buffer.clone().into();
        Ok(Held { dtype: x.dtype, layout: x.layout.clone(), span })
    }

    /// An array of the host, on its way to the device: the part of its memory that it shows, which
    /// is copied at once.
    fn sent(&'static self, x: &Array, recording: &mut Recording) -> Result<Held> {
        if x.dtype == DType::F64 {
            return Err(error::no_float64("to", self.device()));
        }
        let (low, high) = x.layout.extent().map_or((0, 0), |(low, high)| (low, high + 1));
        let (bytes, offset) = ((high - low) * x.dtype.size(), low * x.dtype.size());
        // SAFETY: the array shows these elements of its memory, which its holder does not write
        // meanwhile.
        let from = unsafe { std::slice::from_raw_parts(x.buffer().ptr().add(offset), bytes) };
        let span = match bytes {
            ..=SMALL => {
                let span = Span::from(recording.buffer(self, bytes)?);
                if bytes > 0 {
                    let (from, to) = (Source::Bytes(from.to_vec()), recording.bound(&span));
                    recording.commands.push(Command::Upload { from, bytes, to, start: 0 });
                }
                span
            }
            _ => self.piecewise(from)?,
        };
        let layout = match x.layout.is_contiguous() {
            true => Layout::contiguous(x.shape().clone()),
            false => {
                let start = x.layout.offset() - low;
                Layout::strided(x.shape().clone(), &x.layout.strides(), start)
            }
        };
        Ok(Held { dtype: x.dtype, layout, span })
    }

    /// Bytes in a buffer, to which they are given in pieces. Nothing that is not given yet touches
    /// it.
    fn piecewise(&'static self, bytes: &[u8]) -> Result<Span> {
        let span = Span::from(self.buffer(bytes.len() as u64)?);
        for (k, part) in bytes.chunks(PIECE).enumerate() {
            let piece = self.uploads.wait(self, "to")?;
            piece.fill(self, &[part])?;
            let mut recording = Recording::default();
            let (from, to) = (Source::Piece(piece), recording.bound(&span));
            let command = Command::Upload { from, bytes: part.len(), to, start: k * PIECE };
            recording.commands.push(command);
            self.give("to", recording)?;
        }
        Ok(span)
    }

    /// Records a kernel on operands; results are of these types.
    pub fn record(
        &'static self,
        what: &What,
        args: &[Given<'_>],
        types: &[Type],
        site: Site,
        into: &Into,
        recording: &mut Recording,
    ) -> Result<SmallVec<[Held; 1]>> {
        let (mut ranges, mut numbers) = (Ranges::default(), SmallVec::<[Scalar; 2]>::new());
        let mut operands = SmallVec::new();
        for arg in args {
            operands.push(match arg {
                Given::Held(x) => Some((ranges.of(&x.span), x.dtype, x.layout.clone())),
                Given::Number(value) => {
                    numbers.push(*value);
                    None
                }
            });
        }
        let mut made = SmallVec::new();
        let mut results = SmallVec::new();
        for (k, ty) in types.iter().enumerate() {
            let layout = Layout::contiguous(ty.shape.clone());
            let span = match into.spans.get(k) {
                Some(Some(span)) => span.clone(),
                Some(None) | None => {
                    recording.buffer(self, layout.shape().count() * ty.dtype.size())?.into()
                }
            };
            results.push(ranges.of(&span));
            made.push(Held { dtype: ty.dtype, layout, span });
        }
        let key = Key { what: what.clone(), operands, results, is_guarded: into.flag.is_some() };
        let known = self.kernels.lock().known.get(&key).cloned();
        let compiled = match known {
            Some(compiled) => compiled,
            None => self.compile(key, types)?,
        };
        self.dispatch(&compiled, &ranges, &numbers, site, into.flag.as_ref(), recording)?;
        Ok(made)
    }

    /// Records the dispatches of a kernel.
    fn dispatch(
        &'static self,
        compiled: &Compiled,
        ranges: &Ranges,
        numbers: &[Scalar],
        site: Site,
        flag: Option<&Arc<Buffer>>,
        recording: &mut Recording,
    ) -> Result<()> {
        let Compiled { kernel, pipelines } = compiled;
        let slot = recording.faults.len();
        if let Some(refusal) = &kernel.refusal {
            recording.faults.push((refusal.clone(), site));
        }
        let mut scratch: SmallVec<[Span; 2]> = SmallVec::new();
        for bytes in &kernel.scratch {
            scratch.push(recording.buffer(self, bytes.value())?.into());
        }
        for (dispatch, pipeline) in kernel.dispatches.iter().zip(pipelines) {
            let groups = dispatch.groups();
            if groups[0] == 0 {
                continue;
            }
            let mut bindings: Bindings = SmallVec::new();
            for place in &dispatch.bindings {
                bindings.push(match *place {
                    Place::Range(i) => Binding::Buffer(recording.bound(&ranges.0[i])),
                    Place::Scratch(i) => Binding::Buffer(recording.bound(&scratch[i])),
                    Place::Faults => Binding::Faults,
                });
            }
            if let Some(flag) = flag {
                bindings.push(Binding::Buffer(recording.bound(&flag.clone().into())));
            }
            let at = dispatch.words.iter().position(|word| *word == Word::Slot);
            recording.commands.push(Command::Dispatch {
                pipeline: pipeline.clone(),
                bindings,
                words: dispatch.words(numbers, 0),
                groups,
                slot: at.map(|at| (at, slot)),
                timed: recording.timed.clone(),
            });
        }
        scratch.into_iter().for_each(|span| recording.release(span.buffer));
        Ok(())
    }

    /// Makes a kernel.
    fn compile(&'static self, key: Key, types: &[Type]) -> Result<Arc<Compiled>> {
        let mut kernel = match &key.what {
            What::Op(Op::Map(def)) => {
                let dtype = |x: &Option<(usize, DType, Layout)>| x.as_ref().map(|x| x.1);
                let arrays: SmallVec<[Option<DType>; 3]> = key.operands.iter().map(dtype).collect();
                let own: SmallVec<[DType; 3]> = arrays.iter().flatten().copied().collect();
                let result = types[0].dtype;
                let numbers: SmallVec<[DType; 3]> = (0..arrays.len())
                    .filter(|&i| arrays[i].is_none())
                    .map(|i| number_dtype(def, i, arrays.iter().copied(), result))
                    .collect();
                let mut program = ElementProgram::new(&own, &numbers);
                let (mut array, mut number) = (0, 0);
                let mut values = SmallVec::<[_; 3]>::new();
                for x in &arrays {
                    let (count, is_array) = match x {
                        Some(_) => (&mut array, true),
                        None => (&mut number, false),
                    };
                    values.push(if is_array {
                        program.array(*count)
                    } else {
                        program.number(*count)
                    });
                    *count += 1;
                }
                let y = program.push(ElementOp::Map(def), &values, result);
                self.group(&program.giving(&[y]), &types[0].shape, &key)?
            }
            What::Op(op) => {
                let mut numbers = 0;
                let input = |x: &Option<(usize, DType, Layout)>| match x {
                    Some((range, dtype, layout)) => {
                        Input::Array { range: *range, dtype: *dtype, view: View::of(layout) }
                    }
                    None => {
                        numbers += 1;
                        Input::Number(numbers - 1)
                    }
                };
                let inputs: SmallVec<[Input; 4]> = key.operands.iter().map(input).collect();
                let outs = key.results.iter().zip(types);
                let outs: SmallVec<[Output; 3]> =
                    outs.map(|(&range, ty)| Output { range, ty: ty.clone() }).collect();
                kernels::kernel(op, &inputs, &outs, &self.target)?
            }
            What::Group(program, shape) => self.group(program, shape, &key)?,
            What::Rows(fusion) => {
                let operand = |x: &(usize, DType, Layout)| group::Operand::new(x.0, View::of(&x.2));
                let operands: Vec<group::Operand> =
                    key.operands.iter().flatten().map(operand).collect();
                rows::kernel(fusion, &operands, &key.results, self.target.abilities())?
            }
            What::Product(product, shape) => {
                let arrays = key.operands.iter().flatten();
                let arrays = arrays.map(|x| (x.0, x.1, View::of(&x.2))).collect();
                let (results, abilities) = (key.results.clone(), self.target.abilities());
                with_epilogue(product, arrays, shape.dims(), results, abilities)?
            }
        };
        let name = key.what.name();
        let mut pipelines = SmallVec::new();
        for dispatch in &mut kernel.dispatches {
            dispatch.admit(name)?;
            if key.is_guarded {
                *dispatch = guard::guarded(dispatch.clone())?;
            }
            let bindings = dispatch.bindings.len() + usize::from(key.is_guarded);
            pipelines.push(self.pipeline(&dispatch.text, bindings));
            dispatch.text = String::new();
        }
        let compiled = Arc::new(Compiled { kernel, pipelines });
        self.kernels.lock().keep(key, compiled.clone());
        Ok(compiled)
    }

    fn group(&self, program: &ElementProgram, shape: &Shape, key: &Key) -> Result<Kernel> {
        let operand = |x: &(usize, DType, Layout)| group::Operand::new(x.0, View::of(&x.2));
        let operands: Vec<group::Operand> = key.operands.iter().flatten().map(operand).collect();
        Ok(Kernel::of(group::dispatch(program, shape.dims(), &operands, &key.results)?))
    }

    /// The elements in C order from the start of a buffer.
    pub fn dense(&'static self, x: Held, site: Site, recording: &mut Recording) -> Result<Held> {
        if x.layout.is_contiguous() && x.layout.offset() == 0 && x.span.start == 0 {
            return Ok(x);
        }
        self.copied(&x, site, recording)
    }

    /// A copy in C order, in a buffer of its own.
    pub fn copied(&'static self, x: &Held, site: Site, recording: &mut Recording) -> Result<Held> {
        let shape = x.layout.shape().clone();
        let (what, ty) = (What::Op(Op::Reshape(shape.clone())), Type::new(x.dtype, shape));
        let (given, into) = ([Given::Held(x)], Into::default());
        Ok(self.record(&what, &given, &[ty], site, &into, recording)?.swap_remove(0))
    }

    /// The bytes of an array in host memory. This is a wait.
    pub fn read(&'static self, x: Held, mut recording: Recording) -> Result<Array> {
        let (dtype, shape) = (x.dtype, x.layout.shape().clone());
        let bytes = shape.count() * dtype.size();
        let to = HostBuffer::alloc(bytes)?;
        if bytes > 0 {
            let x = self.dense(x, Site::default(), &mut recording)?;
            let done = Mutex::default();
            let download = Arc::new(Download { to: to.clone(), done });
            let from = recording.bound(&x.span);
            let command = Command::Download { from, bytes, to: download.clone() };
            recording.commands.push(command);
            self.give("read", recording)?;
            self.wait_for(&download)?;
        }
        Ok(Array { dtype, layout: Layout::contiguous(shape), data: to.into() })
    }

    /// Waits for a job, and raises what it refused.
    pub fn settled(&'static self, job: &Arc<Job>) -> Result<()> {
        let buffer = self.buffer(0)?;
        Memory::new(job.clone(), Own::new(buffer)).wait().map(drop)
    }

    /// Gives a recording, and its results as values.
    pub fn values(
        &'static self,
        op: &str,
        results: impl IntoIterator<Item = Held>,
        recording: Recording,
    ) -> Result<SmallVec<[Array; 2]>> {
        let job: Arc<Job> = self.give(op, recording)?;
        let device = self.device();
        Ok(results.into_iter().map(|x| x.value(job.clone(), device)).collect())
    }
}

impl Evaluator for Gpu {
    fn evaluate(&self, op: &Op, args: &[Operand<'_>]) -> Result<Array> {
        // On the device, so that what is folded has the bits of what is not.
        let gpu = super::device::open(self.index)?;
        let mut recording = Recording::default();
        let result = gpu.eager(op, args, Site::default(), &mut recording)?.swap_remove(0);
        gpu.read(result, recording)
    }

    fn has_kernel(&self, composite: &'static Composite) -> bool {
        self.target.has_kernel(composite)
    }

    fn contiguous(&self, x: &Array) -> Result<Array> {
        match x.is_contiguous() {
            true => Ok(x.clone()),
            false => self.evaluate(&Op::Reshape(x.shape().clone()), &[Operand::Array(x)]),
        }
    }
}

impl Gpu {
    /// Records one op, or a call that has a kernel.
    fn eager(
        &'static self,
        op: &Op,
        args: &[Operand<'_>],
        site: Site,
        recording: &mut Recording,
    ) -> Result<SmallVec<[Held; 1]>> {
        let types: SmallVec<[OperandType<'_>; 4]> = small(args.iter().map(|arg| match *arg {
            Operand::Array(x) => OperandType::Tensor(x.dtype, x.shape()),
            Operand::Scalar(value) => OperandType::Scalar(value.into()),
        }));
        admit(&self.target, op, &types)?;
        let results = op.infer_all(&types)?;
        let mut held: SmallVec<[Held; 3]> = SmallVec::new();
        for arg in args {
            if let Operand::Array(x) = arg {
                held.push(self.held(x, recording)?);
            }
        }
        if let [x] = held.as_slice()
            && let Some(layout) = op.view(x.dtype, &x.layout)
        {
            return Ok(smallvec![x.seen(layout)]);
        }
        let mut rest = held.iter();
        let mut given: SmallVec<[Given<'_>; 4]> = SmallVec::new();
        for arg in args {
            given.push(match *arg {
                Operand::Scalar(value) => Given::Number(value),
                Operand::Array(_) => match rest.next() {
                    Some(x) => Given::Held(x),
                    None => return Err(error::internal("an operand is missing")),
                },
            });
        }
        let (what, into) = (What::Op(op.clone()), Into::default());
        self.record(&what, &given, &results, site, &into, recording)
    }

    fn itself(&self) -> Result<&'static Gpu> {
        super::device::open(self.index)
    }
}

impl Executor for Gpu {
    fn target(&self) -> &'static dyn Target {
        match self.itself() {
            Ok(gpu) => &gpu.target,
            Err(refusal) => error::throw(refusal),
        }
    }

    fn allocate(&self, ty: &Type) -> Result<Array> {
        let gpu = self.itself()?;
        let buffer = gpu.buffer((ty.shape.count() * ty.dtype.size()) as u64)?;
        let (layout, span) = (Layout::contiguous(ty.shape.clone()), buffer.into());
        let held = Held { dtype: ty.dtype, layout, span };
        Ok(held.value(gpu.done.clone(), gpu.device()))
    }

    fn upload(&self, x: &Array) -> Result<Array> {
        let gpu = self.itself()?;
        let mut recording = Recording::default();
        let held = gpu.held(x, &mut recording)?;
        Ok(gpu.values("to", [held], recording)?.swap_remove(0))
    }

    fn download(&self, x: &Array) -> Result<Array> {
        let gpu = self.itself()?;
        gpu.check("read")?;
        let Some(memory) = own(x)? else { return Ok(x.clone()) };
        let memory = memory.wait()?;
        let span = memory.place.buffer.clone().into();
        let held = Held { dtype: x.dtype, layout: x.layout.clone(), span };
        let read = gpu.read(held, Recording::default())?;
        // What this thread gave before and data refused is raised here, though it is another value's.
        flight::report(&Run::pending(gpu, Default::default()))?;
        Ok(read)
    }

    fn execute(&self, op: &Op, args: &[Operand<'_>], site: Site) -> Result<Array> {
        let gpu = self.itself()?;
        let timed = gpu.timed(site, || (op.name().into(), 0));
        let mut recording = Recording::default();
        recording.timed = timed;
        let results = gpu.eager(op, args, site, &mut recording)?;
        Ok(gpu.values(op.name(), results, recording)?.swap_remove(0))
    }

    fn call(&self, call: &Call, args: &[Operand<'_>], site: Site) -> Result<Results> {
        let gpu = self.itself()?;
        let op = Op::Call(call.clone());
        let mut recording = Recording::default();
        recording.timed = gpu.timed(site, || (op.name().into(), 0));
        let results = gpu.eager(&op, args, site, &mut recording)?;
        gpu.values(op.name(), results, recording)
    }

    fn lower(&self, plan: &Plan) -> Result<Arc<dyn Executable>> {
        Ok(Arc::new(Program::new(self.itself()?, plan.template().clone())))
    }

    fn replacing(&self, old: Option<&Array>, new: Array) -> Array {
        let Ok(Some(memory)) = own(&new) else { return new };
        let before = match old {
            None => None,
            Some(old) if old.data.same(&new.data) => return new,
            Some(old) => match own(old) {
                Ok(Some(before)) if old.dtype == new.dtype && old.layout == new.layout => {
                    Some(before)
                }
                // It was given to the work, or a variable changes its shape.
                Ok(_) | Err(_) => return new,
            },
        };
        let replaced: Option<Memory> = flight::replacing(before, memory);
        match replaced {
            Some(memory) => {
                let data = crate::array::Data::on(self.device(), memory);
                Array { dtype: new.dtype, layout: new.layout, data }
            }
            None => new,
        }
    }

    fn is_sole(&self, x: &Array) -> bool {
        is_sole(x)
    }

    fn is_void(&self, x: &Array) -> bool {
        matches!(own(x), Ok(Some(memory)) if memory.standing().is_none())
    }

    fn synchronize(&self) -> Result<()> {
        self.finish_all()?;
        flight::report(&self.done.work)
    }
}
