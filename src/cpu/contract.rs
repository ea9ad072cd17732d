//! General products: every contraction becomes one batched matrix product over merged axes.
//!
//! Promises: the bits of an element depend only on its row, its column and the dtype, see
//! [`gemm`](super::gemm). Half floats are summed in float32 and rounded once; integers wrap; bool
//! products are `or` over `and`; an empty sum is zero.

use std::borrow::Cow;
use std::ops::Range;

use crate::array::Array;
use crate::cpu::copy::{cast, cast_into};
use crate::cpu::dense::{Load, Real};
use crate::cpu::gemm::{self, Axis, Extras, Matrix, PackPrologue};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{Layout, row_major};
use crate::memory::block_bytes;
use crate::ops::attributes::Contraction;
use crate::shape::{Axes, Dim, MAX_RANK, Shape};
use crate::target::Packed;

/// `out[batch, free of a, free of b] = Σ a[..] b[..]`. Both operands and the result have one dtype.
///
/// # Safety
/// `out` is in C order, of the result's type, and nobody else reads or writes it.
pub unsafe fn contract_into(a: &Array, b: &Array, spec: &Contraction, out: &Array) -> Result<()> {
    // SAFETY: as the caller's.
    unsafe { contract_with(Factor::There(a), Factor::There(b), spec, out, Extras::default()) }
}

/// One operand of a product.
#[derive(Clone, Copy)]
pub enum Factor<'a> {
    /// An array
    There(&'a Array),
    /// An operand that a prologue computes while it is packed; it has no batch axes
    Made(&'a Made<'a>),
}

/// An operand whose elements a prologue computes while it is packed.
pub struct Made<'a> {
    /// The layout that its array would have
    pub layout: Layout,
    /// Ops per element
    pub ops: usize,
    /// The prologue, which computes in the accumulator's dtype
    pub fill: PackPrologue<'a>,
}

/// Half floats, which a product widens while it packs them.
struct Narrow {
    ptr: *const u8,
    size: isize,
    load: Load<f32>,
    batch: Axis,
    own: Axis,
    depth: Axis,
}

// SAFETY: the elements are only read.
unsafe impl Sync for Narrow {}

impl Narrow {
    fn new(x: &Array, batch: &Axes, depth: &Axes) -> Result<Narrow> {
        let Matrix { ptr, batch, own, depth, .. } = operand(x.ptr(), &x.layout, batch, depth, None);
        let load = f32::loader(x.dtype, "matmul", "x")?;
        Ok(Narrow { ptr, size: x.dtype.size() as isize, load, batch, own, depth })
    }

    /// Widens a block. `by` are the distances in `to` along the own axis and along `k`.
    ///
    /// # Safety
    /// The block is inside the operand, and `to` is memory for it that nobody else reads or writes.
    unsafe fn fill(
        &self,
        batch: usize,
        own: Range<usize>,
        depth: Range<usize>,
        to: *mut u8,
        by: [isize; 2],
    ) {
        let first = self.batch.at(batch);
        let (own_step, step) = (self.own.inner().1, self.depth.inner().1);
        let steps = self.depth.runs(depth.start, depth.len());
        for own in self.own.runs(own.start, own.len()) {
            for k in &steps {
                let at = own.at as isize * by[0] + k.at as isize * by[1];
                let to = to.cast::<f32>().wrapping_offset(at);
                let from = (first + own.offset + k.offset) * self.size;
                let from = self.ptr.wrapping_offset(from);
                // The contiguous direction of the destination comes last.
                let (pitch, strides, size) = match by[1] == 1 {
                    true => (by[0], [own_step, step], [own.len, k.len]),
                    false => (by[1], [step, own_step], [k.len, own.len]),
                };
                // SAFETY: by contract.
                unsafe { (self.load)(to, pitch as usize, from, strides, size, 1.0) };
            }
        }
    }
}

