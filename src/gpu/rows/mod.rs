//! Row fusions as one dispatch.
//!
//! A workgroup, a part of it, or one invocation computes a row: how many *lanes* a row has is part
//! of the text. Lanes go over the row in steps of four elements, once for each reduction that the
//! next one needs and once for the results. A row that the registers of its lanes hold is read
//! once; a longer one again by each pass, from a near cache. What lies between is computed again.
//! Lanes join their sums in a fixed order. Rows do not share words of
//! memory, which the planner sees to.

mod pass;
mod text;

use smallvec::SmallVec;

use super::group::Operand;
use super::kernel::{Kernel, Place, Refusal, View, WORKGROUP, Word, count};
use super::lanes::LANES;
use super::shader::Shader;
use super::terms::{Strides, merged};
use crate::dtype::DType;
use crate::error::Result;
use crate::schedule::RowFusion;
use crate::schedule::block_fusion::rows::{Stage, Value};
use crate::shape::{Dim, Dims};
use crate::target::Abilities;
use text::Text;

/// The elements that an invocation holds in registers, of all operands, and of one of them where
/// fewer lanes would hold more.
const HELD: usize = 64;
const HELD_OF_ONE: usize = 16;

/// The most elements of a row that one invocation computes alone.
const ALONE: usize = 16;

/// The same where neighbouring rows lie side by side in memory.
const BESIDE: usize = 256;

/// Invocations below which all of a workgroup computes one row.
const FEW: usize = 1024;

/// The kernel of a row fusion. Results lie without gaps from the start of their ranges.
pub fn kernel(
    fusion: &RowFusion,
    operands: &[Operand],
    results: &[usize],
    abilities: Abilities,
) -> Result<Kernel> {
    for operand in operands {
        operand.view.addressable()?;
    }
    let mut kernel = Kernel::default();
    let frame = Frame::of(fusion);
    let check = picked(fusion);
    let report = check.is_some().then(|| kernel.scratch(DType::I64, frame.all_rows));
    let text = Text::new(fusion, &frame, operands, (results, report), abilities);
    kernel.dispatches.push(text.print()?);
    if let (Some(sizes), Some(report)) = (check, report) {
        // The row of the first index that is refused is known only at the end.
        let mut shader = Shader::new();
        let faults = shader.memory_as(Place::Faults, "atomic<u32>");
        let first = shader.word(Word::Slot);
        let first = shader.name(format!("4u * {first}"));
        let row = shader.name(format!("atomicLoad(&{faults}[{first}])"));
        let rows = shader.size(frame.all_rows);
        shader.line(format!("if {row} >= {rows} {{ return; }}"));
        let lane = shader.lane_at(report, DType::I64, &row);
        let lane = shader.name(lane);
        let axis = shader.size(Dim::new(sizes.len().saturating_sub(1)));
        for (word, value) in [axis, format!("{lane}.x"), format!("{lane}.y")].iter().enumerate() {
            let word = word + 1;
            shader.line(format!("atomicStore(&{faults}[{first} + {word}u], {value});"));
        }
        kernel.dispatches.push(shader.each(Dim::ONE, Dim::new(0)));
        kernel.refusal = Some(Refusal::Outside { op: "gather", sizes });
    }
    Ok(kernel)
}

/// The sizes of the axes that are indexed, where something is.
fn picked(fusion: &RowFusion) -> Option<Dims> {
    let stages = fusion.program.stages.iter().zip(&fusion.shapes);
    let mut sizes = stages.filter_map(|(stage, shape)| match stage {
        Stage::Pick { .. } => Some(shape.dims().into()),
        Stage::Map { .. } | Stage::Reduce { .. } | Stage::Line(_) => None,
    });
    sizes.next()
}

