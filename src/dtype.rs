//! Dtypes, their classes and the promotion table.
//!
//! Promotion is the Array API standard's table; where the standard is silent (bool with numbers,
//! integers with floats) the other operand's dtype wins, as in PyTorch. Python scalars are weak:
//! they raise the class of a dtype, never its width.

use std::fmt;

/// The element type of a tensor. Complex types take the next places.
///
/// It is a word, as the tag of a [`Scalar`] is: what lies behind a byte is moved in pieces, for which
/// the processor waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u64)]
#[allow(missing_docs)]
pub enum DType {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    BF16,
    F32,
    F64,
}

use DType::*;

/// How wide an element is in memory. Code that moves elements without looking at them matches this,
/// so that a width to come is missed nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Width {
    B1,
    B2,
    B4,
    B8,
}

impl Width {
    /// The width in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Width::B1 => 1,
            Width::B2 => 2,
            Width::B4 => 4,
            Width::B8 => 8,
        }
    }

    /// The bits of an element, in the low end.
    ///
    /// # Safety
    /// `from` is valid for reads of this many bytes; it need not be aligned.
    #[inline]
    pub unsafe fn read(self, from: *const u8) -> u64 {
        // SAFETY: as the caller's.
        unsafe {
            match self {
                Width::B1 => from.read().into(),
                Width::B2 => from.cast::<u16>().read_unaligned().into(),
                Width::B4 => from.cast::<u32>().read_unaligned().into(),
                Width::B8 => from.cast::<u64>().read_unaligned(),
            }
        }
    }

    /// Writes an element by its bits, which stand in the low end.
    ///
    /// # Safety
    /// `to` is valid for writes of this many bytes; it need not be aligned.
    #[inline]
    pub unsafe fn write(self, to: *mut u8, bits: u64) {
        // SAFETY: as the caller's.
        unsafe {
            match self {
                Width::B1 => to.write(bits as u8),
                Width::B2 => to.cast::<u16>().write_unaligned(bits as u16),
                Width::B4 => to.cast::<u32>().write_unaligned(bits as u32),
                Width::B8 => to.cast::<u64>().write_unaligned(bits),
            }
        }
    }
}

/// What arithmetic a dtype has. The order is that of weak promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Truth values
    Bool,
    /// Signed and unsigned integers, wrapping
    Int,
    /// IEEE floating point
    Float,
}

/// The type a value has in a kernel's registers: narrow dtypes are widened on load and narrowed
/// (rounded or wrapped) on store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Compute {
    Bool,
    I32,
    I64,
    U32,
    U64,
    F32,
    F64,
}

impl Compute {
    /// Every compute type, in index order.
    pub const ALL: [Compute; 7] = [
        Compute::Bool,
        Compute::I32,
        Compute::I64,
        Compute::U32,
        Compute::U64,
        Compute::F32,
        Compute::F64,
    ];

    /// The dtype whose memory form is this register form.
    pub fn dtype(self) -> DType {
        match self {
            Compute::Bool => Bool,
            Compute::I32 => I32,
            Compute::I64 => I64,
            Compute::U32 => U32,
            Compute::U64 => U64,
            Compute::F32 => F32,
            Compute::F64 => F64,
        }
    }

    /// How wide one element is in a register.
    pub fn width(self) -> Width {
        self.dtype().width()
    }

    /// Bytes of one element in a register.
    pub fn size(self) -> usize {
        self.width().bytes()
    }
}

impl DType {
    /// Every dtype, in index order.
    pub const ALL: [DType; 13] = [Bool, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64];

