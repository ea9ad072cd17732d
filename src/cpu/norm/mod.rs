//! Layer normalisation over trailing axes, in one pass over memory.
//!
//! Promises: exactly the bits of the body, `nn.layer_norm`, and of its gradient. Sums are those of
//! [`reduce`](super::reduce), every other step is one rounding in the accumulator's dtype, and
//! results are rounded to their dtype once. So which of the two computes does not show.
//!
//! A row is one thread's. Few rows that are very long are better left to the body.

mod kernels;
#[cfg(test)]
mod tests;

use crate::array::Array;
use crate::cpu::dense::{Load, Real, Store};
use crate::cpu::element::Shared;
use crate::cpu::gemm::scratch::Scratch;
use crate::cpu::gemm::{self, Axis, Runs};
use crate::cpu::reduce::{self, Chunk, Partial};
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::emit::OrThrow;
use crate::scalar::rsqrt;
use crate::shape::Shape;
use crate::threads::{self, Pace};
use kernels::{affine, products, slopes};

/// The op in whose name is refused.
const OP: &str = "layer_norm";
/// Elements that one thread takes at a time.
const CHUNK: usize = 1 << 15;
/// Bytes of lines that are handed to a sum over rows at a time, where one takes no more.
const LINES: usize = 1 << 14;
/// The most of these lines.
const MOST_LINES: usize = 16;

/// The mean and one over the standard deviation of each row, of the accumulator's dtype.
pub struct Moments {
    /// The mean
    pub mean: Array,
    /// One over the root of the variance and `eps`
    pub scale: Array,
}

/// The dtype of the result, where there is a kernel for these dtypes: all but a parameter of
/// float64 beside narrower elements.
pub fn result(x: DType, parameters: [Option<DType>; 2]) -> Option<DType> {
    let all = [Some(x), parameters[0], parameters[1]].into_iter().flatten();
    let dtype = all.reduce(|a, b| a.promote(b).unwrap_or(a)).filter(|dtype| dtype.is_float())?;
    (gemm::accumulator(dtype) == gemm::accumulator(x)).then_some(dtype)
}

/// `(x − mean) · scale · weight + bias` over the last `trailing` axes of `x`; the parameters have
/// their sizes. Gives the moments too, where they are wanted; these have the other axes.
pub fn forward(
    x: &Array,
    trailing: usize,
    parameters: [Option<&Array>; 2],
    eps: f64,
    wants_moments: bool,
) -> Result<(Array, Option<Moments>)> {
    let dtypes = parameters.map(|p| p.map(|p| p.dtype));
    let dtype = result(x.dtype, dtypes).ok_or_else(|| refused(x.dtype, dtypes))?;
    let y = Array::uninit(dtype, x.shape().clone())?;
    let moments = wants_moments.then(|| moments(x, trailing)).transpose()?;
    // SAFETY: fresh.
    unsafe { forward_into(x, trailing, parameters, eps, &y, moments.as_ref())? };
    Ok((y, moments))
}

fn refused(x: DType, parameters: [Option<DType>; 2]) -> error::Error {
    let other = parameters.into_iter().flatten().find(|&p| result(x, [Some(p), None]).is_none());
    error::wrong_dtype(OP, "weight", other.unwrap_or(x), "floating")
}

/// Arrays for moments, not written yet.
fn moments(x: &Array, trailing: usize) -> Result<Moments> {
    let dims = x.shape().dims();
    let shape = Shape::from_dims(&dims[..dims.len() - trailing]);
    let empty = || Array::uninit(gemm::accumulator(x.dtype), shape.clone());
    Ok(Moments { mean: empty()?, scale: empty()? })
}

