//! WGSL text from scalar formulas: numbers that write down what is done with them.
//!
//! [`print()`] hands a formula [`Value`]s; the formula uses them as [`Code`] numbers through the
//! scalar traits, and every operation becomes one line, `let v3 = v1 * v2;`. Promises: the text
//! parses and validates; NaN is tested by its bits, since comparisons with NaN are unreliable on
//! some devices; no infinity or NaN is a constant expression, which WGSL forbids; integer division
//! by zero and shifts past the width give what they give on the CPU.
//!
//! Where a device is less exact than IEEE 754 (division, square root, subnormal numbers), so is the
//! result. Sine, cosine and tangent are within 3 ULP for |x| ≤ 10⁵, and `fmod` is exact for
//! quotients below 2⁵⁹ by normal divisors.

pub mod wide;

use super::pair::product;
use super::{Float, Int, Mask, Scalar};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Sub};

/// A scalar type of WGSL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WgslType {
    /// `f32`
    F32,
    /// `i32`
    I32,
    /// `u32`
    U32,
    /// `bool`
    Bool,
    /// A signed integer of 64 bits, as two words
    I64,
    /// An unsigned one
    U64,
}

impl WgslType {
    /// The name in WGSL.
    pub fn name(self) -> &'static str {
        match self {
            WgslType::F32 => "f32",
            WgslType::I32 => "i32",
            WgslType::U32 => "u32",
            WgslType::Bool => "bool",
            WgslType::I64 | WgslType::U64 => "vec2<u32>",
        }
    }

    /// The words of memory that a value takes.
    pub fn words(self) -> usize {
        match self {
            WgslType::F32 | WgslType::I32 | WgslType::U32 | WgslType::Bool => 1,
            WgslType::I64 | WgslType::U64 => 2,
        }
    }

    /// The end of the names of functions of this type.
    pub fn suffix(self) -> &'static str {
        match self {
            WgslType::I64 => "i64",
            WgslType::U64 => "u64",
            WgslType::F32 | WgslType::I32 | WgslType::U32 | WgslType::Bool => self.name(),
        }
    }
}

/// The Rust types that stand for WGSL's.
pub trait Word: Copy + 'static {
    /// The WGSL type
    const TYPE: WgslType;
}

macro_rules! word {
    ($($rust:ident => $wgsl:ident)*) => {
        $(impl Word for $rust { const TYPE: WgslType = WgslType::$wgsl; })*
    };
}

word! { f32 => F32 i32 => I32 u32 => U32 bool => Bool i64 => I64 u64 => U64 }

/// An expression of any type, within the call of [`print()`] that made it.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    index: u32,
    ty: WgslType,
}

impl Value {
    /// The type of the expression.
    pub fn ty(self) -> WgslType {
        self.ty
    }

    /// The expression as a number to compute with; `T` must be its type.
    pub fn typed<T: Word>(self) -> Code<T> {
        assert_eq!(self.ty, T::TYPE, "an expression of type {:?}", self.ty);
        Code { index: self.index, word: PhantomData }
    }
}

impl<T: Word> From<Code<T>> for Value {
    fn from(code: Code<T>) -> Value {
        Value { index: code.index, ty: T::TYPE }
    }
}

/// An expression of type `T`, within the call of [`print()`] that made it.
#[derive(Clone, Copy, Debug)]
pub struct Code<T> {
    index: u32,
    word: PhantomData<T>,
}

/// The text of an expression: a name or a literal.
struct Text {
    text: String,
    literal: bool,
}

#[derive(Default)]
struct Builder {
    values: Vec<Text>,
    lines: String,
    names: u32,
}

thread_local! {
    static BUILDER: RefCell<Builder> = RefCell::default();
}

impl Builder {
    fn push(&mut self, text: String, literal: bool) -> u32 {
        self.values.push(Text { text, literal });
        self.values.len() as u32 - 1
    }

