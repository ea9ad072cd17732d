//! What a step is on a device: dispatches over ranges of memory.
//!
//! A [`Kernel`] holds no size, number or address: what differs from call to call are [`Word`]s and
//! counts, which may be expressions over symbols. So the same kernel is dispatched here, kept for
//! other sizes, and written into a file.

use std::ops::Range;

use smallvec::SmallVec;

use crate::dtype::{DType, Scalar};
use crate::error::{self, Error, Result};
use crate::graph::Effect;
use crate::layout::Layout;
use crate::ops::op::Type;
use crate::scalar::half::{f64_to_bf16, f64_to_f16};
use crate::shape::{Dim, Dims, Shape};

/// Invocations of a workgroup.
pub const WORKGROUP: usize = 64;

/// The most workgroups along one dimension of a dispatch, on any adapter.
pub const MOST_GROUPS: usize = 65_535;

/// The most elements: offsets fit into 31 bits, so that strides may be negative.
pub const MOST_ELEMENTS: usize = 1 << 31;

/// The most rounds of all loops of an invocation: some drivers end loops after so many, without a
/// word.
pub const MOST_ROUNDS: usize = 65_000;

/// A word of the uniform buffer of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// A constant
    Bits(u32),
    /// A size
    Size(Dim),
    /// A size below zero
    Minus(Dim),
    /// A number of the step, by position, in the memory form of a dtype
    #[allow(missing_docs)]
    Number { number: usize, dtype: DType, is_high: bool },
    /// The place among faults where the dispatch says what it refuses
    Slot,
    /// The number of the round of a repeated dispatch, multiplied and added to
    #[allow(missing_docs)]
    Round { times: u32, plus: u32 },
}

impl Word {
    /// A stride or an offset.
    pub fn signed(n: isize) -> Word {
        let size = Dim::new(n.unsigned_abs());
        if n < 0 { Word::Minus(size) } else { Word::Size(size) }
    }

    /// The sum of two strides or offsets, where its sign is known without asking.
    pub fn plus(self, other: Word) -> Option<Word> {
        match (self, other) {
            (Word::Size(a), Word::Size(b)) => Some(Word::Size(a + b)),
            (Word::Minus(a), Word::Minus(b)) => Some(Word::Minus(a + b)),
            (Word::Size(a), Word::Minus(b)) | (Word::Minus(b), Word::Size(a)) => {
                let (a, b) = (a.known()? as isize, b.known()? as isize);
                Some(Word::signed(a - b))
            }
            (Word::Bits(_) | Word::Number { .. } | Word::Slot | Word::Round { .. }, _)
            | (_, Word::Bits(_) | Word::Number { .. } | Word::Slot | Word::Round { .. }) => None,
        }
    }

    /// The product with a size.
    pub fn scaled(self, by: Dim) -> Word {
        match self {
            Word::Size(x) => Word::Size(x * by),
            Word::Minus(x) => Word::Minus(x * by),
            Word::Bits(_) | Word::Number { .. } | Word::Slot | Word::Round { .. } => self,
        }
    }

    /// The product with a whole number.
    pub fn times(self, n: isize) -> Word {
        let by = Dim::new(n.unsigned_abs());
        match (self, n < 0) {
            (Word::Size(x), false) | (Word::Minus(x), true) => Word::Size(x * by),
            (Word::Size(x), true) | (Word::Minus(x), false) => Word::Minus(x * by),
            (Word::Bits(_) | Word::Number { .. } | Word::Slot | Word::Round { .. }, _) => self,
        }
    }
}

/// The memory that a binding of a dispatch shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A range that the step was given, for an operand or a result
    Range(usize),
    /// Memory of the kernel's own
    Scratch(usize),
    /// Where dispatches say what they refuse: four words a slot. The first is all ones as long as
    /// nothing is refused
    Faults,
}

/// One dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// The shader, which other sizes share
    pub text: String,
    /// The uniform buffer
    pub words: Vec<Word>,
    /// The storage bindings, in order; the uniform buffer is bound behind them
    pub bindings: SmallVec<[Place; 8]>,
    /// Invocations
    pub invocations: Dim,
    /// Rounds of all loops of an invocation, at most
    pub rounds: Dim,
}

/// What the four words of a slot of faults say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An index outside its axis: its position, its axis, its value in two words
    Outside {
        /// The op
        op: &'static str,
        /// The sizes of the axes that are indexed
        sizes: Dims,
    },
    /// The position of an element that is false
    False {
        /// What the program says of it
        message: String,
        /// The sizes of the value
        sizes: Dims,
    },
}

