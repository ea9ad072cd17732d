//! The text of a row fusion.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::super::element::{PACK, element, is_wide, loaded, pack, rounded};
use super::super::group::Operand;
use super::super::indexing::PICKED;
use super::super::kernel::{Dispatch, Place, View, WORKGROUP, Word};
use super::super::lanes::Lanes;
use super::super::shader::Shader;
use super::super::terms::Strides;
use super::pass::{Held, Pass};
use super::{Frame, levels};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::element::ElementProgram;
use crate::schedule::RowFusion;
use crate::schedule::block_fusion::rows::{RowProgram, Stage, Value};
use crate::shape::{Dim, Dims};
use crate::target::Abilities;

/// How the elements of a row are found in an operand.
#[derive(Clone)]
pub enum Walk {
    /// One element for the row, which is loaded once
    Row,
    /// Along the axes of the columns, from a base of the row; perhaps four at a time
    Columns(Dims, Strides, bool),
    /// By an index along each axis of the shape of a stage
    Free,
}

/// A row fusion that is being printed.
pub struct Text<'a> {
    pub(super) fusion: &'a RowFusion,
    pub(super) program: &'a RowProgram,
    pub(super) frame: &'a Frame,
    pub(super) operands: &'a [Operand],
    pub(super) results: &'a [usize],
    pub(super) report: Option<Place>,
    pub(super) shader: Shader,
    pub(super) lanes: Lanes,
    /// By operand that wide stages read: how, and as which view of the frame
    pub(super) walks: Vec<Option<(Walk, View)>>,
    /// The type of the elements of each place
    pub(super) places: Vec<(Place, &'static str)>,
    pub(super) levels: Vec<usize>,
    /// What is held from pass to pass, and the rounds of a pass where something is
    pub(super) held: Vec<Held>,
    pub(super) rounds: Option<usize>,
    pub(super) numbers: FxHashMap<usize, String>,
    pub(super) main: String,
}

/// The name of a narrow value.
pub fn narrow(stage: usize, k: usize) -> String {
    format!("v{stage}_{k}")
}

impl<'a> Text<'a> {
    pub fn new(
        fusion: &'a RowFusion,
        frame: &'a Frame,
        operands: &'a [Operand],
        (results, report): (&'a [usize], Option<Place>),
        abilities: Abilities,
    ) -> Text<'a> {
        let program = &*fusion.program;
        let unit = if frame.is_across { frame.height() } else { 1 };
        Text {
            fusion,
            program,
            frame,
            operands,
            results,
            report,
            shader: Shader::able(abilities),
            lanes: Lanes::new(frame.lanes, unit),
            walks: vec![None; operands.len()],
            places: Vec::new(),
            levels: levels(&program.stages),
            held: Vec::new(),
            rounds: None,
            numbers: FxHashMap::default(),
            main: String::new(),
        }
    }

    pub fn print(mut self) -> Result<Dispatch> {
        self.find_walks();
        self.find_places();
        self.begin()?;
        let last = self.levels.iter().copied().max().unwrap_or(0);
        let begun = self.shader.taken();
        let mut passes = Vec::new();
        for pass in 0..=last {
            passes.push(self.pass(pass, pass == last)?);
        }
        self.main += &begun;
        self.hold(&passes)?;
        for (number, pass) in passes.iter().enumerate() {
            for stage in 0..self.program.stages.len() {
                if self.levels[stage] == number {
                    self.narrow_stage(stage)?;
                }
            }
            if let Some(pass) = pass {
                self.go(pass)?;
            }
        }
        self.narrow_results()?;
        self.flush();
        let rows = self.frame.all_rows;
        let invocations = rows.div_ceil(Dim::new(self.frame.height())) * Dim::new(WORKGROUP);
        let rounds = self.frame.rounds() * Dim::new(last + 1);
        Ok(self.shader.entry(&self.main, invocations, rounds))
    }

    /// Moves lines into the entry point.
    pub(super) fn flush(&mut self) {
        self.main += &self.shader.taken();
    }

    /// Declares a value that functions share; gives nothing to initialise it.
    pub(super) fn private(&mut self, name: &str, ty: &str) {
        self.shader.function(&format!("var<private> {name}: {ty};\n"));
    }