    /// A new line that names an expression.
    fn bind(&mut self, expression: &str) -> u32 {
        let name = format!("v{}", self.names);
        self.names += 1;
        self.lines += &format!("let {name} = {expression};\n");
        self.push(name, false)
    }

    /// The texts of operands. Among literals alone the first gets a name, so that the expression is
    /// not a constant one, whose overflow would be refused.
    fn operands<const N: usize>(&mut self, mut indices: [u32; N]) -> [String; N] {
        if indices.iter().all(|i| self.values[*i as usize].literal) {
            let text = self.values[indices[0] as usize].text.clone();
            indices[0] = self.bind(&text);
        }
        indices.map(|i| self.values[i as usize].text.clone())
    }
}

/// Prints a formula over named inputs: the lines of its body and the expression of its result.
/// Names in the body are `v0`, `v1`, …
pub fn print(
    inputs: &[(&str, WgslType)],
    formula: impl FnOnce(&[Value]) -> Value,
) -> (String, String) {
    let outer = BUILDER.take();
    let named = |&(name, ty): &(&str, WgslType)| {
        let index = BUILDER.with_borrow_mut(|b| b.push(name.to_string(), false));
        Value { index, ty }
    };
    let values: Vec<Value> = inputs.iter().map(named).collect();
    let result = formula(&values);
    let built = BUILDER.replace(outer);
    let text = built.values[result.index as usize].text.clone();
    (built.lines, text)
}

/// A literal.
fn literal<T: Word>(text: String) -> Code<T> {
    Code { index: BUILDER.with_borrow_mut(|b| b.push(text, true)), word: PhantomData }
}

/// The expression that `write` makes of the texts of its operands.
fn line<T: Word, const N: usize>(
    operands: [u32; N],
    write: impl FnOnce([String; N]) -> String,
) -> Code<T> {
    let index = BUILDER.with_borrow_mut(|b| {
        let texts = b.operands(operands);
        b.bind(&write(texts))
    });
    Code { index, word: PhantomData }
}

impl<T: Word> Code<T> {
    /// A call of a built-in function or conversion with this operand.
    fn call<U: Word>(self, name: &str) -> Code<U> {
        line([self.index], |[x]| format!("{name}({x})"))
    }

    /// `self operator other`
    fn infix<U: Word, V: Word>(self, operator: &str, other: Code<U>) -> Code<V> {
        line([self.index, other.index], |[a, b]| format!("{a} {operator} {b}"))
    }

    /// The same bits as another type.
    fn bitcast<U: Word>(self) -> Code<U> {
        self.call(&format!("bitcast<{}>", U::TYPE.name()))
    }
}

macro_rules! operators {
    ($($trait:ident::$method:ident $text:literal for $($word:ident)*;)*) => {
        $($(
            impl $trait for Code<$word> {
                type Output = Self;
                fn $method(self, other: Self) -> Self {
                    self.infix($text, other)
                }
            }
        )*)*
    };
}

operators! {
    Add::add "+" for f32 i32 u32;
    Sub::sub "-" for f32 i32 u32;
    Mul::mul "*" for f32 i32 u32;
    Div::div "/" for f32;
    BitAnd::bitand "&" for i32 u32 bool;
    BitOr::bitor "|" for i32 u32 bool;
    BitXor::bitxor "^" for i32 u32;
    BitXor::bitxor "!=" for bool;
}

macro_rules! prefixes {
    ($($trait:ident::$method:ident $text:literal for $($word:ident)*;)*) => {
        $($(
            impl $trait for Code<$word> {
                type Output = Self;
                fn $method(self) -> Self {
                    self.call($text)
                }
            }
        )*)*
    };
}

prefixes! {
    Neg::neg "-" for f32 i32;
    Neg::neg "0u - " for u32;
    Not::not "~" for i32 u32;
    Not::not "!" for bool;
}

impl Mask for Code<bool> {}