/// The same into results that are there.
///
/// # Safety
/// They are in C order, of the results' types, and nobody else reads or writes them.
pub unsafe fn forward_into(
    x: &Array,
    trailing: usize,
    parameters: [Option<&Array>; 2],
    eps: f64,
    y: &Array,
    moments: Option<&Moments>,
) -> Result<()> {
    // SAFETY: by contract.
    unsafe {
        if x.dtype == DType::F64 {
            Forward::<f64>::new(x, trailing, parameters, eps, y, moments)?.run()
        } else {
            Forward::<f32>::new(x, trailing, parameters, eps, y, moments)?.run()
        }
    }
}

/// The cotangents of `x`, the weight and the bias, as far as they are wanted, each of the dtype of
/// what it belongs to (that of the bias in `bias`). `g` is the cotangent of the result.
pub fn backward(
    g: &Array,
    x: &Array,
    trailing: usize,
    weight: Option<&Array>,
    bias: DType,
    moments: &Moments,
    wanted: [bool; 3],
) -> Result<[Option<Array>; 3]> {
    let dims = x.shape().dims();
    let own = Shape::from_dims(&dims[dims.len() - trailing..]);
    let types = [
        (x.dtype, x.shape().clone()),
        (weight.map_or(x.dtype, |weight| weight.dtype), own.clone()),
        (bias, own),
    ];
    let mut to = [None, None, None];
    for ((to, (dtype, shape)), wanted) in to.iter_mut().zip(types).zip(wanted) {
        *to = wanted.then(|| Array::uninit(dtype, shape)).transpose()?;
    }
    // SAFETY: fresh.
    unsafe {
        backward_into(g, x, trailing, weight, moments, to.each_ref().map(Option::as_ref))?;
    }
    Ok(to)
}

/// The same into results that are there.
///
/// # Safety
/// They are in C order, of the results' types, and nobody else reads or writes them.
pub unsafe fn backward_into(
    g: &Array,
    x: &Array,
    trailing: usize,
    weight: Option<&Array>,
    moments: &Moments,
    to: [Option<&Array>; 3],
) -> Result<()> {
    // SAFETY: by contract.
    unsafe {
        if x.dtype == DType::F64 {
            Backward::<f64>::new(g, x, trailing, weight, moments, to)?.run(to)
        } else {
            Backward::<f32>::new(g, x, trailing, weight, moments, to)?.run(to)
        }
    }
}

/// How rows are shared between threads.
struct Cut {
    /// Bytes that a thread works in
    size: usize,
    /// Lines that are summed at a time
    lines: usize,
    /// Rows that one thread takes at a time
    each: usize,
    /// Threads that have work
    parts: usize,
}

impl Cut {
    fn forward<T>(count: usize, n: usize) -> Cut {
        let each = (CHUNK / n.max(1)).max(1);
        Cut::new(2 * n.max(1) * size_of::<T>(), 0, each, count)
    }

    fn backward<T>(count: usize, n: usize, sums_up: bool) -> Cut {
        let line = n.max(1) * size_of::<T>();
        let lines = (LINES / line).clamp(1, MOST_LINES);
        let group = if sums_up { reduce::lines_together(count, n) } else { 1 };
        let each = (CHUNK / n.max(1)).next_multiple_of(group).max(group);
        Cut::new((4 + 2 * lines) * line, lines, each, count)
    }

    fn new(size: usize, lines: usize, each: usize, count: usize) -> Cut {
        let parts = threads::num_threads().min(count.div_ceil(each));
        Cut { size, lines, each, parts }
    }
}

/// An operand as rows of an array that has others before them.
pub(super) struct Rows<T> {
    ptr: Shared<u8>,
    size: usize,
    rows: Axis,
    runs: Runs,
    stride: isize,
    n: usize,
    load: Load<T>,
    /// Whether rows lie in memory as `T`s side by side
    is_plain: bool,
}

