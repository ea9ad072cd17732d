//! What kernels that sum have in common: axes that are walked as one, what makes one register of
//! two, and how many invocations share the terms of a result.

use smallvec::SmallVec;

use super::element::rounded;
use super::kernel::{Input, MOST_ROUNDS, Place, View, Word};
use super::shader::Shader;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::attributes::Reduction;
use crate::ops::elementwise::{Elementwise, arithmetic, bits};
use crate::shape::{Dim, Dims};

/// Terms that are summed one after the other before their sum joins the others, so that no term
/// goes through many roundings.
pub const BLOCK: usize = 64;

/// The most parts of a sum of open length.
pub const MOST_PARTS: usize = 4096;

/// Strides of some axes.
pub type Strides = SmallVec<[Word; 6]>;

/// An array operand.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where it lies
    pub place: Place,
    /// Its dtype
    pub dtype: DType,
    /// Its elements
    pub view: View,
}

impl Source {
    /// The array of an input.
    pub fn of(input: &Input) -> Result<Source> {
        let Input::Array { range, dtype, view } = input else {
            return Err(error::internal("a number where a kernel takes arrays".to_owned()));
        };
        view.addressable()?;
        Ok(Source { place: Place::Range(*range), dtype: *dtype, view: view.clone() })
    }

    /// Elements without gaps from the start of a place.
    pub fn dense(place: Place, dtype: DType, sizes: &[Dim]) -> Source {
        Source { place, dtype, view: View::dense(sizes) }
    }

    /// The strides of some axes.
    pub fn strides(&self, axes: &[usize]) -> Strides {
        axes.iter().map(|&axis| self.view.strides[axis]).collect()
    }

    /// The sizes of some axes.
    pub fn sizes(&self, axes: &[usize]) -> Dims {
        axes.iter().map(|&axis| self.view.sizes[axis]).collect()
    }
}

/// Axes with neighbours merged where every operand walks them as one; axes of one element are
/// gone.
pub fn merged<const N: usize>(sizes: &[Dim], strides: [&[Word]; N]) -> (Dims, [Strides; N]) {
    let mut all = Dims::new();
    let mut own: [Strides; N] = std::array::from_fn(|_| Strides::new());
    for (axis, &size) in sizes.iter().enumerate().filter(|(_, size)| **size != Dim::ONE) {
        let is_one = own.iter().zip(strides).all(|(own, strides)| {
            own.last().is_some_and(|&outer| outer == strides[axis].scaled(size))
        });
        match all.last_mut() {
            Some(last) if is_one => *last = *last * size,
            Some(_) | None => all.push(size),
        }
        for (own, strides) in own.iter_mut().zip(strides) {
            if is_one {
                own.pop();
            }
            own.push(strides[axis]);
        }
    }
    (all, own)
}

impl Shader {
    /// The sum of indices times strides, as an expression.
    pub fn offset(&mut self, strides: &[Word], index: &[String]) -> String {
        let steps = self.steps(strides);
        along(&steps, index)
    }

    /// Names of strides, for loops, which need not read them again and again.
    pub fn steps(&mut self, strides: &[Word]) -> Vec<String> {
        let mut step = |&stride: &Word| {
            if stride == Word::Size(Dim::ONE) {
                return "1u".to_owned();
            }
            // Axes along which elements are repeated are part of the structure.
            if stride == Word::Size(Dim::new(0)) {
                return "0u".to_owned();
            }
            let word = self.word(stride);
            self.name(word)
        };
        strides.iter().map(&mut step).collect()
    }

    /// The offset of element `i` in C order of axes.
    pub fn offset_of(&mut self, sizes: &[Dim], strides: &[Word], i: &str) -> String {
        let index = self.indices(i, sizes);
        self.offset(strides, &index)
    }

