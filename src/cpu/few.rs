//! Elementwise ops on few elements: the shortest way from operands to a result.
//!
//! What such a call costs is nearly all beside its kernel, so this way takes no step that its
//! operands do not need: no type is inferred, no list is made, and only the result moves.

use std::mem::MaybeUninit;

use super::program::{is_narrow, register_bits, splat};
use crate::array::{Array, Fresh, Operand};
use crate::dtype::DType;
use crate::error::Result;
use crate::memory::Buffer;
use crate::ops::elementwise::{Elementwise, arithmetic};
use crate::tile::TileKernel;

/// The most elements that are few: numbers are repeated on the stack.
const FEW: usize = 64;

#[repr(C, align(64))]
struct Spread([[u64; FEW]; 3]);

/// An elementwise op on promoted operands, each a number or an array of one type: few elements, in C
/// order and in register form.
pub struct Few<'a, 'b> {
    kernel: TileKernel,
    args: &'b [Operand<'a>],
    /// The first array.
    like: &'a Array,
    count: usize,
    /// The dtype of the result.
    dtype: DType,
}

impl<'a, 'b> Few<'a, 'b> {
    /// The op, if its operands are such, and of a dtype that it takes.
    #[inline(always)]
    pub fn of(def: &Elementwise, args: &'b [Operand<'a>]) -> Option<Few<'a, 'b>> {
        let mut first: Option<&'a Array> = None;
        let mut has_numbers = false;
        for arg in args {
            match *arg {
                Operand::Array(x) => {
                    let first = *first.get_or_insert(x);
                    let is_first = std::ptr::eq(x, first);
                    if is_first && x.count() > FEW {
                        return None;
                    }
                    let is_alike = x.dtype == first.dtype && x.shape() == first.shape();
                    if !x.is_contiguous() || !(is_first || is_alike) {
                        return None;
                    }
                }
                Operand::Scalar(_) => has_numbers = true,
            }
        }
        let like = first?;
        let (count, dtype) = (like.count(), like.dtype);
        // A power to a number may be a cheaper op.
        let is_other = def.condition || has_numbers && *def == arithmetic::pow;
        if !like.shape().is_short()
            || is_narrow(dtype)
            || is_other
            || !def.classes.contains(dtype.class())
        {
            return None;
        }
        let kernel = def.kernel(dtype.compute())?;
        Some(Few { kernel, args, like, count, dtype: def.result_dtype(dtype) })
    }

    /// The dtype of the arrays.
    pub fn dtype(&self) -> DType {
        self.like.dtype
    }

    /// The bytes of each array.
    pub fn bytes(&self) -> usize {
        self.count * self.like.dtype.size()
    }

    /// The result, in memory of its own.
    #[inline(always)]
    pub fn compute(&self) -> Result<Fresh<'a>> {
        let buffer = Buffer::alloc(self.count * self.dtype.size())?;
        // SAFETY: the memory is fresh and has room for the result.
        unsafe { self.compute_into(buffer.ptr_mut()) };
        Ok(Fresh { dtype: self.dtype, shape: self.like.shape(), data: buffer.into() })
    }

    /// Computes the result into memory that is there.
    ///
    /// # Safety
    /// `out` is valid for the result, and fresh or the memory of an operand of the result's dtype
    /// that nobody else holds.
    #[inline(always)]
    pub unsafe fn compute_into(&self, out: *mut u8) {
        let mut memory = MaybeUninit::<Spread>::uninit();
        let mut pointers = [std::ptr::null(); 3];
        for (k, (pointer, arg)) in pointers.iter_mut().zip(self.args).enumerate() {
            *pointer = match *arg {
                Operand::Array(x) => x.ptr(),
                Operand::Scalar(value) => {
                    let row = memory.as_mut_ptr().cast::<u64>().wrapping_add(k * FEW).cast::<u8>();
                    let dtype = self.like.dtype;
                    let (bits, width) = (register_bits(value, dtype), dtype.compute().width());
                    // SAFETY: a row holds `FEW` elements of eight bytes, and the count is no more.
                    unsafe { splat(row, bits, width, self.count) };
                    row.cast_const()
                }
            };
        }
        // SAFETY: every array has `count` elements in the form that the kernel was asked for, and the
        // caller vouches for the output.
        unsafe { (self.kernel)(out, &pointers, self.count) }
    }
}