impl Refusal {
    /// The error that the words of a slot stand for.
    pub fn error(&self, words: [u32; 4]) -> Error {
        match self {
            Refusal::Outside { op, sizes } => {
                let value = u64::from(words[2]) | u64::from(words[3]) << 32;
                let axis = (words[1] as usize).min(sizes.len().saturating_sub(1));
                let size = sizes.get(axis).map_or(0, |size| size.value());
                Error::outside(op, value as i64, axis, size, sizes.len())
            }
            Refusal::False { message, sizes } => {
                Effect::failed(message, &Shape::from_dims(sizes), words[0] as usize)
            }
        }
    }
}

/// How often dispatches are repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// So often
    Size(Dim),
    /// As often as a number must be multiplied by itself, from 1, to reach a size
    #[allow(missing_docs)]
    Log { base: u32, of: Dim },
}

/// Dispatches that are repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Which
    pub range: Range<usize>,
    /// How often
    pub times: Times,
}

/// What a step is on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// In the order in which they run
    pub dispatches: SmallVec<[Dispatch; 1]>,
    /// Which of them are repeated, where an open size says how often
    pub repeats: SmallVec<[Repeat; 1]>,
    /// The bytes of each range of scratch
    pub scratch: SmallVec<[Dim; 2]>,
    /// What its slot of faults says, if it may refuse its data
    pub refusal: Option<Refusal>,
}

impl Kernel {
    /// A kernel of one dispatch.
    pub fn of(dispatch: Dispatch) -> Kernel {
        Kernel { dispatches: SmallVec::from_iter([dispatch]), ..Kernel::default() }
    }

    /// A new range of scratch for so many elements.
    pub fn scratch(&mut self, dtype: DType, count: Dim) -> Place {
        let bytes = (count * Dim::new(dtype.size())).div_ceil(Dim::new(32)) * Dim::new(32);
        self.scratch.push(bytes.max(Dim::new(32)));
        Place::Scratch(self.scratch.len() - 1)
    }
}

impl Dispatch {
    /// The words at known sizes.
    pub fn words(&self, numbers: &[Scalar], slot: u32) -> Vec<u32> {
        let word = |word: &Word| match *word {
            Word::Bits(bits) => bits,
            Word::Size(size) => size.value() as u32,
            Word::Minus(size) => (size.value() as u32).wrapping_neg(),
            Word::Number { number, dtype, is_high } => {
                let bits = bits(numbers[number], dtype);
                (if is_high { bits >> 32 } else { bits }) as u32
            }
            Word::Slot => slot,
            // Where sizes are known, rounds are dispatches of their own.
            Word::Round { plus, .. } => plus,
        };
        let mut words: Vec<u32> = self.words.iter().map(word).collect();
        words.resize(words.len().next_multiple_of(4).max(4), 0);
        words
    }

    /// Workgroups along `x` and `y` at known sizes.
    pub fn groups(&self) -> [u32; 2] {
        let all = self.invocations.value().div_ceil(WORKGROUP);
        let rows = all.div_ceil(MOST_GROUPS).max(1);
        [all.div_ceil(rows) as u32, rows as u32]
    }