    /// How wide one element is in memory.
    pub const fn width(self) -> Width {
        match self {
            Bool | I8 | U8 => Width::B1,
            I16 | U16 | F16 | BF16 => Width::B2,
            I32 | U32 | F32 => Width::B4,
            I64 | U64 | F64 => Width::B8,
        }
    }

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        self.width().bytes()
    }

    /// The name in Python and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Bool => "bool",
            I8 => "int8",
            I16 => "int16",
            I32 => "int32",
            I64 => "int64",
            U8 => "uint8",
            U16 => "uint16",
            U32 => "uint32",
            U64 => "uint64",
            F16 => "float16",
            BF16 => "bfloat16",
            F32 => "float32",
            F64 => "float64",
        }
    }

    /// The dtype of a name, if there is one.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// The class of arithmetic.
    pub const fn class(self) -> Class {
        match self {
            Bool => Class::Bool,
            I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64 => Class::Int,
            F16 | BF16 | F32 | F64 => Class::Float,
        }
    }

    /// Bits of the exponent and of the fraction, where it is a float.
    pub fn float_bits(self) -> Option<(u32, u32)> {
        match self {
            DType::F16 => Some((5, 10)),
            DType::BF16 => Some((8, 7)),
            DType::F32 => Some((8, 23)),
            DType::F64 => Some((11, 52)),
            DType::Bool
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U16
            | DType::U32
            | DType::U64 => None,
        }
    }

    /// Whether the bits of an element are a NaN.
    pub fn is_nan(self, bits: u64) -> bool {
        let Some((exponent, fraction)) = self.float_bits() else { return false };
        let infinity = ((1 << exponent) - 1) << fraction;
        let without_sign = (1 << (exponent + fraction)) - 1;
        bits & without_sign > infinity
    }

    /// Whether this is a floating dtype.
    pub const fn is_float(self) -> bool {
        matches!(self.class(), Class::Float)
    }

    /// Whether this is an integer dtype (bool is not).
    pub const fn is_int(self) -> bool {
        matches!(self.class(), Class::Int)
    }

    /// Whether this is an unsigned integer dtype.
    pub const fn is_unsigned(self) -> bool {
        matches!(self, U8 | U16 | U32 | U64)
    }

    /// The register form kernels use for this dtype.
    pub const fn compute(self) -> Compute {
        match self {
            Bool => Compute::Bool,
            I8 | I16 | I32 => Compute::I32,
            U8 | U16 | U32 => Compute::U32,
            I64 => Compute::I64,
            U64 => Compute::U64,
            F16 | BF16 | F32 => Compute::F32,
            F64 => Compute::F64,
        }
    }

    /// The smallest and largest value of an integer dtype; `None` for the others.
    pub const fn int_range(self) -> Option<(i128, i128)> {
        Some(match self {
            I8 => (i8::MIN as i128, i8::MAX as i128),
            I16 => (i16::MIN as i128, i16::MAX as i128),
            I32 => (i32::MIN as i128, i32::MAX as i128),
            I64 => (i64::MIN as i128, i64::MAX as i128),
            U8 => (0, u8::MAX as i128),
            U16 => (0, u16::MAX as i128),
            U32 => (0, u32::MAX as i128),
            U64 => (0, u64::MAX as i128),
            Bool | F16 | BF16 | F32 | F64 => return None,
        })
    }

    /// The common dtype of two, by the table; `None` where there is none (uint64 with a signed
    /// integer).
    pub fn promote(self, other: DType) -> Option<DType> {
        if self == other {
            return Some(self);
        }
        let (low, high) = if self.class() <= other.class() { (self, other) } else { (other, self) };
        if low.class() != high.class() {
            return Some(high);
        }
        match low.class() {
            Class::Bool => Some(Bool),
            Class::Float => Some(match (low, high) {
                (F16, BF16) | (BF16, F16) => F32,
                _ => low.max(high),
            }),
            Class::Int if low.is_unsigned() == high.is_unsigned() => Some(low.max(high)),
            Class::Int => {
                let (signed, unsigned) = if low.is_unsigned() { (high, low) } else { (low, high) };
                // A signed type holds an unsigned one only if it is wider.
                match signed.size().max(2 * unsigned.size()) {
                    2 => Some(I16),
                    4 => Some(I32),
                    8 => Some(I64),
                    _ => None,
                }
            }
        }
    }

    /// The dtype of an operation between this dtype and a Python scalar of a class.
    pub fn promote_weak(self, scalar: Class) -> DType {
        match scalar {
            _ if scalar <= self.class() => self,
            Class::Float => F32,
            Class::Bool | Class::Int => I64,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Python number used as an operand: weak, so it takes the dtype of the tensors beside it.
///
/// Its tag is a word: then a copy is of two words, which the processor takes from where they were
/// just written. Of a byte and what lies behind it, it would wait for the memory.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u64)]
#[allow(missing_docs)]
pub enum Scalar {
    Bool(bool),
    Int(i64),
    /// Integers above `i64::MAX` (uint64 only)
    Uint(u64),
    Float(f64),
}

/// A number beside tensors, weak as a [`Scalar`] is. What looks at its value has to say what it
/// does where only a run tells it; kernels take a [`Scalar`], so they never meet such a one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Numeric {
    /// It is this
    Known(Scalar),
    /// A float that a run tells: the entry of the list's table of numbers
    Told(u32),
}

impl Numeric {
    /// The number, if it is known.
    pub fn known(self) -> Option<Scalar> {
        match self {
            Numeric::Known(value) => Some(value),
            Numeric::Told(_) => None,
        }
    }

    /// The entry of the list's table, if a run tells it.
    pub fn told(self) -> Option<u32> {
        match self {
            Numeric::Known(_) => None,
            Numeric::Told(i) => Some(i),
        }
    }

    /// The class that weak promotion sees.
    pub fn class(self) -> Class {
        self.known().map_or(Class::Float, Scalar::class)
    }

    /// The dtype of a tensor that is made of it alone.
    pub fn default_dtype(self) -> DType {
        self.known().map_or(DType::F32, Scalar::default_dtype)
    }

    /// Whether it is a float, as numbers are that a run tells.
    pub fn is_float(self) -> bool {
        self.known().is_none_or(Scalar::is_float)
    }

    /// The same number as a float; one that a run tells is a float already.
    #[must_use]
    pub fn as_float(self) -> Numeric {
        match self {
            Numeric::Known(value) => Numeric::Known(value.as_float()),
            Numeric::Told(_) => self,
        }
    }

    /// Whether a dtype can hold it exactly: see [`Scalar::fits`].
    pub fn fits(self, dtype: DType) -> bool {
        self.known().is_none_or(|value| value.fits(dtype))
    }
}

impl fmt::Display for Numeric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Numeric::Known(value) => value.fmt(f),
            Numeric::Told(i) => write!(f, "#{i}"),
        }
    }
}