    /// What invocations hold from pass to pass, declared: the operands that several read.
    fn hold(&mut self, passes: &[Option<Pass>]) -> Result<()> {
        for operand in 0..self.operands.len() {
            let reads = |pass: &Option<Pass>| {
                pass.as_ref().is_some_and(|pass| pass.operands.contains(&operand))
            };
            if let (Some(first), Some(last)) =
                (passes.iter().position(reads), passes.iter().rposition(reads))
                && first < last
            {
                self.held.push(Held { operand, first });
            }
        }
        self.rounds = self.frame.held_rounds(self.held.len());
        match self.rounds {
            Some(rounds) => (0..self.held.len()).try_for_each(|at| self.declare_held(at, rounds)),
            None => {
                self.held.clear();
                Ok(())
            }
        }
    }

    fn find_walks(&mut self) {
        let stages = self.program.stages.iter().zip(&self.fusion.shapes);
        for (stage, shape) in stages {
            let (arrays, shape): (&[Value], _) = match stage {
                Stage::Map { arrays, is_wide: true, .. } => (arrays, shape),
                Stage::Reduce { of, .. } => (std::slice::from_ref(of), &self.fusion.sizes),
                Stage::Map { .. } | Stage::Line(_) | Stage::Pick { .. } => continue,
            };
            for value in arrays {
                if let Value::Array(k) = *value
                    && let Some(view) = self.in_frame(k, shape.dims())
                {
                    self.walks[k] = Some((self.walk(k, shape.dims()), view));
                }
            }
        }
    }