    /// Refuses what no adapter does: too many rounds of a loop.
    pub fn admit(&self, op: &str) -> Result<()> {
        match self.rounds.known() {
            Some(rounds) if rounds > MOST_ROUNDS => {
                let facts = format!(
                    "got {rounds} rounds of a loop, at most {MOST_ROUNDS}; take parts of the array"
                );
                Err(error::bad_graph("gpu", format!("{op} is too long for a dispatch"), facts))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// A half of the bits of a number.
pub fn half(value: Scalar, dtype: DType, is_high: bool) -> Word {
    let bits = bits(value, dtype);
    Word::Bits((if is_high { bits >> 32 } else { bits }) as u32)
}

/// The bits of a number in the memory form of a dtype.
fn bits(value: Scalar, dtype: DType) -> u64 {
    match dtype {
        DType::F16 => f64_to_f16(value.as_f64()).into(),
        DType::BF16 => f64_to_bf16(value.as_f64()).into(),
        DType::I8 | DType::U8 => value.register_bits(dtype.compute()) & 0xff,
        DType::I16 | DType::U16 => value.register_bits(dtype.compute()) & 0xffff,
        DType::Bool
        | DType::I32
        | DType::I64
        | DType::U32
        | DType::U64
        | DType::F32
        | DType::F64 => value.register_bits(dtype.compute()),
    }
}

/// Where the elements of an array lie in its range; sizes may be open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The sizes
    pub sizes: Dims,
    /// The strides, in elements
    pub strides: SmallVec<[Word; 6]>,
    /// The element at index zero
    pub offset: Word,
    /// Whether the elements lie in C order without gaps
    pub is_dense: bool,
}

impl View {
    /// Elements in C order without gaps, from the start of their range.
    pub fn dense(sizes: &[Dim]) -> View {
        let mut strides: SmallVec<[Word; 6]> = SmallVec::from_elem(Word::Bits(0), sizes.len());
        let mut step = Dim::ONE;
        for (stride, &size) in strides.iter_mut().zip(sizes).rev() {
            *stride = Word::Size(step);
            step = step * size;
        }
        View { sizes: sizes.into(), strides, offset: Word::Size(Dim::new(0)), is_dense: true }
    }

    /// A layout of known sizes.
    pub fn of(layout: &Layout) -> View {
        View {
            sizes: layout.shape().dims().into(),
            strides: layout.strides().iter().map(|&stride| Word::signed(stride)).collect(),
            offset: Word::Size(Dim::new(layout.offset())),
            is_dense: layout.is_contiguous(),
        }
    }

    /// The same elements repeated to a larger shape. An open size of the view is that of the shape,
    /// as the trace has settled.
    pub fn broadcast(&self, shape: &[Dim]) -> View {
        let lead = shape.len() - self.sizes.len();
        let is_own = |j: usize, size: Dim| self.sizes[j] != Dim::ONE || size == Dim::ONE;
        let stride = |(i, &size): (usize, &Dim)| match i.checked_sub(lead) {
            Some(j) if is_own(j, size) => self.strides[j],
            _ => Word::Size(Dim::new(0)),
        };
        let strides = shape.iter().enumerate().map(stride).collect();
        let own = |(i, &size): (usize, &Dim)| match i.checked_sub(lead) {
            Some(j) => is_own(j, size),
            None => size == Dim::ONE,
        };
        let is_dense = self.is_dense && shape.iter().enumerate().all(own);
        View { sizes: shape.into(), strides, offset: self.offset, is_dense }
    }

    /// The same axes in another order.
    pub fn permute(&self, axes: &[usize]) -> View {
        let sizes = axes.iter().map(|&axis| self.sizes[axis]).collect();
        let strides = axes.iter().map(|&axis| self.strides[axis]).collect();
        View { sizes, strides, offset: self.offset, is_dense: false }.settled()
    }

    /// The same with `is_dense` as sizes and strides say, as far as they do without asking.
    pub fn settled(mut self) -> View {
        let mut step = Dim::ONE;
        self.is_dense = true;
        for (&size, &stride) in self.sizes.iter().zip(&self.strides).rev() {
            if size != Dim::ONE {
                self.is_dense &= matches!(stride, Word::Size(stride) if stride.same(step));
                step = step * size;
            }
        }
        self
    }

    /// Refuses elements that positions of 32 bits cannot tell apart.
    pub fn addressable(&self) -> Result<()> {
        let mut reach = if let Word::Size(offset) = self.offset { offset } else { Dim::new(0) };
        for (&size, stride) in self.sizes.iter().zip(&self.strides) {
            if let Word::Size(stride) = stride {
                reach = reach + size * *stride;
            }
        }
        // Repeated elements reach no further, and yet loops count them.
        match [reach, self.count()].iter().filter_map(|n| n.known()).max() {
            Some(most) if most > MOST_ELEMENTS => {
                Err(error::too_many_elements("gpu", most, MOST_ELEMENTS))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether the elements lie without gaps from the start of their range.
    pub fn is_whole(&self) -> bool {
        self.is_dense && matches!(self.offset, Word::Size(at) if at == Dim::new(0))
    }

    /// The count of elements.
    pub fn count(&self) -> Dim {
        count(&self.sizes)
    }
}

/// The product of sizes.
pub fn count(sizes: &[Dim]) -> Dim {
    sizes.iter().fold(Dim::ONE, |all, &size| all * size)
}

/// An operand of a step.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are arrays")]
pub enum Input {
    /// An array in a range
    #[allow(missing_docs)]
    Array { range: usize, dtype: DType, view: View },
    /// A number of the step, by position, which takes the dtype of the arrays beside it
    Number(usize),
}

/// Where a step puts its result: in C order without gaps, from the start of the range.
#[derive(Clone, Debug)]
pub struct Output {
    /// The range
    pub range: usize,
    /// The dtype and the sizes
    pub ty: Type,
}