    /// The lane of a register of sums, in the dtype of the result.
    pub fn narrowed(&mut self, dtype: DType, value: &str) -> Result<String> {
        let is_unsigned = matches!(dtype, DType::U8 | DType::U16);
        let value = match rounded(dtype, value).filter(|_| is_unsigned) {
            Some(value) => self.name(value),
            None => self.name(value),
        };
        Ok(format!("({})", self.stored(dtype, &value)?))
    }
}

/// The sum of indices times named strides, as an expression.
pub fn along(steps: &[String], index: &[String]) -> String {
    let is_part = |(step, i): &(&String, &String)| *step != "0u" && *i != "0u";
    let part = |(step, i): (&String, &String)| match step.as_str() {
        "1u" => i.clone(),
        step => format!("{i} * {step}"),
    };
    let parts: Vec<String> = steps.iter().zip(index).filter(is_part).map(part).collect();
    if parts.is_empty() { "0u".into() } else { format!("({})", parts.join(" + ")) }
}

/// How elements are read: truth values as numbers 0 and 1.
pub fn read(dtype: DType) -> DType {
    if dtype == DType::Bool { DType::U8 } else { dtype }
}

/// The dtype of registers that sums of a dtype are kept in.
pub fn register(dtype: DType) -> DType {
    match dtype {
        DType::I8 | DType::I16 | DType::I32 => DType::I32,
        DType::Bool | DType::U8 | DType::U16 | DType::U32 => DType::U32,
        DType::F16 | DType::BF16 | DType::F32 => DType::F32,
        DType::I64 => DType::I64,
        DType::U64 => DType::U64,
        DType::F64 => DType::F64,
    }
}

/// What makes one register of two.
#[derive(Clone, Copy)]
pub struct Join {
    def: &'static Elementwise,
    /// The dtype of the registers
    pub dtype: DType,
    /// A register that changes no other; of floats its bits
    start: &'static str,
    /// What is made of nothing
    pub empty: &'static str,
    /// Whether it is a sum of floats, which loses bits
    pub is_inexact: bool,
}

impl Join {
    /// The join of a reduction of a dtype.
    pub fn of(kind: Reduction, dtype: DType) -> Join {
        let is_bool = dtype == DType::Bool;
        let dtype = register(dtype);
        let (def, start, empty): (&'static Elementwise, _, _) = match kind {
            Reduction::Sum | Reduction::Any if is_bool => (&bits::bitwise_or, "0u", "0u"),
            Reduction::Prod | Reduction::All if is_bool => (&bits::bitwise_and, "1u", "1u"),
            Reduction::Sum | Reduction::Any => {
                let start = if dtype == DType::F32 { "0x80000000u" } else { zero(dtype) };
                (&arithmetic::add, start, zero(dtype))
            }
            Reduction::Prod | Reduction::All => {
                let start = if dtype == DType::F32 { "0x3f800000u" } else { one(dtype) };
                (&arithmetic::multiply, start, one(dtype))
            }
            Reduction::Max => (&arithmetic::maximum, least(dtype), zero(dtype)),
            Reduction::Min => (&arithmetic::minimum, most(dtype), zero(dtype)),
        };
        let is_inexact = dtype == DType::F32 && matches!(kind, Reduction::Sum);
        Join { def, dtype, start, empty, is_inexact }
    }

    /// A variable that changes no other register yet. A constant expression may not be an infinity,
    /// so that the bits of floats take a name first.
    pub fn variable(&self, shader: &mut Shader) -> String {
        if self.dtype != DType::F32 {
            return shader.variable(self.start);
        }
        let bits = shader.name(self.start);
        shader.variable(format!("bitcast<f32>({bits})"))
    }

    /// Both as one, as an expression.
    pub fn call(&self, shader: &mut Shader, a: &str, b: &str) -> Result<String> {
        shader.call(self.def, self.dtype, &[a, b])
    }

    /// Both as one, a name.
    pub fn both(&self, shader: &mut Shader, a: &str, b: &str) -> Result<String> {
        let both = self.call(shader, a, b)?;
        Ok(shader.name(both))
    }