/// Whether elements of a dtype are widened while they are packed, to be summed in another.
fn widens_in_packing(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

impl<'a> Factor<'a> {
    /// Its array, in the dtype that is summed; none where elements come while they are packed.
    fn array(&self, dtype: DType) -> Result<Option<Cow<'a, Array>>> {
        match *self {
            Factor::There(x) if widens_in_packing(x.dtype) => Ok(None),
            Factor::There(x) => widen(x, dtype).map(Some),
            Factor::Made(_) => Ok(None),
        }
    }

    /// The operand as narrow elements, if it is such.
    fn narrow(&self, batch: &Axes, depth: &Axes) -> Result<Option<Narrow>> {
        match *self {
            Factor::There(x) if widens_in_packing(x.dtype) => {
                Narrow::new(x, batch, depth).map(Some)
            }
            Factor::There(_) | Factor::Made(_) => Ok(None),
        }
    }

    /// The operand as a product reads it, given its array.
    fn operand(&self, array: Option<&Array>, batch: &Axes, depth: &Axes) -> Matrix {
        match (*self, array) {
            (Factor::There(_), Some(x)) => operand(x.ptr(), &x.layout, batch, depth, None),
            (Factor::There(x), None) => operand(std::ptr::null(), &x.layout, batch, depth, Some(0)),
            (Factor::Made(made), _) => {
                operand(std::ptr::null(), &made.layout, batch, depth, Some(made.ops))
            }
        }
    }

    fn fill(&self) -> Option<PackPrologue<'a>> {
        match *self {
            Factor::There(_) => None,
            Factor::Made(made) => Some(made.fill),
        }
    }
}

