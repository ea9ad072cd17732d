//! Kernels over the rows of a tile that take a number for each row.
//!
//! Each does several elementwise ops in one pass: every op rounds as its own kernel does, so the
//! bits are those of the ops one by one.

use crate::cpu::dense::Real;
use crate::cpu::softmax::powers;
use crate::dtype::DType;
use crate::multiversion;
use crate::tile::SHORT;

/// Elements that are computed at once.
const W: usize = 64;

/// Ops on an element, numbers of its row, and elements of rows that all rows share.
pub trait Chain<T> {
    /// How many rows are shared
    const SHARED: usize;
    /// The ops.
    fn of<const N: usize, const FMA: bool>(
        x: &[T; N],
        singles: [T; 2],
        shared: &[[T; N]; 2],
    ) -> [T; N];
}

macro_rules! chains {
    ($($(#[$doc:meta])* $name:ident($x:ident, $singles:tt, $shared:tt; $count:literal) $body:expr;)*) => {$(
        $(#[$doc])*
        struct $name;
        impl<T: Real> Chain<T> for $name {
            const SHARED: usize = $count;
            #[inline(always)]
            fn of<const N: usize, const FMA: bool>(x: &[T; N], singles: [T; 2], shared: &[[T; N]; 2]) -> [T; N] {
                let (mut made, $singles) = ([singles[0]; N], singles);
                for i in 0..N {
                    let ($x, $shared) = (x[i], [shared[0][i], shared[1][i]]);
                    made[i] = $body;
                }
                made
            }
        }
    )*};
}
chains! {
    /// `x + s`
    Sum(x, [s, _], _; 0) x + s;
    /// `x − s`
    Difference(x, [s, _], _; 0) x - s;
    /// `x · s`
    Product(x, [s, _], _; 0) x * s;
    /// `x / s`
    Quotient(x, [s, _], _; 0) x / s;
    /// `x · s · w`
    Weighted(x, [s, _], [w, _]; 1) x * s * w;
    /// `x · s · w + b`
    Affine(x, [s, _], [w, b]; 2) x * s * w + b;
    /// `(x − m) · s`
    Normal(x, [m, s], _; 0) (x - m) * s;
    /// `(x − m) · s · w`
    NormalWeighted(x, [m, s], [w, _]; 1) (x - m) * s * w;
    /// `(x − m) · s · w + b`
    NormalAffine(x, [m, s], [w, b]; 2) (x - m) * s * w + b;
}

/// `e^(x − s)`
struct Power;
impl<T: Real> Chain<T> for Power {
    const SHARED: usize = 0;
    #[inline(always)]
    fn of<const N: usize, const FMA: bool>(
        x: &[T; N],
        [single, _]: [T; 2],
        _: &[[T; N]; 2],
    ) -> [T; N] {
        powers::<T, N, FMA>(x, single)
    }
}

/// `x`, `y`, rows and elements of a row, the numbers of the rows, and the shared rows.
pub type RowKernel = unsafe fn(*const u8, *mut u8, [usize; 2], [*const u8; 2], [*const u8; 2]);

/// The ops of a kernel in order: first one or two with numbers of the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Ops {
    Add,
    Subtract,
    Multiply,
    Divide,
    MultiplyTwice,
    MultiplyTwiceAdd,
    SubtractMultiply,
    SubtractMultiplyTwice,
    SubtractMultiplyTwiceAdd,
    SubtractExp,
    /// By itself it takes no number
    Exp,
}

impl Ops {
    /// The kernel for a dtype, if there is one.
    pub fn kernel(self, dtype: DType) -> Option<RowKernel> {
        #[allow(clippy::wildcard_enum_match_arm, reason = "of other dtypes there are no kernels")]
        match dtype {
            DType::F32 => self.typed::<f32>(),
            DType::F64 => self.typed::<f64>(),
            _ => None,
        }
    }

    fn typed<T: Real>(self) -> Option<RowKernel> {
        Some(match self {
            Ops::Add => chain::select::<T, Sum>(),
            Ops::Subtract => chain::select::<T, Difference>(),
            Ops::Multiply => chain::select::<T, Product>(),
            Ops::Divide => chain::select::<T, Quotient>(),
            Ops::MultiplyTwice => chain::select::<T, Weighted>(),
            Ops::MultiplyTwiceAdd => chain::select::<T, Affine>(),
            Ops::SubtractMultiply => chain::select::<T, Normal>(),
            Ops::SubtractMultiplyTwice => chain::select::<T, NormalWeighted>(),
            Ops::SubtractMultiplyTwiceAdd => chain::select::<T, NormalAffine>(),
            Ops::SubtractExp => chain::select::<T, Power>(),
            Ops::Exp => return None,
        })
    }
}

/// A row of few elements, followed by `s`.
///
/// # Safety
/// `n` elements can be read, fewer than [`SHORT`].
#[inline(always)]
unsafe fn padded<T: Copy>(x: *const T, n: usize, s: T) -> [T; SHORT] {
    let mut part = [s; SHORT];
    // SAFETY: by contract.
    unsafe { part.as_mut_ptr().copy_from_nonoverlapping(x, n) };
    part
}

/// The elements of the shared rows from `at`.
///
/// # Safety
/// They can be read, of as many rows as the chain takes.
#[inline(always)]
unsafe fn beside<T: Real, C: Chain<T>, const N: usize>(
    shared: [*const T; 2],
    at: usize,
    s: T,
) -> [[T; N]; 2] {
    let mut rows = [[s; N]; 2];
    for (own, row) in rows.iter_mut().zip(shared).take(C::SHARED) {
        // SAFETY: by contract.
        *own = unsafe { row.add(at).cast::<[T; N]>().read_unaligned() };
    }
    rows
}

multiversion! {
    /// Runs the ops on rows.
    ///
    /// # Safety
    /// `x` and `y` have the elements of all rows, one row behind the other, and are the same memory
    /// or apart; there is a number for each row in each list, and an element of each shared row for
    /// each of a row's.
    #[expect(dead_code, reason = "the versions are asked for once, not at each call")]
    unsafe fn chain[T, C](
        x: *const u8,
        y: *mut u8,
        size: [usize; 2],
        singles: [*const u8; 2],
        shared: [*const u8; 2],
    )
    where [T: Real, C: Chain<T>]
    {
        let [rows, n] = size;
        let (x, y, singles) = (x.cast::<T>(), y.cast::<T>(), singles.map(|s| s.cast::<T>()));
        let shared = shared.map(|row| row.cast::<T>());
        // SAFETY: by contract.
        unsafe {
            for row in 0..rows {
                let own = singles.map(|s| *s.add(row));
                let s = own[0];
                let (x, y) = (x.add(row * n), y.add(row * n));
                if n < SHORT {
                    let mut rows = [[s; SHORT]; 2];
                    for (own, row) in rows.iter_mut().zip(shared).take(C::SHARED) {
                        *own = padded(row, n, s);
                    }
                    let made = C::of::<SHORT, FMA>(&padded(x, n, s), own, &rows);
                    y.copy_from_nonoverlapping(made.as_ptr(), n);
                    continue;
                }
                // The last ones end with the row, so some are computed again; they are read before
                // they may be written over.
                let last = x.add(n - SHORT).cast::<[T; SHORT]>().read_unaligned();
                let mut at = 0;
                while at + W <= n {
                    let x = x.add(at).cast::<[T; W]>().read_unaligned();
                    let made = C::of::<W, FMA>(&x, own, &beside::<T, C, W>(shared, at, s));
                    y.add(at).cast::<[T; W]>().write_unaligned(made);
                    at += W;
                }
                while at + SHORT <= n {
                    let x = x.add(at).cast::<[T; SHORT]>().read_unaligned();
                    let made = C::of::<SHORT, FMA>(&x, own, &beside::<T, C, SHORT>(shared, at, s));
                    y.add(at).cast::<[T; SHORT]>().write_unaligned(made);
                    at += SHORT;
                }
                if at < n {
                    let at = n - SHORT;
                    let made = C::of::<SHORT, FMA>(&last, own, &beside::<T, C, SHORT>(shared, at, s));
                    y.add(at).cast::<[T; SHORT]>().write_unaligned(made);
                }
            }
        }
    }
}