/// The items of [`Scalar`] that read alike for every type.
macro_rules! comparisons {
    () => {
        type Mask = Code<bool>;

        fn lt(self, other: Self) -> Code<bool> {
            self.infix("<", other)
        }

        fn le(self, other: Self) -> Code<bool> {
            self.infix("<=", other)
        }

        fn eq(self, other: Self) -> Code<bool> {
            self.infix("==", other)
        }

        fn select(mask: Code<bool>, a: Self, b: Self) -> Self {
            line([b.index, a.index, mask.index], |[b, a, m]| format!("select({b}, {a}, {m})"))
        }
    };
}

impl Scalar for Code<f32> {
    comparisons!();

    fn whole(n: i64) -> Self {
        Self::lit(n as f64)
    }

    fn maximum(self, other: Self) -> Self {
        Self::select(self.gt(other) | self.is_nan(), self, other)
    }

    fn minimum(self, other: Self) -> Self {
        Self::select(self.lt(other) | self.is_nan(), self, other)
    }

    fn abs(self) -> Self {
        self.call("abs")
    }

    fn sign(self) -> Self {
        let zero = Self::whole(0);
        let one = Self::select(self.gt(zero), Self::whole(1), Self::whole(-1));
        Self::select(self.is_nan(), self, Self::select(self.eq(zero), zero, one))
    }
}

/// π/2 in parts of eight bits, whose products with whole numbers below 2¹⁶ are exact, and the rest.
const HALF_PI: [f64; 5] =
    [1.5703125, 0.0004825592041015625, 1.2665987014770508e-06, 9.89530235528946e-10, 2.563344e-12];

impl Float for Code<f32> {
    type Bits = Code<i32>;
    const DOUBLE: bool = false;
    const HAS_RARE: bool = false;

    fn lit(value: f64) -> Self {
        let value = value as f32;
        if !value.is_normal() && value.to_bits() != 0 {
            return Self::of_bits(Code::whole(value.to_bits() as i32 as i64));
        }
        literal(if value < 0.0 { format!("({value:?}f)") } else { format!("{value:?}f") })
    }

    fn of_bits(bits: Code<i32>) -> Self {
        bits.bitcast()
    }

    fn bits(self) -> Code<i32> {
        self.bitcast()
    }

    fn of_small(n: Code<i32>) -> Self {
        n.call("f32")
    }

    fn round_small(self) -> (Self, Code<i32>) {
        let n = self.round();
        (n, n.call("i32"))
    }

    fn quarter_turns(self) -> (Code<i32>, Self, Self) {
        let (n, quadrant) = (self * Self::lit(std::f64::consts::FRAC_2_PI)).round_small();
        let part = |i: usize| n * Self::lit(HALF_PI[i]);
        let exact = (self - part(0)) - part(1);
        let (third, fourth) = (part(2), part(3));
        let r = exact - third;
        let lo = (exact - r) - third;
        let next = r - fourth;
        let lo = (((r - next) - fourth) + lo) - part(4);
        let hi = next + lo;
        (quadrant, hi, (next - hi) + lo)
    }

    fn is_far(self) -> bool {
        false
    }

    fn is_beyond(self, _: f64) -> bool {
        false
    }

    fn far_quarter_turns(self) -> (Code<i32>, Self, Self) {
        self.quarter_turns()
    }

    // Drivers make a maximum of a comparison and a selection of what was compared, and theirs of
    // NaN and a number is the number; where NaN is tested by its bits they do not.
    fn at_least(self, low: Self) -> Self {
        self.maximum(low)
    }

    fn at_most(self, high: Self) -> Self {
        self.minimum(high)
    }

    fn sqrt(self) -> Self {
        self.call("sqrt")
    }

    fn floor(self) -> Self {
        self.call("floor")
    }

    fn ceil(self) -> Self {
        self.call("ceil")
    }

    fn trunc(self) -> Self {
        self.call("trunc")
    }

    fn round(self) -> Self {
        self.call("round")
    }