/// The same with options. An epilogue needs a dtype that [`sums_in_place`].
///
/// # Safety
/// As for [`contract_into`] and [`Extras`].
pub unsafe fn contract_with(
    a: Factor<'_>,
    b: Factor<'_>,
    spec: &Contraction,
    out: &Array,
    extras: Extras<'_>,
) -> Result<()> {
    let dtype = gemm::accumulator(out.dtype);
    if let (Factor::There(a), Factor::There(b), None, None) = (a, b, extras.epilogue, extras.packed)
        && let Some(tiny) = tiny(a, b, spec)
    {
        // SAFETY: the operands are there, and the caller holds `out`.
        unsafe { tiny.run(dtype, [a.ptr(), b.ptr()], out.ptr_mut()) };
        return Ok(());
    }
    let arrays = [a.array(dtype)?, b.array(dtype)?];
    let left = a.operand(arrays[0].as_deref(), &spec.a_batch, &spec.a_contract);
    let right = b.operand(arrays[1].as_deref(), &spec.b_batch, &spec.b_contract);
    let narrow =
        [a.narrow(&spec.a_batch, &spec.a_contract)?, b.narrow(&spec.b_batch, &spec.b_contract)?];
    let widening = |k: usize| {
        let narrow = narrow[k].as_ref();
        // SAFETY: the product asks for what lies inside the operands, and gives memory for it.
        move |batch, own: Range<usize>, depth: Range<usize>, to, by| unsafe {
            narrow.into_iter().for_each(|x| x.fill(batch, own.clone(), depth.clone(), to, by));
        }
    };
    let fills = [widening(0), widening(1)];
    let given = [a.fill(), b.fill()];
    let fill = |k: usize| match narrow[k] {
        Some(_) => Some(&fills[k] as PackPrologue<'_>),
        None => given[k],
    };
    let extras = Extras { fill: [fill(0), fill(1)], ..extras };
    // SAFETY: the axes are those of the arrays, which stay until the end; the caller holds `out`.
    unsafe {
        let wide = wide_result(out, dtype)?;
        gemm::product(dtype, &left, &right, wide.ptr_mut(), extras)?;
        narrow_into(&wide, out);
    }
    Ok(())
}

/// The product of two matrices, if it is tiny and summed in its own dtype.
fn tiny(a: &Array, b: &Array, spec: &Contraction) -> Option<gemm::Tiny> {
    let is_pair = [a, b].iter().all(|x| x.layout.shape().rank() == 2);
    if !is_pair || !spec.a_batch.is_empty() || gemm::accumulator(a.dtype) != a.dtype {
        return None;
    }
    let (&[along_a], &[along_b]) = (&spec.a_contract[..], &spec.b_contract[..]) else {
        return None;
    };
    let size = |x: &Array, axis: usize| x.layout.shape()[axis].value();
    let mut room = [[0; MAX_RANK]; 2];
    let [room_a, room_b] = &mut room;
    let (by_a, by_b) = (a.layout.strides_in(room_a), b.layout.strides_in(room_b));
    gemm::Tiny::new(
        [size(a, 1 - along_a), size(b, 1 - along_b), size(a, along_a)],
        (by_a[1 - along_a], by_a[along_a]),
        (by_b[along_b], by_b[1 - along_b]),
    )
}

/// [`contract_into`] for operands of these layouts, before they have addresses, see
/// [`gemm::Unplaced`]. `None` also where operands or sums are converted.
pub fn unplaced(
    dtype: DType,
    a: &Layout,
    b: &Layout,
    spec: &Contraction,
) -> Option<gemm::Unplaced> {
    let left = operand(std::ptr::null(), a, &spec.a_batch, &spec.a_contract, None);
    let right = operand(std::ptr::null(), b, &spec.b_batch, &spec.b_contract, None);
    sums_in_place(dtype).then(|| gemm::Unplaced::new(gemm::accumulator(dtype), left, right))?
}

/// An operand that lies in memory as a product reads it, and the bytes that it takes to widen it
/// before.
fn lying(dtype: DType, x: &Layout, batch: &Axes, depth: &Axes) -> (Matrix, usize) {
    if widens_in_packing(dtype) {
        return (operand(std::ptr::null(), x, batch, depth, Some(0)), 0);
    }
    let (x, bytes) = widened(dtype, x, gemm::accumulator(dtype));
    (operand(std::ptr::null(), &x, batch, depth, None), bytes)
}

/// The scratch bytes of [`contract_into`], as the memory counters count them.
pub fn scratch(dtype: DType, a: &Layout, b: &Layout, spec: &Contraction, result: usize) -> usize {
    let to = gemm::accumulator(dtype);
    let (left, a_bytes) = lying(dtype, a, &spec.a_batch, &spec.a_contract);
    let (right, b_bytes) = lying(dtype, b, &spec.b_batch, &spec.b_contract);
    a_bytes + b_bytes + wide_bytes(dtype, to, result) + gemm::scratch(to, &left, &right)
}

/// The scratch of a product whose operands are computed while they are packed; `made` has the ops
/// per element of each such operand.
pub fn packed(
    dtype: DType,
    layouts: [&Layout; 2],
    made: [Option<usize>; 2],
    spec: &Contraction,
    result: usize,
) -> Packed {
    let to = gemm::accumulator(dtype);
    let axes = [(&spec.a_batch, &spec.a_contract), (&spec.b_batch, &spec.b_contract)];
    let [(left, a_bytes), (right, b_bytes)] = std::array::from_fn(|k| {
        let (batch, depth) = axes[k];
        match made[k] {
            Some(_) => (operand(std::ptr::null(), layouts[k], batch, depth, made[k]), 0),
            None => lying(dtype, layouts[k], batch, depth),
        }
    });
    let own = a_bytes + b_bytes + wide_bytes(dtype, to, result);
    // An operand that has to be widened is copied in any case.
    let plain = gemm::packings(
        to,
        &Matrix { made: None, ..left.clone() },
        &Matrix { made: None, ..right.clone() },
    );
    let times = gemm::packings(to, &left, &right);
    let is_copied = |k: usize| plain[k].is_some() || dtype.size() != to.size();
    Packed {
        scratch: own + gemm::scratch(to, &left, &right),
        times: std::array::from_fn(|k| times[k].filter(|_| is_copied(k))),
    }
}

/// Whether products of a dtype are summed in the memory of the result.
pub fn sums_in_place(dtype: DType) -> bool {
    gemm::accumulator(dtype).size() == dtype.size()
}

/// The bytes in which a product packs its operands on one thread; `None` where it needs more memory
/// than these. The dtype is one that [`sums_in_place`].
pub fn serial_scratch(dtype: DType, a: &Layout, b: &Layout, spec: &Contraction) -> Option<usize> {
    let left = operand(std::ptr::null(), a, &spec.a_batch, &spec.a_contract, None);
    let right = operand(std::ptr::null(), b, &spec.b_batch, &spec.b_contract, None);
    gemm::serial_scratch(gemm::accumulator(dtype), &left, &right)
}

/// The second operand of a product that is no batch.
pub fn columns(x: &Array, depth: &Axes) -> Matrix {
    operand(x.ptr(), &x.layout, &Axes::new(), depth, None)
}

fn operand(ptr: *const u8, x: &Layout, batch: &Axes, depth: &Axes, made: Option<usize>) -> Matrix {
    let strides = x.strides();
    let axis = |axes: &Axes| Axis::new(axes.iter().map(|&i| (x.shape()[i].value(), strides[i])));
    let rank = x.shape().rank();
    let own = (0..rank).filter(|i| !batch.contains(i) && !depth.contains(i)).collect();
    Matrix { ptr, batch: axis(batch), own: axis(&own), depth: axis(depth), made }
}

/// `x` in the dtype it is summed in. Axes with stride 0 keep it.
pub(super) fn widen(x: &Array, dtype: DType) -> Result<Cow<'_, Array>> {
    if x.dtype == dtype {
        return Ok(Cow::Borrowed(x));
    }
    if x.dtype.size() == dtype.size() {
        return Ok(Cow::Owned(Array { dtype, ..x.clone() }));
    }
    let core = x.view(Layout::strided(once(&x.layout), &x.layout.strides(), x.layout.offset()));
    let wide = cast(&core, dtype)?;
    Ok(Cow::Owned(wide.view(repeated(&x.layout))))
}