/// The rows of a fusion.
struct Frame {
    sizes: Dims,
    /// The axes that tell rows apart, and those along which they go
    rows: SmallVec<[usize; 6]>,
    columns: SmallVec<[usize; 6]>,
    all_rows: Dim,
    all_columns: Dim,
    /// How many invocations compute a row
    lanes: usize,
    /// How many elements an invocation computes at a time
    vector: usize,
    /// Whether every row is a whole number of vectors, none of which has a gap
    is_whole: bool,
    /// Whether neighbouring invocations compute neighbouring rows
    is_across: bool,
}

impl Frame {
    fn of(fusion: &RowFusion) -> Frame {
        let sizes: Dims = fusion.sizes.dims().into();
        let columns: SmallVec<[usize; 6]> = fusion.columns.iter().copied().collect();
        let rows = (0..sizes.len()).filter(|axis| !columns.contains(axis)).collect();
        let is_across = columns.last() != Some(&(sizes.len() - 1));
        let run = (0..sizes.len()).rev().take_while(|axis| columns.contains(axis));
        let run: Option<usize> = run.map(|axis| sizes[axis].known()).product();
        let mut frame = Frame {
            rows,
            columns,
            all_rows: Dim::ONE,
            all_columns: Dim::ONE,
            lanes: LANES,
            vector: if is_across { 1 } else { 4 },
            is_whole: !is_across && run.is_some_and(|run| run.is_multiple_of(4)),
            is_across,
            sizes,
        };
        frame.all_rows = count(&frame.sizes_of(&frame.rows));
        frame.all_columns = count(&frame.sizes_of(&frame.columns));
        let (rows, columns) = (frame.all_rows.known(), frame.all_columns.known());
        let alone = if is_across { BESIDE } else { ALONE };
        let are_few = rows.is_some_and(|rows| rows * LANES < FEW)
            && columns.is_none_or(|columns| columns > LANES * frame.vector);
        let is_long = columns.is_some_and(|columns| columns > LANES * HELD_OF_ONE) && !is_across;
        if columns.is_some_and(|columns| columns <= alone) {
            frame.lanes = 1;
        } else if are_few || is_long {
            frame.lanes = WORKGROUP;
        }
        frame
    }

    fn sizes_of(&self, axes: &[usize]) -> Dims {
        axes.iter().map(|&axis| self.sizes[axis]).collect()
    }

    /// The sizes and strides of some axes of a view of the frame, neighbours merged.
    fn along(&self, view: &View, axes: &[usize]) -> (Dims, Strides) {
        let strides: Strides = axes.iter().map(|&axis| view.strides[axis]).collect();
        let (sizes, [strides]) = merged(&self.sizes_of(axes), [&strides]);
        (sizes, strides)
    }

    /// Rows of a workgroup.
    fn height(&self) -> usize {
        WORKGROUP / self.lanes
    }

    /// Rounds of a pass in which an invocation holds its elements of a number of operands, if it
    /// can: few numbers, so that there are few texts.
    fn held_rounds(&self, operands: usize) -> Option<usize> {
        let rounds = self.all_columns.known()?.div_ceil(self.lanes * self.vector);
        let rounds = rounds.next_power_of_two();
        (operands > 0 && rounds * self.vector * operands <= HELD).then_some(rounds)
    }

    /// Rounds of a pass, at most.
    fn rounds(&self) -> Dim {
        self.all_columns.div_ceil(Dim::new(self.lanes * self.vector))
    }
}

/// By stage: how many reductions one after the other come before it.
fn levels(stages: &[Stage]) -> Vec<usize> {
    let mut levels: Vec<usize> = Vec::with_capacity(stages.len());
    for stage in stages {
        levels.push(match stage {
            Stage::Map { arrays, .. } => {
                arrays.iter().map(|value| level(&levels, *value)).max().unwrap_or(0)
            }
            Stage::Reduce { of, .. } => level(&levels, *of) + 1,
            Stage::Line(_) => 0,
            Stage::Pick { of, index, .. } => level(&levels, *of).max(level(&levels, *index)),
        });
    }
    levels
}

fn level(levels: &[usize], value: Value) -> usize {
    match value {
        Value::Array(_) => 0,
        Value::Made(stage, _) => levels[stage],
    }
}