    /// Long division in three digits of 22 bits: WGSL's own `%` is wrong for large quotients.
    fn fmod(self, divisor: Self) -> Self {
        let (zero, infinity) = (Self::whole(0), Self::infinity());
        let (x, d) = (self.abs(), divisor.abs());
        let exponent = |v: Self| v.bits().right(23);
        let mut rest = x;
        for _ in 0..3 {
            let surplus = exponent(rest) - exponent(d) - Code::whole(22);
            let shift = surplus.maximum(Code::whole(0)).minimum(Code::whole(127));
            let step = d * Self::power_of_two(shift);
            let digit = product((rest / step).trunc(), step);
            let left = (rest - digit.hi) - digit.lo;
            rest = Self::select(left.lt(zero), left + step, left);
        }
        let rest = Self::select(x.lt(d), x, rest).copysign(self);
        let defined = x.lt(infinity) & d.gt(zero) & !divisor.is_nan();
        Self::select(defined, rest, Self::nan())
    }

    fn is_nan(self) -> Code<bool> {
        let magnitude = self.bitcast::<u32>() & Code::<u32>::whole(0x7fff_ffff);
        magnitude.gt(Code::whole(0x7f80_0000))
    }
}

macro_rules! int {
    ($int:ident, $suffix:literal, signed: $signed:literal) => {
        impl Scalar for Code<$int> {
            comparisons!();

            fn whole(n: i64) -> Self {
                literal(match n as $int {
                    n if n == $int::MIN => format!("{}({n})", stringify!($int)),
                    n => format!(concat!("{}", $suffix), n),
                })
            }

            fn maximum(self, other: Self) -> Self {
                line([self.index, other.index], |[a, b]| format!("max({a}, {b})"))
            }

            fn minimum(self, other: Self) -> Self {
                line([self.index, other.index], |[a, b]| format!("min({a}, {b})"))
            }

            fn abs(self) -> Self {
                self.call("abs")
            }

            fn sign(self) -> Self {
                // WGSL has no sign of what is never negative.
                match <$int as Word>::TYPE {
                    WgslType::U32 => self.minimum(Self::whole(1)),
                    WgslType::I32
                    | WgslType::F32
                    | WgslType::Bool
                    | WgslType::I64
                    | WgslType::U64 => self.call("sign"),
                }
            }
        }

        impl Int for Code<$int> {
            fn left(self, bits: u32) -> Self {
                self.infix("<<", Code::<u32>::whole(bits as i64))
            }

            fn right(self, bits: u32) -> Self {
                self.infix(">>", Code::<u32>::whole(bits as i64))
            }

            fn shift_left(self, amount: Self) -> Self {
                let amount = amount.bitcast::<u32>();
                let inside = amount.lt(Code::whole(32));
                let shifted = self.infix("<<", amount & Code::<u32>::whole(31));
                Self::select(inside, shifted, Self::whole(0))
            }

            fn shift_right(self, amount: Self) -> Self {
                let amount = amount.bitcast::<u32>();
                let inside = amount.lt(Code::whole(32));
                let shifted = self.infix(">>", amount & Code::<u32>::whole(31));
                let outside = if $signed { self.right(31) } else { Self::whole(0) };
                Self::select(inside, shifted, outside)
            }

            fn floor_divide(self, divisor: Self) -> Self {
                let (zero, one) = (Self::whole(0), Self::whole(1));
                let safe = Self::select(divisor.eq(zero), one, divisor);
                let quotient: Self = self.infix("/", safe);
                let rest = self - quotient * safe;
                let floor = if $signed {
                    let below = rest.ne(zero) & (rest.lt(zero) ^ safe.lt(zero));
                    Self::select(below, quotient - one, quotient)
                } else {
                    quotient
                };
                Self::select(divisor.eq(zero), zero, floor)
            }

            fn remainder(self, divisor: Self) -> Self {
                let zero = Self::whole(0);
                let rest = self - self.floor_divide(divisor) * divisor;
                Self::select(divisor.eq(zero), zero, rest)
            }
        }
    };
}

int!(i32, "i", signed: true);
int!(u32, "u", signed: false);

#[cfg(test)]
mod tests;
