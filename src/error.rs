//! The error catalogue: every message the engine can raise, by name, in one place.
//!
//! Promises: an [`Error`] carries its catalogue entry's name (`code`), the exception class it
//! becomes in Python (`kind`), and a message of the form `{op}: {what is wrong}: {facts}`.

use std::any::Any;
use std::cell::RefCell;
use std::fmt::{self, Display};
use std::panic::resume_unwind;

/// The exception class an error becomes in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `ShapeError(ValueError)`
    Shape,
    /// `DTypeError(TypeError)`
    DType,
    /// `AxisError(IndexError)`
    Axis,
    /// `IndexError`: an element index that only the data can tell
    Index,
    /// `DeviceError(RuntimeError)`
    Device,
    /// `GradientError(RuntimeError)`
    Gradient,
    /// `GraphError(RuntimeError)`
    Graph,
    /// `CaptureError(RuntimeError)`
    Capture,
    /// `ValueError`
    Value,
    /// `TypeError`
    Type,
    /// `OverflowError`
    Overflow,
    /// `MemoryError`
    Memory,
    /// A defect of the engine itself
    Internal,
}

/// The result of everything that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// One refused call. Boxed, so that `Result<T, Error>` stays one pointer wide on the failing side.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    code: &'static str,
    kind: Kind,
    message: String,
    notes: Vec<String>,
    place: Option<Place>,
    explained: bool,
}

/// An index that data gave and that leaves its axis.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The index
    pub index: i64,
    /// The axis of the array that is read or written
    pub axis: usize,
    /// The size of that axis
    pub size: usize,
    /// How many index arrays come behind the one that holds it
    pub behind: usize,
}

impl Error {
    fn new(code: &'static str, kind: Kind, message: String) -> Error {
        Error(Box::new(Inner {
            code,
            kind,
            message,
            notes: Vec::new(),
            place: None,
            explained: false,
        }))
    }

    /// The name of the catalogue entry.
    pub fn code(&self) -> &'static str {
        self.0.code
    }

    /// The exception class this becomes.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The message without its notes.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Adds a line below the message, such as the Python line that made a node.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Error {
        self.0.notes.push(note.into());
        self
    }

    /// The index that an array of `count` index arrays holds and that leaves its axis.
    pub fn outside(op: &str, index: i64, axis: usize, size: usize, count: usize) -> Error {
        let mut error = index_out_of_bounds(op, index, axis, size);
        error.0.place = Some(Place { index, axis, size, behind: count - 1 - axis });
        error
    }

    /// The index that was out of bounds, where that is what it says.
    pub fn place(&self) -> Option<Place> {
        self.0.place
    }

    /// Says that it speaks of the call that the user wrote.
    #[must_use]
    pub fn explained(mut self) -> Error {
        self.0.explained = true;
        self
    }

    /// Whether it speaks of the call that the user wrote.
    pub fn is_explained(&self) -> bool {
        self.0.explained
    }

    /// Puts the name of the op the user called before the name of the part that refused:
    /// `mul: shapes …` inside `layer_norm` reads `layer_norm: mul: shapes …`.
    #[must_use]
    pub fn within(mut self, op: &str) -> Error {
        let named = self.0.message.strip_prefix(op).is_some_and(|rest| rest.starts_with(':'));
        if !named && self.0.kind != Kind::Memory {
            self.0.message = format!("{op}: {}", self.0.message);
        }
        self
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        self.0.notes.iter().try_for_each(|note| write!(f, "\n  {note}"))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}: {self}", self.0.kind, self.0.code)
    }
}

impl std::error::Error for Error {}

