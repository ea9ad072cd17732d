//! Epilogues: elementwise programs that run on the elements of a product where these are computed,
//! so that the product itself never lies in memory.

use smallvec::SmallVec;

use super::element::{loaded, register};
use super::group::Operand;
use super::kernel::{Dispatch, Output, Place, Word, count};
use super::shader::Shader;
use super::terms::{Strides, along, merged, read};
use super::{group, kernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::element::ElementProgram;
use crate::shape::{Dim, Dims};

/// A program that runs on a product.
pub struct Epilogue<'a> {
    /// The program
    pub program: &'a ElementProgram,
    /// Which of its arrays is the product
    pub raw: usize,
    /// The others, in order
    pub operands: Vec<Operand>,
    /// The sizes of the product
    pub sizes: &'a [Dim],
    /// The ranges of the results
    pub results: SmallVec<[usize; 2]>,
}

/// Where a product goes.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// To a range
    Range(&'a Output),
    /// Through a program
    Epilogue(&'a Epilogue<'a>),
}

/// The axes of a product's result.
pub struct Grid {
    pub batch: Dims,
    pub rows: Dims,
    pub columns: Dims,
}

impl Target<'_> {
    /// The sizes of the product.
    pub fn sizes(&self) -> &[Dim] {
        match self {
            Target::Range(out) => out.ty.shape.dims(),
            Target::Epilogue(epilogue) => epilogue.sizes,
        }
    }

    /// The memory and the dtype of each result.
    pub fn results(&self) -> SmallVec<[(Place, DType); 2]> {
        match self {
            Target::Range(out) => SmallVec::from_iter([(Place::Range(out.range), out.ty.dtype)]),
            Target::Epilogue(epilogue) => {
                let places = epilogue.results.iter().map(|&range| Place::Range(range));
                places.zip(epilogue.program.dtypes()).collect()
            }
        }
    }
}

impl Epilogue<'_> {
    /// The dispatch of the program on a product that lies somewhere, as a sum of so many parts.
    pub fn dispatch(&self, place: Place, parts: Dim) -> Result<Dispatch> {
        let mut operands = self.operands.clone();
        let view = kernel::View::dense(self.sizes);
        operands.insert(self.raw, Operand { place, view, parts: Some(parts) });
        group::dispatch(self.program, self.sizes, &operands, &self.results)
    }

    /// Adds the function `after`: the lanes of the results for the sum `x` at a row and a column of
    /// a matrix of the batch, which is element `e`.
    pub fn print(&self, shader: &mut Shader, grid: &Grid) -> Result<()> {
        let dtypes = self.program.arrays();
        let mut names = shader.numbers(self.program)?;
        let others = (0..dtypes.len()).filter(|&k| k != self.raw);
        for (k, operand) in others.zip(&self.operands) {
            shader.register(dtypes[k])?;
            let at = grid.position(shader, operand, self.sizes);
            let lane = shader.lane_at(operand.place, dtypes[k], &at);
            names[k] = format!("x{k}");
            shader.line(format!("let x{k} = {};", loaded(dtypes[k], &lane)));
        }
        let dtype = dtypes[self.raw];
        shader.register(dtype)?;
        let lane = shader.narrowed(read(dtype), "x")?;
        names[self.raw] = format!("x{}", self.raw);
        shader.line(format!("let x{} = {};", self.raw, loaded(dtype, &lane)));
        let fields = shader.compute(self.program, &mut names)?;
        let ty = register(super::terms::register(dtype))?.name();
        let params = format!("outer: u32, row: u32, column: u32, e: u32, x: {ty}");
        shader.close("after", &params, &fields);
        Ok(())
    }
}

impl Grid {
    /// The position of an operand's element at `outer`, `row` and `column`, or at `e`.
    fn position(&self, shader: &mut Shader, operand: &Operand, sizes: &[Dim]) -> String {
        let view = &operand.view;
        let start = shader.word(view.offset);
        if view.is_dense && count(&view.sizes).same(count(sizes)) {
            return format!("{start} + e");
        }
        let strides = self.split(&view.broadcast(sizes).strides);
        let mut position = start;
        let mut rest = &strides[..];
        for (sizes, index) in
            [(&self.batch, "outer"), (&self.rows, "row"), (&self.columns, "column")]
        {
            let (own, others) = rest.split_at(sizes.len());
            let (sizes, [own]) = merged(sizes, [own]);
            rest = others;
            if own.iter().all(|&stride| stride == Word::Size(Dim::new(0))) {
                continue;
            }
            let index = shader.indices(index, &sizes);
            let steps = shader.steps(&own);
            position += &format!(" + {}", along(&steps, &index));
        }
        position
    }

    /// Strides along the result as strides along the axes of the product: the channels of a
    /// convolution are groups, the last axis of the batch, and rows.
    fn split(&self, strides: &[Word]) -> Strides {
        let axes = self.batch.len() + self.rows.len() + self.columns.len();
        let mut all: Strides = strides.into();
        if axes > strides.len() {
            let channels = self.batch.len() - 1;
            all.insert(channels, strides[channels].scaled(count(&self.rows)));
        }
        all
    }
}