impl<T: Real> Rows<T> {
    /// `x` with the last `trailing` axes as rows.
    pub fn new(x: &Array, trailing: usize) -> Result<Rows<T>> {
        let (sizes, strides) = (x.shape().sizes(), x.layout.strides());
        let axis = |from: usize, to: usize| {
            Axis::new(sizes[from..to].iter().copied().zip(strides[from..to].iter().copied()))
        };
        let lead = sizes.len() - trailing;
        let (rows, row) = (axis(0, lead), axis(lead, sizes.len()));
        let (runs, stride) = (row.runs(0, row.len()), row.inner().1);
        Ok(Rows {
            ptr: Shared::reading(x.ptr()),
            size: x.dtype.size(),
            rows,
            is_plain: x.dtype == T::DTYPE && stride == 1 && runs.len() == 1,
            runs,
            stride,
            n: row.len(),
            load: T::loader(x.dtype, OP, "x")?,
        })
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// The elements of a row.
    pub fn width(&self) -> usize {
        self.n
    }

    /// A row: where it lies, or else read into `spare`.
    ///
    /// # Safety
    /// There is this row, and room for it.
    pub unsafe fn get(&self, row: usize, spare: *mut T) -> *const T {
        if self.is_plain {
            let start = self.rows.at(row) + self.runs[0].offset;
            return self.ptr.at(start * self.size as isize).cast();
        }
        // SAFETY: by contract.
        unsafe { self.read(row, spare) };
        spare
    }

    /// Reads a row.
    ///
    /// # Safety
    /// There is this row, and room for it.
    unsafe fn read(&self, row: usize, to: *mut T) {
        let start = self.rows.at(row);
        for run in &self.runs {
            let from = self.ptr.at((start + run.offset) * self.size as isize);
            // SAFETY: by contract.
            unsafe {
                (self.load)(to.add(run.at), 0, from, [0, self.stride], [1, run.len], T::ONE);
            }
        }
    }

    /// All of an array of one row.
    fn all(x: &Array) -> Result<Vec<T>> {
        let rows = Rows::<T>::new(x, x.shape().rank())?;
        let mut all = reduce::with_capacity(rows.n);
        // SAFETY: there is room for the row, which fills it.
        unsafe {
            rows.read(0, all.as_mut_ptr());
            all.set_len(rows.n);
        }
        Ok(all)
    }
}

/// A result, by rows.
struct To<T: Real> {
    ptr: Shared<u8>,
    size: usize,
    store: Store<T>,
    /// Whether its elements are `T`s
    is_plain: bool,
}

impl<T: Real> To<T> {
    /// # Safety
    /// As for [`forward_into`].
    unsafe fn new(x: &Array) -> Result<To<T>> {
        // SAFETY: by contract.
        let ptr = Shared::new(unsafe { x.ptr_mut() });
        let (size, is_plain) = (x.dtype.size(), x.dtype == T::DTYPE);
        Ok(To { ptr, size, store: T::storer(x.dtype, OP, "x")?, is_plain })
    }

    /// Where a row of `n` elements is to be computed: in place, or else in `spare`.
    fn place(&self, row: usize, n: usize, spare: *mut T) -> *mut T {
        if self.is_plain { self.at(row, n).cast() } else { spare }
    }

    fn at(&self, row: usize, n: usize) -> *mut u8 {
        self.ptr.at((row * n * self.size) as isize)
    }