impl<T: Into<Scalar>> From<T> for Numeric {
    fn from(x: T) -> Numeric {
        Numeric::Known(x.into())
    }
}

impl Scalar {
    /// The class that weak promotion sees.
    pub fn class(self) -> Class {
        match self {
            Scalar::Bool(_) => Class::Bool,
            Scalar::Int(_) | Scalar::Uint(_) => Class::Int,
            Scalar::Float(_) => Class::Float,
        }
    }

    /// The dtype of a tensor that is made of it alone.
    pub fn default_dtype(self) -> DType {
        match self {
            Scalar::Bool(_) => DType::Bool,
            Scalar::Int(_) => DType::I64,
            Scalar::Uint(_) => DType::U64,
            Scalar::Float(_) => DType::F32,
        }
    }

    /// The same number as a float.
    #[must_use]
    pub fn as_float(self) -> Scalar {
        match self {
            Scalar::Bool(_) | Scalar::Int(_) | Scalar::Uint(_) => Scalar::Float(self.as_f64()),
            Scalar::Float(_) => self,
        }
    }

    /// Whether it is a float.
    pub fn is_float(self) -> bool {
        matches!(self, Scalar::Float(_))
    }

    /// The number as a double.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => f64::from(u8::from(b)),
            Scalar::Int(i) => i as f64,
            Scalar::Uint(u) => u as f64,
            Scalar::Float(x) => x,
        }
    }

    /// Whether an integer dtype can hold the number exactly (floats and bools always pass: their
    /// class decides).
    pub fn fits(self, dtype: DType) -> bool {
        let value = match self {
            Scalar::Int(i) => i128::from(i),
            Scalar::Uint(u) => i128::from(u),
            Scalar::Bool(_) | Scalar::Float(_) => return true,
        };
        dtype.int_range().is_none_or(|(low, high)| (low..=high).contains(&value))
    }

    /// Writes the number in register form: the bytes of one element of `compute`, in the low end.
    /// Integers wrap; floats become integers by truncation, saturating, NaN as 0.
    pub fn register_bits(self, compute: Compute) -> u64 {
        let int = match self {
            Scalar::Bool(b) => i128::from(b),
            Scalar::Int(i) => i128::from(i),
            Scalar::Uint(u) => i128::from(u),
            Scalar::Float(x) => x as i128,
        };
        match compute {
            Compute::Bool => match self {
                Scalar::Float(x) => u64::from(x != 0.0),
                Scalar::Bool(_) | Scalar::Int(_) | Scalar::Uint(_) => u64::from(int != 0),
            },
            Compute::I32 => u64::from(int as i32 as u32),
            Compute::U32 => u64::from(int as u32),
            Compute::I64 => int as i64 as u64,
            Compute::U64 => int as u64,
            Compute::F32 => u64::from(match self {
                Scalar::Int(i) => (i as f32).to_bits(),
                Scalar::Uint(u) => (u as f32).to_bits(),
                Scalar::Bool(_) | Scalar::Float(_) => (self.as_f64() as f32).to_bits(),
            }),
            Compute::F64 => self.as_f64().to_bits(),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(b) => f.write_str(if *b { "True" } else { "False" }),
            Scalar::Int(i) => write!(f, "{i}"),
            Scalar::Uint(u) => write!(f, "{u}"),
            Scalar::Float(x) => write!(f, "{x:?}"),
        }
    }
}