    /// All of them as one, neighbours first; a name.
    pub fn all(&self, shader: &mut Shader, mut terms: Vec<String>) -> Result<String> {
        while terms.len() > 1 {
            let mut next = Vec::new();
            for pair in terms.chunks(2) {
                next.push(match pair {
                    [a, b] => self.both(shader, a, b)?,
                    _ => pair[0].clone(),
                });
            }
            terms = next;
        }
        Ok(terms.swap_remove(0))
    }
}

/// The text for registers of a dtype: `f32`, `i32`, `u32`, `i64`, `u64`.
fn pick(dtype: DType, texts: [&'static str; 5]) -> &'static str {
    texts[match dtype {
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => 0,
        DType::I8 | DType::I16 | DType::I32 => 1,
        DType::Bool | DType::U8 | DType::U16 | DType::U32 => 2,
        DType::I64 => 3,
        DType::U64 => 4,
    }]
}

/// Zero in the registers of a dtype.
pub fn zero(dtype: DType) -> &'static str {
    pick(dtype, ["0.0f", "0i", "0u", "vec2<u32>(0u, 0u)", "vec2<u32>(0u, 0u)"])
}

fn one(dtype: DType) -> &'static str {
    pick(dtype, ["1.0f", "1i", "1u", "vec2<u32>(1u, 0u)", "vec2<u32>(1u, 0u)"])
}

/// The least register of a dtype; of floats its bits.
fn least(dtype: DType) -> &'static str {
    let (f, i) = ("0xff800000u", "bitcast<i32>(0x80000000u)");
    pick(dtype, [f, i, "0u", "vec2<u32>(0u, 0x80000000u)", "vec2<u32>(0u, 0u)"])
}

/// The largest register of a dtype; of floats its bits.
fn most(dtype: DType) -> &'static str {
    let (i, u) = ("vec2<u32>(0xffffffffu, 0x7fffffffu)", "vec2<u32>(0xffffffffu, 0xffffffffu)");
    pick(dtype, ["0x7f800000u", "0x7fffffffi", "0xffffffffu", i, u])
}

/// Adds `x` to the sum `sum`, and to `lost` what that addition lost (Knuth's two-sum).
pub fn add_exactly(shader: &mut Shader, sum: &str, lost: &str, x: &str) {
    let whole = shader.opaque(format!("{sum} + {x}"));
    let part = shader.opaque(format!("{whole} - {sum}"));
    let rest = shader.opaque(format!("{whole} - {part}"));
    shader.line(format!("{lost} += ({sum} - {rest}) + ({x} - {part});"));
    shader.line(format!("{sum} = {whole};"));
}

/// A sum with what its additions lost. Beside an infinity that is NaN, and zeros keep their sign.
pub fn with_lost(sum: &str, lost: &str) -> String {
    let is_infinite = format!("(bitcast<u32>({sum}) & 0x7f800000u) == 0x7f800000u");
    let is_nothing = format!("(bitcast<u32>({lost}) & 0x7fffffffu) == 0u");
    format!("select({sum} + {lost}, {sum}, {is_infinite} || {is_nothing})")
}

/// How many invocations share the terms of a result, where one does not sum them alone: `each`
/// terms are little, and `busy` sums at a time much.
pub fn parts(terms: Dim, sums: Dim, each: usize, busy: usize) -> Option<Dim> {
    let Some(terms_) = terms.known() else {
        // What the parts take is a share of what the terms take, at every size.
        let parts = terms.div_ceil(Dim::new(4 * each)).min(Dim::new(MOST_PARTS));
        return Some(parts.max(Dim::ONE));
    };
    let least = terms_.div_ceil(MOST_ROUNDS - MOST_ROUNDS / 10);
    let sums = sums.known().unwrap_or(busy).max(1);
    let wanted = (busy / sums).min(terms_.div_ceil(each)).max(1);
    let parts = wanted.max(least);
    (parts > 1).then(|| Dim::new(parts))
}