    /// Writes a row of `n` elements, unless it was computed in place.
    ///
    /// # Safety
    /// It is in the result, and this call's.
    unsafe fn write(&self, row: usize, from: *const T, n: usize) {
        let to = self.at(row, n);
        if to.cast_const() == from.cast() {
            return;
        }
        // SAFETY: by contract.
        unsafe { (self.store)(to, n, from, n, [1, n], T::ONE) };
    }
}

struct Forward<T: Real> {
    x: Rows<T>,
    count: usize,
    weight: Option<Vec<T>>,
    bias: Option<Vec<T>>,
    eps: T,
    y: To<T>,
    moments: Option<[Shared<T>; 2]>,
}

impl<T: Real> Forward<T> {
    unsafe fn new(
        x: &Array,
        trailing: usize,
        [weight, bias]: [Option<&Array>; 2],
        eps: f64,
        y: &Array,
        moments: Option<&Moments>,
    ) -> Result<Forward<T>> {
        // SAFETY: by contract.
        let place = |x: &Array| Shared::new(unsafe { x.ptr_mut() }.cast::<T>());
        let rows = Rows::new(x, trailing)?;
        Ok(Forward {
            count: rows.rows.len(),
            x: rows,
            weight: weight.map(Rows::all).transpose()?,
            bias: bias.map(Rows::all).transpose()?,
            eps: T::lit(eps),
            // SAFETY: by contract.
            y: unsafe { To::new(y)? },
            moments: moments.map(|m| [place(&m.mean), place(&m.scale)]),
        })
    }

    fn run(&self) -> Result<()> {
        let n = self.x.n;
        let Cut { size, each, parts, .. } = Cut::forward::<T>(self.count, n);
        let scratch = Scratch::new(size, parts)?;
        threads::for_each_chunk(self.count, each, |rows| {
            let part = scratch.lend(size).or_throw();
            let spare = [part.ptr().cast::<T>(), part.ptr().cast::<T>().wrapping_add(n)];
            let mut pace = Pace::default();
            for row in rows {
                pace.work(n);
                // SAFETY: the workspace is two rows; the row is this chunk's.
                unsafe { self.row(row, spare) };
            }
        });
        Ok(())
    }

    unsafe fn row(&self, row: usize, [x, y]: [*mut T; 2]) {
        let n = self.x.n;
        // SAFETY: by contract.
        unsafe {
            let (x, y) = (self.x.get(row, x), self.y.place(row, n, y));
            let mean = average(x, n);
            let variance = reduce::sum_of_squares(x, n, -mean) / T::lit(n as f64);
            let scale = rsqrt(variance + self.eps);
            affine::<T>(x, y, n, [mean, scale], self.weight.as_deref(), self.bias.as_deref());
            self.y.write(row, y, n);
            if let Some([to_mean, to_scale]) = self.moments {
                *to_mean.at(row as isize) = mean;
                *to_scale.at(row as isize) = scale;
            }
        }
    }
}

/// The mean of a row, as a sum and a quotient.
///
/// # Safety
/// It can be read.
unsafe fn average<T: Real>(x: *const T, n: usize) -> T {
    // SAFETY: by contract.
    unsafe { reduce::sum_of_row(x, n) / T::lit(n as f64) }
}

struct Backward<T: Real> {
    x: Rows<T>,
    g: Rows<T>,
    count: usize,
    weight: Option<Vec<T>>,
    moments: [Rows<T>; 2],
    dx: Option<To<T>>,
}

/// What a thread works in: six rows, and lines for the sums over rows.
struct Workspace<T> {
    normal: *mut T,
    g: *mut T,
    weighted: *mut T,
    products: *mut T,
    /// Lines of `g · normal`, and of `g`
    lines: [*mut T; 2],
}

impl<T: Real> Backward<T> {
    unsafe fn new(
        g: &Array,
        x: &Array,
        trailing: usize,
        weight: Option<&Array>,
        moments: &Moments,
        to: [Option<&Array>; 3],
    ) -> Result<Backward<T>> {
        let rows = Rows::new(x, trailing)?;
        Ok(Backward {
            count: rows.rows.len(),
            x: rows,
            g: Rows::new(g, trailing)?,
            weight: weight.map(Rows::all).transpose()?,
            moments: [Rows::new(&moments.mean, 0)?, Rows::new(&moments.scale, 0)?],
            // SAFETY: by contract.
            dx: to[0].map(|x| unsafe { To::new(x) }).transpose()?,
        })
    }