/// The shape of a layout with size 1 along axes of stride 0.
fn once(x: &Layout) -> Shape {
    let once = |(n, stride): (usize, &isize)| Dim::new(if *stride == 0 { n.min(1) } else { n });
    x.shape().sizes().into_iter().zip(&x.strides()).map(once).collect()
}

/// The layout of a copy that has stride 0 where the original has.
fn repeated(x: &Layout) -> Layout {
    let mut strides = row_major(&once(x).sizes());
    strides.iter_mut().zip(x.strides()).filter(|(_, s)| *s == 0).for_each(|(to, _)| *to = 0);
    Layout::strided(x.shape().clone(), &strides, 0)
}

/// The layout of the result of [`widen`], and the bytes it takes.
pub(super) fn widened(from: DType, x: &Layout, to: DType) -> (Layout, usize) {
    if from.size() == to.size() {
        return (x.clone(), 0);
    }
    (repeated(x), block_bytes(once(x).count() * to.size()))
}

/// The bytes of the separate array in which a result of `count` elements is summed, if there is
/// one.
pub(super) fn wide_bytes(from: DType, to: DType, count: usize) -> usize {
    if from.size() == to.size() { 0 } else { block_bytes(count * to.size()) }
}

/// The array in which a result is summed: the result's own memory where the dtypes have one size,
/// else a fresh array.
pub(super) fn wide_result(out: &Array, dtype: DType) -> Result<Array> {
    if out.dtype.size() == dtype.size() {
        return Ok(Array { dtype, ..out.clone() });
    }
    Array::uninit(dtype, out.shape().clone())
}

