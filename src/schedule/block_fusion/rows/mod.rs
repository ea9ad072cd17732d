//! Row fusions: steps that compute rows, as one step with a program of stages.
//!
//! A target without caches of its own to plan for (a GPU) takes no plans of blocks, but one program
//! that says what happens to a row: maps of its elements, reductions of the row, maps of what they
//! give, elements that an index picks. The *frame* says what a row is: sizes, and the axes along
//! which a row goes. A *wide* value has one element for each of the frame, in the same C order; a
//! *narrow* one has one for each row.
//!
//! Sets grow from reductions, step by step along the values that steps give each other, as long as
//! no path leaves a set and comes back. They are formed once for all sizes.

mod build;
mod search;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::ops::attributes::Reduction;
use crate::ops::element::ElementProgram;
use crate::shape::{Axes, Dim, Shape};
use crate::target::RowLimits;
use build::Frame;

/// A value of a row program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// An operand of the step, by position
    Array(usize),
    /// A result of a stage
    Made(usize, usize),
}

/// A part of a row program.
#[derive(Clone, Debug)]
pub enum Stage {
    /// An elementwise program, for each element of a row or once for the row
    Map {
        /// The ops
        program: Arc<ElementProgram>,
        /// Its arrays
        arrays: SmallVec<[Value; 4]>,
        /// The first of its numbers among those of the step
        first: usize,
        /// Whether it goes over the elements of a row
        is_wide: bool,
    },
    /// A reduction of the row
    Reduce {
        /// The kind
        kind: Reduction,
        /// What is reduced
        of: Value,
    },
    /// The position along a row
    Line(DType),
    /// The element of a row, or of an operand of one axis, that an index picks
    Pick {
        /// Where it is picked
        of: Value,
        /// The index
        index: Value,
        /// The sizes of the axes that the op indexes, of which this index goes along the last
        sizes: Shape,
        /// Whether every row has elements of its own to pick from
        is_own: bool,
    },
}

/// What happens to a row.
#[derive(Debug)]
pub struct RowProgram {
    /// In the order in which they run
    pub stages: Vec<Stage>,
    /// The dtypes of the operands
    pub arrays: Vec<DType>,
    /// The results, and whether each is wide
    pub results: SmallVec<[(Value, bool); 2]>,
    /// The names of the steps
    names: String,
}

/// A step that computes rows.
#[derive(Clone)]
pub struct RowFusion {
    /// The program
    pub program: Arc<RowProgram>,
    /// The sizes of the frame
    pub sizes: Shape,
    /// The axes along which a row goes
    pub columns: Axes,
    /// By stage: the shape over which a map goes, or the sizes that a pick indexes
    pub shapes: SmallVec<[Shape; 4]>,
    /// By operand: whether a result of its type may be written over it
    spent: SmallVec<[bool; 4]>,
    /// The types of values that are not written
    hidden: SmallVec<[(DType, Shape); 4]>,
}

/// Whether reductions of these sizes along axes are of rows that are worth a fusion.
pub fn are_rows(sizes: &Shape, axes: &Axes, limits: &RowLimits) -> bool {
    Frame::over(sizes, axes, limits).is_some()
}

impl RowProgram {
    /// The dtype of a value.
    pub fn dtype(&self, value: Value) -> DType {
        match value {
            Value::Array(k) => self.arrays[k],
            Value::Made(stage, k) => match &self.stages[stage] {
                Stage::Map { program, .. } => program.dtype(program.results()[k]),
                Stage::Reduce { of, .. } | Stage::Pick { of, .. } => self.dtype(*of),
                Stage::Line(dtype) => *dtype,
            },
        }
    }

    /// Whether data can make it fail.
    pub fn refuses(&self) -> bool {
        self.stages.iter().any(|stage| matches!(stage, Stage::Pick { .. }))
    }

    /// The names of the steps in order.
    pub fn names(&self) -> &str {
        &self.names
    }
}

impl RowFusion {
    /// The sizes of the axes that tell rows apart.
    pub fn rows(&self) -> Shape {
        self.sizes.reduce(&self.columns, false)
    }

    /// Whether results of its type may be written over operand `i`: every element is read for the
    /// last time by the invocation that then writes the element of the result.
    pub fn spends(&self, i: usize) -> bool {
        self.spent.get(i).copied().unwrap_or(false)
    }

    /// The types of the values between its stages, which are not written.
    pub fn hidden(&self) -> impl Iterator<Item = (DType, &Shape)> {
        self.hidden.iter().map(|(dtype, shape)| (*dtype, shape))
    }

    /// Elementwise ops and terms of reductions.
    pub fn flops(&self) -> u64 {
        let each = |(stage, shape): (&Stage, &Shape)| match stage {
            Stage::Map { program, .. } => (program.instructions().len() * shape.count()) as u64,
            Stage::Reduce { .. } => self.sizes.count() as u64,
            Stage::Line(_) | Stage::Pick { .. } => 0,
        };
        self.program.stages.iter().zip(&self.shapes).map(each).sum()
    }

    /// The same for other sizes.
    pub fn resized(&self, size: &dyn Fn(Dim) -> Dim) -> RowFusion {
        RowFusion {
            sizes: self.sizes.map(size),
            shapes: self.shapes.iter().map(|shape| shape.map(size)).collect(),
            hidden: self.hidden.iter().map(|(dtype, shape)| (*dtype, shape.map(size))).collect(),
            ..self.clone()
        }
    }
}