    unsafe fn run(&self, to: [Option<&Array>; 3]) -> Result<()> {
        let (n, count) = (self.x.n, self.count);
        // A sum over rows is one of groups, each of which is one chunk's.
        let mut sums: [Option<Box<dyn Partial>>; 2] = [None, None];
        for (sum, out) in sums.iter_mut().zip(&to[1..]) {
            let Some(out) = out else { continue };
            if count == 0 || n == 0 {
                // SAFETY: by contract; zero bytes are zeros.
                unsafe { out.ptr_mut().write_bytes(0, out.count() * out.dtype.size()) };
                continue;
            }
            *sum = Some(reduce::sum_of_lines(T::DTYPE, count, n));
        }
        let sums_up = sums.iter().any(Option::is_some);
        let Cut { size, lines, each, parts } = Cut::backward::<T>(count, n, sums_up);
        let scratch = Scratch::new(size, parts)?;
        threads::for_each_chunk(count, each, |rows| {
            let part = scratch.lend(size).or_throw();
            let row = |i: usize| part.ptr().cast::<T>().wrapping_add(i * n);
            let workspace = Workspace {
                normal: row(0),
                g: row(1),
                weighted: row(2),
                products: row(3),
                lines: [row(4), row(4 + lines)],
            };
            let mut chunks: [Option<Box<dyn Chunk + '_>>; 2] =
                sums.each_ref().map(|sum| sum.as_ref().map(|sum| sum.chunk(rows.start)));
            let mut pace = Pace::default();
            for first in rows.clone().step_by(lines) {
                let some = lines.min(rows.end - first);
                pace.work(some * n);
                // SAFETY: the workspace is as large as these rows take, which are this chunk's.
                unsafe {
                    for i in 0..some {
                        self.row(first + i, &workspace, i * n);
                    }
                    for (chunk, lines) in chunks.iter_mut().zip(workspace.lines) {
                        if let Some(chunk) = chunk {
                            chunk.push(lines.cast_const().cast(), some);
                        }
                    }
                }
            }
            chunks.iter_mut().flatten().for_each(|chunk| chunk.end());
        });
        for (sum, out) in sums.iter().zip(&to[1..]) {
            let (Some(sum), Some(out)) = (sum, out) else { continue };
            // SAFETY: by contract; all lines have come.
            unsafe { finish::<T>(sum.as_ref(), out)? };
        }
        Ok(())
    }

    /// The cotangent of a row, and its lines in the sums over rows.
    unsafe fn row(&self, row: usize, workspace: &Workspace<T>, line: usize) {
        let n = self.x.n;
        let mut moments = [T::ZERO; 2];
        // SAFETY: by contract.
        unsafe {
            for (moment, from) in moments.iter_mut().zip(&self.moments) {
                from.read(row, moment);
            }
            self.x.read(row, workspace.normal);
            self.g.read(row, workspace.g);
            let own = [workspace.normal, workspace.g, workspace.weighted, workspace.products];
            let lines = workspace.lines.map(|to| to.add(line));
            products::<T>(own, lines, n, moments, self.weight.as_deref());
            let Some(dx) = &self.dx else { return };
            let means = [average(workspace.weighted, n), average(workspace.products, n)];
            slopes::<T>([workspace.normal, workspace.weighted], n, moments[1], means);
            dx.write(row, workspace.weighted, n);
        }
    }
}

/// Writes a sum over rows in the dtype of what it belongs to.
///
/// # Safety
/// As for [`forward_into`].
unsafe fn finish<T: Real>(sum: &dyn Partial, out: &Array) -> Result<()> {
    // SAFETY: by contract.
    unsafe {
        if out.dtype == T::DTYPE {
            sum.finish(out);
            return Ok(());
        }
        let wide = Array::uninit(T::DTYPE, out.shape().clone())?;
        sum.finish(&wide);
        let n = out.count();
        To::<T>::new(out)?.write(0, wide.ptr().cast(), n);
    }
    Ok(())
}