impl From<f64> for Scalar {
    fn from(x: f64) -> Scalar {
        Scalar::Float(x)
    }
}
impl From<i64> for Scalar {
    fn from(x: i64) -> Scalar {
        Scalar::Int(x)
    }
}
impl From<i32> for Scalar {
    fn from(x: i32) -> Scalar {
        Scalar::Int(x.into())
    }
}
impl From<bool> for Scalar {
    fn from(x: bool) -> Scalar {
        Scalar::Bool(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_is_symmetric_and_follows_the_standard() {
        for a in DType::ALL {
            for b in DType::ALL {
                assert_eq!(a.promote(b), b.promote(a), "{a} {b}");
            }
        }
        assert_eq!(U8.promote(I8), Some(I16));
        assert_eq!(U32.promote(I8), Some(I64));
        assert_eq!(U64.promote(I64), None);
        assert_eq!(BF16.promote(F16), Some(F32));
        assert_eq!(I64.promote(F16), Some(F16));
    }

    #[test]
    fn an_element_is_read_and_written_at_its_width_alone() {
        for dtype in DType::ALL {
            let (width, size) = (dtype.width(), dtype.size());
            // One byte off, so that nothing is aligned.
            let from: Vec<u8> = (1..=10).map(|i| i * 25).collect();
            let mut to = [0u8; 10];
            // SAFETY: both hold more than an element behind their first byte.
            let bits = unsafe { width.read(from[1..].as_ptr()) };
            let mut want = [0u8; 8];
            want[..size].copy_from_slice(&from[1..=size]);
            assert_eq!(bits, u64::from_le_bytes(want), "{dtype}");
            // SAFETY: as above.
            unsafe { width.write(to[1..].as_mut_ptr(), bits | u64::MAX << (8 * size - 1)) };
            let mut want = [0u8; 10];
            want[1..=size].copy_from_slice(&from[1..=size]);
            want[size] |= 0x80;
            assert_eq!(to, want, "{dtype}");
        }
    }

    #[test]
    fn weak_scalars_raise_the_class_only() {
        assert_eq!(I8.promote_weak(Class::Int), I8);
        assert_eq!(I8.promote_weak(Class::Float), F32);
        assert_eq!(F16.promote_weak(Class::Int), F16);
        assert_eq!(Bool.promote_weak(Class::Int), I64);
    }
}