/// Converts a separately summed array into the result's dtype: rounded once, or wrapped.
///
/// # Safety
/// As for [`contract_into`].
pub(super) unsafe fn narrow_into(wide: &Array, out: &Array) {
    if !wide.data.same(&out.data) {
        // SAFETY: the caller holds `out`.
        unsafe { cast_into(wide, out) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::gemm::Packed;
    use crate::cpu::testing::{bytes, contract, layouts, noise, random, values};

    fn matmul(a: &Array, b: &Array) -> Array {
        let rank = a.shape().rank();
        let batch: Axes = (0..rank - 2).collect();
        let (a_contract, b_contract) =
            (Axes::from_slice(&[rank - 1]), Axes::from_slice(&[rank - 2]));
        contract(
            a,
            b,
            &Contraction { a_batch: batch.clone(), b_batch: batch, a_contract, b_contract },
        )
        .unwrap()
    }

    /// `[m, k] × [k, n]` in doubles.
    fn naive(a: &Array, b: &Array, m: usize, k: usize, n: usize) -> Vec<f64> {
        let (a, b) = (values(a), values(b));
        let at = |i: usize| (0..k).map(|p| a[i / n * k + p] * b[p * n + i % n]).sum();
        (0..m * n).map(at).collect()
    }

    const SIZES: [(usize, usize, usize); 20] = [
        (1, 1, 1),
        (8, 8, 8),
        (16, 16, 16),
        (40, 9, 11),
        (600, 300, 5),
        (300, 784, 10),
        (1, 300, 70),
        (70, 300, 1),
        (1, 5000, 1),
        (3, 9000, 2),
        (4, 7, 129),
        (13, 64, 33),
        (64, 64, 64),
        (25, 257, 100),
        (250, 40, 90),
        (130, 520, 200),
        (0, 3, 4),
        (3, 4, 0),
        (40, 16, 3),
        (12, 600, 32),
    ];

    #[test]
    fn products_of_every_dtype_agree_with_a_plain_loop() {
        for (m, k, n) in SIZES {
            for dtype in DType::ALL {
                let (a, b) = (random(dtype, &[m, k], 1), random(dtype, &[k, n], 2));
                let got = matmul(&a, &b);
                assert_eq!((got.dtype, got.shape()), (dtype, &Shape::of(&[m, n])));
                for (got, want) in values(&got).into_iter().zip(naive(&a, &b, m, k, n)) {
                    #[allow(
                        clippy::wildcard_enum_match_arm,
                        reason = "any other dtype says its range"
                    )]
                    let want = match dtype {
                        DType::Bool => (want != 0.0) as i64 as f64,
                        DType::F16 | DType::BF16 => {
                            values(&crate::cpu::testing::array(dtype, &[1], &[want]))[0]
                        }
                        _ => match dtype.int_range() {
                            Some((low, high)) => {
                                let span = (high - low + 1) as f64;
                                want - ((want - low as f64) / span).floor() * span
                            }
                            None => want,
                        },
                    };
                    assert_eq!(got, want, "{dtype} {m} {k} {n}");
                }
            }
        }
    }

    #[test]
    fn bits_do_not_depend_on_the_layout() {
        for (m, k, n) in SIZES {
            for dtype in [DType::F32, DType::F64, DType::BF16] {
                let (a, b) = (noise(dtype, &[m, k], 3), noise(dtype, &[k, n], 4));
                let want = bytes(&matmul(&a, &b));
                for (i, a) in layouts(&a).iter().enumerate() {
                    for (j, b) in layouts(&b).iter().enumerate().step_by(3) {
                        assert!(
                            bytes(&matmul(a, b)) == want,
                            "{dtype} {m} {k} {n}, layouts {i} {j}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn packed_operands_give_the_same_bits() {
        for (m, k, n) in SIZES.into_iter().filter(|&(_, k, n)| k * n > 0) {
            for dtype in [DType::F32, DType::F64, DType::I32] {
                let (a, b) = (noise(dtype, &[m, k], 3), noise(dtype, &[k, n], 4));
                let want = bytes(&matmul(&a, &b));
                let axes = [1, 0].map(|axis| Axes::from_slice(&[axis]));
                let [a_contract, b_contract] = axes;
                let (a_batch, b_batch) = (Axes::new(), Axes::new());
                let spec = Contraction { a_batch, b_batch, a_contract, b_contract };
                for b in layouts(&b) {
                    // SAFETY: the axes are those of the array.
                    let packed = unsafe { Packed::new(dtype, &columns(&b, &spec.b_contract)) };
                    let packed = packed.unwrap().unwrap();
                    let out = Array::uninit(dtype, Shape::of(&[m, n])).unwrap();
                    let factors = (Factor::There(&a), Factor::There(&b));
                    let extras = Extras { packed: Some(&packed), ..Extras::default() };
                    // SAFETY: the result is fresh.
                    unsafe { contract_with(factors.0, factors.1, &spec, &out, extras).unwrap() };
                    assert!(bytes(&out) == want, "{dtype} {m} {k} {n}");
                }
            }
        }
    }

    #[test]
    fn packed_operands_take_a_bounded_number_of_bytes() {
        let one = noise(DType::F32, &[1, 1], 1);
        let wide = one.view(Layout::strided(Shape::of(&[1 << 14, 1 << 15]), &[0, 0], 0));
        // SAFETY: the axes are those of the array.
        let packed = unsafe { Packed::new(DType::F32, &columns(&wide, &Axes::from_slice(&[0]))) };
        assert!(packed.unwrap().is_none());
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_in_a_matrix() {
        let (m, k, n) = (37, 700, 70);
        let (a, b) = (noise(DType::F32, &[m, k], 5), noise(DType::F32, &[k, n], 6));
        let all = bytes(&matmul(&a, &b));
        for i in 0..m {
            let row = a.view(Layout::strided(Shape::of(&[1, k]), &[0, 1], i * k));
            assert_eq!(bytes(&matmul(&row, &b)), all[i * n * 4..(i + 1) * n * 4]);
        }
    }

    #[test]
    fn bits_do_not_depend_on_the_count_of_threads() {
        let threads = crate::threads::num_threads();
        for (m, k, n) in [(300, 300, 300), (1, 3000, 600), (2, 200_000, 3), (700, 40, 1)] {
            let (a, b) = (noise(DType::F32, &[m, k], 1), noise(DType::F32, &[k, n], 2));
            let all = [1, 2, 5].map(|threads| {
                crate::threads::set_num_threads(threads);
                bytes(&matmul(&a, &b))
            });
            crate::threads::set_num_threads(threads);
            assert!(all[0] == all[1] && all[0] == all[2]);
        }
    }

    #[test]
    fn axes_may_stand_anywhere() {
        // out[g, i, j, l] = Σ_{p, q} a[p, i, g, q, j] b[q, g, l, p]
        let (p, i, g, q, j, l) = (3, 4, 2, 5, 6, 7);
        let (a, b) =
            (random(DType::F64, &[p, i, g, q, j], 7), random(DType::F64, &[q, g, l, p], 8));
        let spec = Contraction {
            a_batch: Axes::from_slice(&[2]),
            b_batch: Axes::from_slice(&[1]),
            a_contract: Axes::from_slice(&[0, 3]),
            b_contract: Axes::from_slice(&[3, 0]),
        };
        let got = contract(&a, &b, &spec).unwrap();
        assert_eq!(got.shape(), &Shape::of(&[g, i, j, l]));
        let (x, y, z) = (values(&a), values(&b), values(&got));
        for (at, &got) in z.iter().enumerate() {
            let (gg, ii, jj, ll) = (at / (i * j * l), at / (j * l) % i, at / l % j, at % l);
            let mut sum = 0.0;
            for pp in 0..p {
                for qq in 0..q {
                    let left = (((pp * i + ii) * g + gg) * q + qq) * j + jj;
                    sum += x[left] * y[((qq * g + gg) * l + ll) * p + pp];
                }
            }
            assert_eq!(got, sum);
        }
        for a in layouts(&a) {
            for b in layouts(&b).into_iter().step_by(5) {
                assert_eq!(values(&contract(&a, &b, &spec).unwrap()), z);
            }
        }
    }

    #[test]
    fn a_batch_may_repeat_and_depth_may_be_empty() {
        let (a, b) = (random(DType::F16, &[3, 4, 5], 9), random(DType::F16, &[1, 5, 6], 10));
        let b = b.view(Layout::strided(Shape::of(&[3, 5, 6]), &[0, 6, 1], 0));
        let (got, first) = (matmul(&a, &b), a.view(Layout::contiguous(Shape::of(&[12, 5]))));
        assert_eq!(values(&got), naive(&first, &b, 12, 5, 6));
        let empty = matmul(&random(DType::F32, &[2, 0], 1), &random(DType::F32, &[0, 3], 1));
        assert_eq!(values(&empty), [0.0; 6]);
    }
}