    /// An operand as a view of the frame, if it is one.
    pub(super) fn in_frame(&self, k: usize, shape: &[Dim]) -> Option<View> {
        let (frame, view) = (self.frame, &self.operands[k].view);
        let same =
            |a: &[Dim], b: &[Dim]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(*b));
        if same(shape, &frame.sizes) {
            return Some(view.broadcast(shape));
        }
        // The same elements in C order under another shape.
        let full = same(&view.sizes, shape) && view.is_dense;
        full.then(|| View { offset: view.offset, ..View::dense(&frame.sizes) })
    }

    pub(super) fn walk(&self, k: usize, shape: &[Dim]) -> Walk {
        let frame = self.frame;
        let Some(view) = self.in_frame(k, shape) else { return Walk::Free };
        let (sizes, strides) = frame.along(&view, &frame.columns);
        let zero = Word::Size(Dim::new(0));
        if strides.iter().all(|&stride| stride == zero) {
            return Walk::Row;
        }
        let even = |word: &Word| match *word {
            Word::Size(n) | Word::Minus(n) => n.known().is_some_and(|n| n.is_multiple_of(PACK)),
            Word::Bits(_) | Word::Number { .. } | Word::Slot | Word::Round { .. } => false,
        };
        let (_, rows) = frame.along(&view, &frame.rows);
        let run = sizes.last().and_then(|size| size.known());
        let is_packed = frame.is_whole
            && strides.last() == Some(&Word::Size(Dim::ONE))
            && strides[..strides.len() - 1].iter().chain(&rows).all(even)
            && even(&view.offset)
            && run.is_some_and(|run| run.is_multiple_of(PACK));
        Walk::Columns(sizes, strides, is_packed)
    }

    fn find_places(&mut self) {
        let mut users: Vec<(Place, DType, bool)> = Vec::new();
        for (k, operand) in self.operands.iter().enumerate() {
            let is_packed = matches!(self.walks[k], Some((Walk::Columns(_, _, true), _)));
            users.push((operand.place, self.program.arrays[k], is_packed));
        }
        for (&range, &(value, wide)) in self.results.iter().zip(&self.program.results) {
            users.push((
                Place::Range(range),
                self.program.dtype(value),
                wide && self.frame.is_whole,
            ));
        }
        for &(place, dtype, _) in &users {
            if self.places.iter().any(|(known, _)| *known == place) {
                continue;
            }
            let own = || users.iter().filter(|user| user.0 == place);
            let is_packed = own().any(|user| user.2) && own().all(|user| user.1 == dtype);
            self.places.push((place, if is_packed { pack(dtype) } else { "u32" }));
        }
    }

    /// The type of the elements that a place is bound as.
    pub(super) fn type_of(&self, place: Place) -> &'static str {
        self.places.iter().find(|(known, _)| *known == place).map_or("u32", |(_, ty)| *ty)
    }

    pub(super) fn memory(&mut self, place: Place) -> (String, &'static str) {
        let ty = self.type_of(place);
        (self.shader.memory_as(place, ty), ty)
    }

    /// The register of element `at` of an operand, a name.
    pub(super) fn load(&mut self, k: usize, at: &str) -> Result<String> {
        let dtype = self.program.arrays[k];
        self.shader.register(dtype)?;
        let (memory, ty) = self.memory(self.operands[k].place);
        let at = self.shader.name(at);
        let lane = match (ty, dtype.size()) {
            ("u32", _) | (_, 1) => element(dtype, &memory, &at),
            (_, 2) => format!(
                "({memory}[{at} >> 2u][({at} >> 1u) & 1u] >> (({at} & 1u) * 16u)) & 0xffffu"
            ),
            (_, 8) => format!("{memory}[{at}]"),
            _ => format!("{memory}[{at} >> 2u][{at} & 3u]"),
        };
        Ok(self.shader.name(loaded(dtype, &format!("({lane})"))))
    }

    /// The lines that find the row of an invocation and where it begins.
    fn begin(&mut self) -> Result<()> {
        let (lanes, height) = (self.frame.lanes, self.frame.height());
        let (own, among) = match (lanes, self.frame.is_across) {
            (1, _) => ("0u".to_owned(), "local".to_owned()),
            (_, true) => (format!("local / {height}u"), format!("local % {height}u")),
            (_, false) => (format!("local % {lanes}u"), format!("local / {lanes}u")),
        };
        let rows = self.shader.size(self.frame.all_rows);
        self.private("row", "u32");
        self.private("origin", "u32");
        self.shader.line(format!("let own = {own};"));
        self.shader.line(format!("let at_row = group * {height}u + {among};"));
        self.shader.line(format!("let is_row = at_row < {rows};"));
        self.shader.line(format!("row = min(at_row, {rows} - 1u);"));
        let dense = View::dense(&self.frame.sizes);
        let (sizes, strides) = self.frame.along(&dense, &self.frame.rows);
        let origin = self.shader.offset_of(&sizes, &strides, "row");
        self.shader.line(format!("origin = {origin};"));
        for k in 0..self.operands.len() {
            let Some((walk, view)) = self.walks[k].clone() else { continue };
            let is_row = match walk {
                Walk::Free => continue,
                Walk::Row => true,
                Walk::Columns(..) => false,
            };
            let (sizes, strides) = self.frame.along(&view, &self.frame.rows);
            let offset = self.shader.word(view.offset);
            let along = self.shader.offset_of(&sizes, &strides, "row");
            let at = format!("{offset} + {along}");
            if is_row {
                let ty = self.shader.register(self.program.arrays[k])?.name();
                self.private(&format!("x{k}"), ty);
                let value = self.load(k, &at)?;
                self.shader.line(format!("x{k} = {value};"));
            } else {
                self.private(&format!("b{k}"), "u32");
                self.shader.line(format!("b{k} = {at};"));
            }
        }
        Ok(())
    }

    /// The register of a number of the step, as an expression.
    fn number(&mut self, number: usize, dtype: DType) -> Result<String> {
        self.shader.register(dtype)?;
        if let Some(known) = self.numbers.get(&number) {
            return Ok(known.clone());
        }
        let half = |is_high| Word::Number { number, dtype, is_high };
        let low = self.shader.word(half(false));
        let lane = match is_wide(dtype) {
            true => format!("vec2<u32>({low}, {})", self.shader.word(half(true))),
            false => low,
        };
        let value = format!("({})", loaded(dtype, &lane));
        self.numbers.insert(number, value.clone());
        Ok(value)
    }

    /// The instructions of a program that its wanted results need; their names by result.
    pub(super) fn instructions(
        &mut self,
        program: &ElementProgram,
        first: usize,
        arrays: &[String],
        wanted: &[usize],
    ) -> Result<Vec<String>> {
        let mut names: Vec<String> = arrays.to_vec();
        for (k, &dtype) in program.numbers().iter().enumerate() {
            let value = self.number(first + k, dtype)?;
            names.push(value);
        }
        let start = program.first_result();
        let mut is_live = vec![false; start + program.instructions().len()];
        wanted.iter().for_each(|&k| is_live[program.results()[k].0 as usize] = true);
        for (i, instruction) in program.instructions().iter().enumerate().rev() {
            if is_live[start + i] {
                instruction.args.iter().for_each(|arg| is_live[arg.0 as usize] = true);
            }
        }
        for (i, instruction) in program.instructions().iter().enumerate() {
            if !is_live[start + i] {
                names.push(String::new());
                continue;
            }
            let args: SmallVec<[String; 3]> =
                instruction.args.iter().map(|arg| names[arg.0 as usize].clone()).collect();
            let value = self.shader.instruction(program, instruction, &args)?;
            let value = self.shader.name(value);
            let value = match rounded(instruction.dtype, &value) {
                Some(rounded) => self.shader.name(rounded),
                None => value,
            };
            names.push(value);
        }
        Ok(program.results().iter().map(|result| names[result.0 as usize].clone()).collect())
    }

    /// A stage that runs once for the row.
    fn narrow_stage(&mut self, stage: usize) -> Result<()> {
        let fusion = self.fusion;
        let shape = &fusion.shapes[stage];
        match &self.program.stages[stage] {
            Stage::Map { is_wide: true, .. } | Stage::Reduce { .. } | Stage::Line(_) => {}
            Stage::Map { program, arrays, first, .. } => {
                let mut names = Vec::new();
                for value in arrays {
                    names.push(self.narrow_value(*value, Some(shape.dims()))?);
                }
                let all: Vec<usize> = (0..program.results().len()).collect();
                let made = self.instructions(program, *first, &names, &all)?;
                for (k, name) in made.iter().enumerate() {
                    let ty = self.shader.register(program.dtype(program.results()[k]))?.name();
                    self.private(&narrow(stage, k), ty);
                    self.shader.line(format!("{} = {name};", narrow(stage, k)));
                }
            }
            Stage::Pick { of, index, is_own, .. } => self.pick(stage, *of, *index, *is_own)?,
        }
        Ok(())
    }

    /// A value of the row: a name.
    fn narrow_value(&mut self, value: Value, shape: Option<&[Dim]>) -> Result<String> {
        match value {
            Value::Made(stage, k) => Ok(narrow(stage, k)),
            Value::Array(k) => {
                let view = &self.operands[k].view;
                let view = shape.map_or_else(|| view.clone(), |shape| view.broadcast(shape));
                let at = self.shader.position_of(&view, "row");
                self.load(k, &at)
            }
        }
    }

    fn pick(&mut self, stage: usize, of: Value, index: Value, is_own: bool) -> Result<()> {
        let dtype = self.program.dtype(of);
        let ty = self.shader.register(dtype)?.name();
        self.shader.register(DType::I64)?;
        self.shader.function(PICKED);
        let index = self.narrow_value(index, None)?;
        let sizes = self.fusion.shapes[stage].dims();
        let size = self.shader.size(sizes[sizes.len() - 1]);
        if let Some(report) = self.report.take() {
            let slot = self.shader.word(Word::Slot);
            let faults = self.shader.memory_as(Place::Faults, "atomic<u32>");
            let report = self.shader.memory(report);
            self.shader.line(format!(
                "if own == 0u && is_row && !is_inside({index}, {size}) {{\n    \
                 atomicMin(&{faults}[4u * {slot}], row);\n    \
                 {report}[2u * row] = {index}.x;\n    {report}[2u * row + 1u] = {index}.y;\n}}"
            ));
        }
        let at = self.shader.name(format!("picked({index}, {size})"));
        let name = narrow(stage, 0);
        self.private(&name, ty);
        match (of, is_own) {
            (Value::Array(k), false) => {
                let view = self.operands[k].view.clone();
                let (offset, stride) =
                    (self.shader.word(view.offset), self.shader.word(view.strides[0]));
                let value = self.load(k, &format!("{offset} + {at} * {stride}"))?;
                self.shader.line(format!("{name} = {value};"));
            }
            (of, _) => {
                self.flush();
                let (values, _) = self.wide_values(&[of], false)?;
                let body = self.shader.taken();
                let value = &values[0];
                self.shader.function(&format!(
                    "fn q{stage}(c: u32) -> {ty} {{\n{body}    return {value};\n}}\n\n"
                ));
                self.shader.line(format!("{name} = q{stage}({at});"));
            }
        }
        Ok(())
    }
}