thread_local! {
    /// The error that this thread unwound with last, for whoever sees the unwind and not what it
    /// carries.
    static THROWN: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Unwinds with an error, without the panic hook, to the nearest `catch`.
pub fn throw(error: Error) -> ! {
    throw_on(Box::new(error))
}

/// Goes on with an unwind that was caught, perhaps on another thread.
pub fn throw_on(payload: Box<dyn Any + Send>) -> ! {
    THROWN.set(payload.downcast_ref::<Error>().cloned());
    resume_unwind(payload)
}

/// What a caught unwind carries: an error on its way, or a defect.
#[cold]
pub fn unwound(payload: Box<dyn Any + Send>) -> Error {
    payload.downcast::<Error>().map_or_else(
        |other| {
            let text = other.downcast_ref::<&str>().map(|text| (*text).to_string());
            let text = text.or_else(|| other.downcast_ref::<String>().cloned());
            internal(text.unwrap_or_else(|| "unknown panic".into()))
        },
        |error| *error,
    )
}

/// The error that this thread unwound with last; once.
pub fn thrown() -> Option<Error> {
    THROWN.take()
}

/// Declares the catalogue: a constructor for each entry and the list that tests walk.
macro_rules! catalogue {
    ($( $(#[doc = $doc:literal])+ $name:ident($($field:ident),*) => $kind:ident, $text:literal; )*) => {
        $(
            $(#[doc = $doc])+
            #[cold]
            pub fn $name($($field: impl Display),*) -> Error {
                Error::new(stringify!($name), Kind::$kind, format!($text))
            }
        )*

        /// Every entry: name, exception class, message template.
        pub const CATALOGUE: &[(&str, Kind, &str)] = &[$((stringify!($name), Kind::$kind, $text)),*];
    };
}

/// A dtype that an op does not take. A cast is advised where it keeps what the values mean, and
/// where the operand has a name to write down.
#[cold]
pub fn wrong_dtype(op: impl Display, name: &str, dtype: impl Display, want: &str) -> Error {
    let dtype = dtype.to_string();
    let is_float = dtype.contains("float");
    let cast = match want {
        "bool" | "floating or bool" => Some("bool"),
        "floating" | "numeric" => Some("float32"),
        _ if dtype == "bool" => Some("int64"),
        _ => None,
    };
    let cast = cast.filter(|_| !(name.contains(' ') || is_float && want != "bool"));
    match cast {
        Some(cast) => bad_dtype(op, name, dtype, want, cast),
        None => not_taken(op, dtype, name, want),
    }
}

catalogue! {
    /// Operands whose shapes cannot be broadcast together.
    broadcast(op, a, b, axis, left, right) => Shape,
        "{op}: shapes {a} and {b} do not broadcast: axis {axis} has sizes {left} and {right}";
    /// A shape that does not have what the op asks for.
    bad_shape(op, what, facts) => Shape, "{op}: {what}: {facts}";
    /// An operand of the wrong rank.
    bad_rank(op, name, want, got) => Shape, "{op}: {name} must have rank {want}: got shape {got}";
    /// Two sizes that must agree.
    size_mismatch(op, what, left, right, facts) => Shape, "{op}: {what} differ: {facts} has {left} and {right}";
    /// An element count that a new shape does not keep.
    reshape_count(op, from, count, to, want) => Shape,
        "{op}: shape {from} has {count} elements, shape {to} needs {want}";
    /// A negative size.
    negative_size(op, size, shape) => Shape, "{op}: sizes must not be negative: got {size} in {shape}";
    /// More elements than an address can name.
    too_large(op, shape) => Shape, "{op}: shape {shape} has more elements than memory can hold";
    /// More axes than the engine supports.
    too_many_axes(op, rank, limit) => Shape, "{op}: rank {rank} is above the limit of {limit} axes";
    /// A reduction without an identity over no elements.
    empty_reduction(op, shape) => Shape, "{op}: shape {shape} has no elements to reduce and {op} has no identity";
    /// A tensor of several elements where one is wanted.
    not_scalar(op, shape) => Shape, "{op}: only a tensor with one element converts to a Python scalar: got shape {shape}";
    /// Nested sequences of unequal length.
    ragged(op, left, right) => Shape, "{op}: nested sequences have unequal lengths: {left} and {right}";
    /// An op that does not take this dtype, but takes what it can be cast to; made by
    /// [`wrong_dtype`].
    bad_dtype(op, name, dtype, want, cast) => DType, "{op}: dtype {dtype} of {name} is not {want}; cast first, e.g. {name}.astype({cast})";
    /// An op that does not take this dtype; made by [`wrong_dtype`].
    not_taken(op, dtype, name, want) => DType, "{op}: dtype {dtype} of {name} is not {want}";
    /// Two dtypes without a common one.
    no_promotion(op, a, b) => DType, "{op}: dtypes {a} and {b} have no common dtype; cast one of them with astype";
    /// Two dtypes that must agree.
    dtype_mismatch(op, a, b) => DType, "{op}: dtypes differ: got {a} and {b}";
    /// Complex numbers, which no dtype holds.
    no_complex(op, got) => DType, "{op}: no dtype holds complex numbers: got {got}; pass the real and the imaginary part apart";
    /// A dtype by a name that does not exist.
    unknown_dtype(op, got) => DType, "{op}: unknown dtype: got {got}";
    /// A target that is not what a loss compares with.
    bad_target(op, what, facts) => DType, "{op}: {what}: {facts}";
    /// A gradient asked of a dtype that has none.
    gradient_dtype(op, dtype) => DType, "{op}: only floating tensors can require gradients: got dtype {dtype}";
    /// An axis outside the rank.
    bad_axis(op, axis, rank) => Axis, "{op}: axis {axis} is out of range for rank {rank}";
    /// An axis named twice.
    repeated_axis(op, axis, axes) => Axis, "{op}: axis {axis} appears twice in {axes}";
    /// More indices than axes.
    too_many_indices(op, count, rank) => Axis, "{op}: {count} indices for a tensor of rank {rank}";
    /// A mask that does not fit what it selects from.
    mask_shape(op, facts) => Index, "{op}: the mask's shape differs from the axes it covers: {facts}";
    /// An element index outside its axis.
    index_out_of_bounds(op, index, axis, size) => Index,
        "{op}: index {index} is out of bounds for axis {axis} with size {size}";
    /// A device that does not exist here.
    unknown_device(op, got, known) => Device, "{op}: unknown device {got}: this build has {known}";
    /// A GPU that cannot be used here.
    no_gpu(op, got, facts) => Device, "{op}: device {got} cannot be used: {facts}";
    /// An op that a device cannot compute for these dtypes.
    no_kernel(op, device, facts) => Device, "{op}: {device} has no kernel for these dtypes: {facts}";
    /// A step that a device cannot bind the memory of.
    beyond_limits(op, device, facts) => Device, "{op}: a step is beyond the limits of {device}: {facts}";
    /// What a program of compute shaders cannot do.
    not_exported(op, facts) => Device, "{op}: compute shaders cannot do what the function does: {facts}";
    /// A dtype that shaders have no numbers of.
    no_float64(op, device) => Device,
        "{op}: {device} has no float64: cast first, e.g. x.astype(float32)";
    /// A device that does not work any more.
    device_lost(op, device, why) => Device, "{op}: {device} is lost: {why}; start a new process to use it again";
    /// More memory than a device has, or can bind.
    device_memory(op, device, facts) => Memory, "{op}: {device} has no room: {facts}";
    /// More elements than positions of 32 bits tell apart.
    too_many_elements(op, got, most) => Memory,
        "{op}: too many elements for a shader: got {got}, at most {most}; take parts of the array";
    /// Operands on different devices.
    devices_differ(op, a, b, to) => Device,
        "{op}: operands lie on different devices: {a} and {b}; move one, e.g. x.to(\"{to}\")";
    /// A value of another device than its graph's.
    one_device(op, want, got) => Device,
        "{op}: a graph computes on one device: this one on {want}, got {got}; move the tensor before the call";
    /// A comparison with the reference of what has no such bits.
    not_compared(op, device) => Device,
        "{op}: check=\"reference\" compares bits, and those of {device} are its own; use check=True there, or move the tensors, e.g. x.to(\"cpu\")";
    /// The bytes of a value that lies on a device, asked for without a copy.
    not_on_host(op, device) => Device,
        "{op}: the tensor lies on {device}; copy it first, e.g. x.to(\"cpu\")";
    /// A request that needs a gradient and has none.
    gradient(op, what, facts) => Gradient, "{op}: {what}: {facts}";
    /// A gradient through an op of the user's that has no rule.
    no_rule(op) => Gradient,
        "{op}: an operand requires a gradient, and the op has no gradient rule: declare one with @{op}.vjp, or call it on x.detach()";
    /// A rule of the user's that reads a tensor besides what it is given, where it is written into
    /// a list.
    open_rule(op, rule) => Gradient,
        "{op}: its {rule} rule reads a tensor outside, which it cannot inside control flow, vmap, jvp and graphs: make the tensor an operand";
    /// Code of the user's that is declared pure and gave two results for the same operands.
    impure(op, what) => Capture,
        "{op}: the op is declared pure and gave other results for the same operands: {what}; declare effect=\"ordered\"";
    /// A result of the user's code of another dtype than its type rule says.
    host_dtype(op, got, want) => DType,
        "{op}: the function gave another dtype than its type rule: {got}, wanted {want}";
    /// A history whose saved values were freed.
    freed(op, node, first) => Gradient,
        "{op}: the saved values of {node} were freed by an earlier backward{first}; pass retain_graph=True to that call to keep them";
    /// An update of a leaf that is being recorded.
    leaf_update(op) => Gradient,
        "{op}: a leaf that requires a gradient cannot be updated while recording; put the update in `with wengert.no_grad():`";
    /// A feed of another shape than its node has.
    bad_feed(op, node, shape) => Shape, "{op}: {node} was fed shape {shape}";
    /// A feed of another dtype than its node has.
    bad_feed_dtype(op, node, dtype) => DType, "{op}: {node} was fed {dtype}; cast it first";
    /// A graph that breaks its law.
    bad_graph(op, what, facts) => Graph, "{op}: {what}: {facts}";
    /// A line of text that says no node.
    bad_text(op, line, want, got) => Graph, "{op}: line {line}: expected {want}: got {got}";
    /// The number of a size that nobody knows yet.
    unknown_size(op, size) => Graph,
        "{op}: the number of {size} is not known before the graph runs; compute with the tensor instead, or give the placeholder its size";
    /// A write that nobody could see.
    unseen_write(op) => Graph,
        "{op}: this writes to an unnamed view and nobody could see it; index once, e.g. x[0, 1] = v instead of x[0][1] = v";
    /// The data of a traced value, asked for while there is none.
    no_data(op) => Capture,
        "{op}: a traced tensor has no data while its function is captured; return it and look at the result";
    /// The value of a tensor that the call running on this thread gives a new one.
    in_use(op) => Capture,
        "{op}: the compiled call that runs now gives this tensor a new value: pass the tensor to host_call as an operand";
    /// Python code that depends on the data of a traced value.
    untraceable(op, node, line, remedy) => Capture,
        "{op}: the value of {node} is not known while the function is captured{line}; {remedy}";
    /// A traced value used after, or outside, the trace that made it.
    escaped(op, node) => Capture,
        "{op}: {node} escaped from the trace that made it: outside it has no value; return it from the captured function instead of storing it";
    /// Something that capture cannot follow.
    bad_capture(op, what, facts) => Capture, "{op}: {what}: {facts}";
    /// A body of control flow, or a function under a transform, that updates what is outside.
    body_updates(op, line) => Capture,
        "{op}: a function inside updates a tensor outside, or its gradient, read{line}; return the new value instead";
    /// An argument outside its range.
    bad_value(op, what, facts) => Value, "{op}: {what}: {facts}";
    /// A class index that names no class.
    bad_class(op, class, classes) => Index, "{op}: class {class} is out of range: there are {classes} classes";
    /// A value of an environment variable that means nothing.
    bad_setting(op, got, allowed) => Value, "{op}: unknown value of this environment variable: got \"{got}\", allowed are {allowed}";
    /// An environment variable that nothing reads.
    unknown_setting(op, known) => Value, "{op}: no such setting: known environment variables are {known}";
    /// An argument of the wrong Python type.
    bad_type(op, what, facts) => Type, "{op}: {what}: {facts}";
    /// A value that is not finite, made of finite ones.
    not_finite(op, what, facts) => Value, "{op}: {what} made of finite operands: {facts}";
    /// A number that its dtype cannot hold.
    overflow(op, value, dtype) => Overflow, "{op}: {value} does not fit {dtype}";
    /// A request that the machine or the limit refuses, before anything was allocated.
    out_of_memory(bytes, live, limit) => Memory,
        "out of memory: {bytes} bytes asked for, {live} bytes live{limit}";
    /// A plan that needs more memory than it may.
    over_budget(peak, budget) => Memory,
        "memory budget: the plan needs {peak} bytes, {budget} are granted";
    /// An exception raised by code of the user's that the engine called.
    foreign(text) => Internal, "{text}";
    /// A defect of the engine: never the caller's fault.
    internal(what) => Internal, "internal error: {what}; this is a defect of wengert, please report it";
}
