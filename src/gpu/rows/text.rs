//! The text of a row fusion.

use std::fmt::Write;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::super::element::{
    PACK, element, is_wide, lane, lane_type, loaded, pack, packed, stored,
};
use super::super::group::Operand;
use super::super::indexing::PICKED;
use super::super::kernel::{Dispatch, Place, View, WORKGROUP, Word};
use super::super::shader::Shader;
use super::super::terms::{Join, Strides, add_exactly, with_lost};
use super::{Frame, LANES, level, levels};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::element::ElementProgram;
use crate::schedule::RowFusion;
use crate::schedule::block_fusion::rows::{RowProgram, Stage, Value};
use crate::shape::{Dim, Dims};

/// How the elements of a row are found in an operand.
#[derive(Clone)]
enum Walk {
    /// One element for the row, which is loaded once
    Row,
    /// Along the axes of the columns, from a base of the row; perhaps four at a time
    Columns(Dims, Strides, bool),
    /// By an index along each axis of the shape of a stage
    Free,
}

/// A row fusion that is being printed.
pub struct Text<'a> {
    fusion: &'a RowFusion,
    program: &'a RowProgram,
    frame: &'a Frame,
    operands: &'a [Operand],
    results: &'a [usize],
    report: Option<Place>,
    shader: Shader,
    /// By operand that wide stages read: how, and as which view of the frame
    walks: Vec<Option<(Walk, View)>>,
    /// The type of the elements of each range
    ranges: Vec<(usize, &'static str)>,
    levels: Vec<usize>,
    numbers: FxHashMap<usize, String>,
    main: String,
}

/// The name of a narrow value.
fn narrow(stage: usize, k: usize) -> String {
    format!("v{stage}_{k}")
}

impl<'a> Text<'a> {
    pub fn new(
        fusion: &'a RowFusion,
        frame: &'a Frame,
        operands: &'a [Operand],
        results: &'a [usize],
        report: Option<Place>,
    ) -> Text<'a> {
        let program = &*fusion.program;
        Text {
            fusion,
            program,
            frame,
            operands,
            results,
            report,
            shader: Shader::new(),
            walks: vec![None; operands.len()],
            ranges: Vec::new(),
            levels: levels(&program.stages),
            numbers: FxHashMap::default(),
            main: String::new(),
        }
    }

    pub fn print(mut self) -> Result<Dispatch> {
        self.find_walks();
        self.find_ranges();
        self.begin()?;
        let last = self.levels.iter().copied().max().unwrap_or(0);
        for pass in 0..=last {
            for stage in 0..self.program.stages.len() {
                if self.levels[stage] == pass {
                    self.narrow_stage(stage)?;
                }
            }
            self.pass(pass, pass == last)?;
        }
        self.narrow_results()?;
        self.flush();
        let rows = self.frame.all_rows;
        let invocations = rows.div_ceil(Dim::new(self.frame.height())) * Dim::new(WORKGROUP);
        let rounds = self.frame.rounds() * Dim::new(last + 1);
        Ok(self.shader.entry(&self.main, invocations, rounds))
    }

    /// Moves lines into the entry point.
    fn flush(&mut self) {
        self.main += &self.shader.taken();
    }

    /// Declares a value that functions share; gives nothing to initialise it.
    fn private(&mut self, name: &str, ty: &str) {
        self.shader.function(&format!("var<private> {name}: {ty};\n"));
    }

    fn find_walks(&mut self) {
        let stages = self.program.stages.iter().zip(&self.fusion.shapes);
        for (stage, shape) in stages {
            let (arrays, shape): (&[Value], _) = match stage {
                Stage::Map { arrays, is_wide: true, .. } => (arrays, shape),
                Stage::Reduce { of, .. } => (std::slice::from_ref(of), &self.fusion.sizes),
                Stage::Map { .. } | Stage::Pick { .. } => continue,
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
    fn in_frame(&self, k: usize, shape: &[Dim]) -> Option<View> {
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

    fn walk(&self, k: usize, shape: &[Dim]) -> Walk {
        let frame = self.frame;
        let Some(view) = self.in_frame(k, shape) else { return Walk::Free };
        let (sizes, strides) = frame.along(&view, &frame.columns);
        let zero = Word::Size(Dim::new(0));
        if strides.iter().all(|&stride| stride == zero) {
            return Walk::Row;
        }
        let even = |word: &Word| match *word {
            Word::Size(n) | Word::Minus(n) => n.known().is_some_and(|n| n.is_multiple_of(PACK)),
            Word::Bits(_) | Word::Number { .. } | Word::Slot => false,
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

    fn find_ranges(&mut self) {
        let mut users: Vec<(usize, DType, bool)> = Vec::new();
        for (k, operand) in self.operands.iter().enumerate() {
            let is_packed = matches!(self.walks[k], Some((Walk::Columns(_, _, true), _)));
            users.push((operand.range, self.program.arrays[k], is_packed));
        }
        for (&range, &(value, wide)) in self.results.iter().zip(&self.program.results) {
            users.push((range, self.program.dtype(value), wide && self.frame.is_whole));
        }
        for &(range, dtype, _) in &users {
            if self.ranges.iter().any(|(known, _)| *known == range) {
                continue;
            }
            let own = || users.iter().filter(|user| user.0 == range);
            let is_packed = own().any(|user| user.2) && own().all(|user| user.1 == dtype);
            self.ranges.push((range, if is_packed { pack(dtype) } else { "u32" }));
        }
    }

    fn memory(&mut self, range: usize) -> (String, &'static str) {
        let ty = self.ranges.iter().find(|(known, _)| *known == range).map_or("u32", |(_, ty)| *ty);
        (self.shader.memory_as(Place::Range(range), ty), ty)
    }

    /// The register of element `at` of an operand, a name.
    fn load(&mut self, k: usize, at: &str) -> Result<String> {
        let dtype = self.program.arrays[k];
        self.shader.register(dtype)?;
        let (memory, ty) = self.memory(self.operands[k].range);
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
        self.shader.line(format!("let local = id % {WORKGROUP}u;"));
        let (own, among) = match (lanes, self.frame.is_across) {
            (1, _) => ("0u".to_owned(), "local".to_owned()),
            (_, true) => (format!("local / {height}u"), format!("local % {height}u")),
            (_, false) => (format!("local % {lanes}u"), format!("local / {lanes}u")),
        };
        let rows = self.shader.size(self.frame.all_rows);
        self.private("row", "u32");
        self.private("origin", "u32");
        self.shader.line(format!("let own = {own};"));
        self.shader.line(format!("let at_row = (id / {WORKGROUP}u) * {height}u + {among};"));
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
    fn instructions(
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
            let value = match super::super::element::rounded(instruction.dtype, &value) {
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
            Stage::Map { is_wide: true, .. } | Stage::Reduce { .. } => {}
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

    /// The lines that compute values of element `c`: their names, and the operands that come as
    /// lanes of packs.
    fn wide_values(
        &mut self,
        targets: &[Value],
        may_pack: bool,
    ) -> Result<(Vec<String>, Vec<usize>)> {
        let program = self.program;
        let is_wide_stage =
            |stage: usize| matches!(&program.stages[stage], Stage::Map { is_wide: true, .. });
        let mut wanted: Vec<Vec<usize>> = vec![Vec::new(); program.stages.len()];
        let want = |wanted: &mut Vec<Vec<usize>>, value: Value| {
            if let Value::Made(stage, k) = value
                && is_wide_stage(stage)
                && !wanted[stage].contains(&k)
            {
                wanted[stage].push(k);
            }
        };
        targets.iter().for_each(|&value| want(&mut wanted, value));
        for stage in (0..program.stages.len()).rev() {
            if let (Stage::Map { arrays, .. }, false) =
                (&program.stages[stage], wanted[stage].is_empty())
            {
                arrays.iter().for_each(|&value| want(&mut wanted, value));
            }
        }
        let mut names: FxHashMap<Value, String> = FxHashMap::default();
        let mut lanes: Vec<usize> = Vec::new();
        for stage in 0..program.stages.len() {
            let Stage::Map { program: group, arrays, first, .. } = &program.stages[stage] else {
                continue;
            };
            if wanted[stage].is_empty() {
                continue;
            }
            let mut args = Vec::new();
            for &value in arrays {
                args.push(self.wide_value(value, Some(stage), may_pack, &mut names, &mut lanes)?);
            }
            let made = self.instructions(group, *first, &args, &wanted[stage])?;
            for (k, name) in made.into_iter().enumerate() {
                names.insert(Value::Made(stage, k), name);
            }
        }
        let mut found = Vec::new();
        for &value in targets {
            found.push(self.wide_value(value, None, may_pack, &mut names, &mut lanes)?);
        }
        Ok((found, lanes))
    }

    fn wide_value(
        &mut self,
        value: Value,
        stage: Option<usize>,
        may_pack: bool,
        names: &mut FxHashMap<Value, String>,
        lanes: &mut Vec<usize>,
    ) -> Result<String> {
        if let Some(known) = names.get(&value) {
            return Ok(known.clone());
        }
        let k = match value {
            Value::Made(stage, k) => return Ok(narrow(stage, k)),
            Value::Array(k) => k,
        };
        let fusion = self.fusion;
        let shape = stage.map_or(fusion.sizes.dims(), |stage| fusion.shapes[stage].dims());
        let walk = self.walk(k, shape);
        let is_free = matches!(walk, Walk::Free);
        let name = match walk {
            Walk::Row => format!("x{k}"),
            Walk::Columns(_, _, true) if may_pack => {
                lanes.push(k);
                let dtype = self.program.arrays[k];
                self.shader.register(dtype)?;
                self.shader.name(loaded(dtype, &format!("l{k}")))
            }
            Walk::Columns(sizes, strides, _) => {
                let along = self.shader.offset_of(&sizes, &strides, "c");
                self.load(k, &format!("b{k} + {along}"))?
            }
            Walk::Free => {
                let i = self.element();
                let view = self.operands[k].view.broadcast(shape);
                let at = self.shader.position_of(&view, &i);
                self.load(k, &at)?
            }
        };
        // Another stage may see it under another shape.
        if !is_free {
            names.insert(value, name.clone());
        }
        Ok(name)
    }

    /// The position of element `c` of the row in C order of the frame.
    fn element(&mut self) -> String {
        let dense = View::dense(&self.frame.sizes);
        let (sizes, strides) = self.frame.along(&dense, &self.frame.columns);
        let along = self.shader.offset_of(&sizes, &strides, "c");
        self.shader.name(format!("origin + {along}"))
    }

    /// One pass over the row: reductions, and at last the results.
    fn pass(&mut self, pass: usize, is_last: bool) -> Result<()> {
        let (program, frame) = (self.program, self.frame);
        let mut targets: Vec<Value> = Vec::new();
        let mut joins: Vec<(usize, Join, DType)> = Vec::new();
        for (stage, what) in program.stages.iter().enumerate() {
            if let Stage::Reduce { kind, of } = what
                && level(&self.levels, *of) == pass
            {
                let dtype = program.dtype(*of);
                joins.push((stage, Join::of(*kind, dtype), dtype));
                targets.push(*of);
            }
        }
        let mut stores: Vec<(usize, DType)> = Vec::new();
        if is_last {
            for (&range, &(value, wide)) in self.results.iter().zip(&program.results) {
                if wide {
                    stores.push((range, program.dtype(value)));
                    targets.push(value);
                }
            }
        }
        if targets.is_empty() {
            return Ok(());
        }
        self.flush();
        let (values, lanes) = self.wide_values(&targets, true)?;
        self.function(pass, &targets, &values, &lanes)?;
        let all: Vec<(String, String, Option<String>)> = (joins.iter())
            .map(|(_, join, _)| {
                let all = join.variable(&mut self.shader);
                let start = self.shader.name(&all);
                let lost = join.is_inexact.then(|| self.shader.variable("0.0f"));
                (all, start, lost)
            })
            .collect();
        let columns = self.shader.size(frame.all_columns);
        let (vector, step) = (frame.vector, frame.vector * frame.lanes);
        let from = if vector == 1 { "own".to_owned() } else { format!("own * {vector}u") };
        self.shader.line(format!("for (var c = {from}; c < {columns}; c += {step}u) {{"));
        self.elements(pass, &lanes, &columns)?;
        for (j, (_, join, dtype)) in joins.iter().enumerate() {
            let (all, start, lost) = &all[j];
            let mut terms: Vec<String> = Vec::new();
            for e in 0..vector {
                let value = match dtype {
                    DType::Bool => format!("select(0u, 1u, e{e}.y{j})"),
                    _ => format!("e{e}.y{j}"),
                };
                terms.push(match e > 0 && !frame.is_whole {
                    true => self.shader.name(format!("select({start}, {value}, k{e})")),
                    false => self.shader.name(value),
                });
            }
            while terms.len() > 1 {
                let mut next = Vec::new();
                for pair in terms.chunks(2) {
                    let both = join.call(&mut self.shader, &pair[0], &pair[1])?;
                    next.push(self.shader.name(both));
                }
                terms = next;
            }
            match lost {
                Some(lost) => add_exactly(&mut self.shader, all, lost, &terms[0]),
                None => {
                    let joined = join.call(&mut self.shader, all, &terms[0])?;
                    self.shader.line(format!("{all} = {joined};"));
                }
            }
        }
        for (k, &(range, dtype)) in stores.iter().enumerate() {
            self.store(range, dtype, joins.len() + k)?;
        }
        self.shader.line("}");
        self.join(&joins, &all, &columns)
    }

    /// The function that computes the values of a pass.
    fn function(
        &mut self,
        pass: usize,
        targets: &[Value],
        values: &[String],
        lanes: &[usize],
    ) -> Result<()> {
        let body = self.shader.taken();
        let mut fields = Vec::new();
        for (j, value) in targets.iter().enumerate() {
            let ty = self.shader.register(self.program.dtype(*value))?.name();
            fields.push(format!("y{j}: {ty}"));
        }
        let params: String = lanes
            .iter()
            .map(|&k| format!(", l{k}: {}", lane_type(self.program.arrays[k])))
            .collect();
        self.shader.function(&format!(
            "struct P{pass} {{ {} }}\n\nfn p{pass}(c: u32{params}) -> P{pass} {{\n{body}    \
             return P{pass}({});\n}}\n\n",
            fields.join(", "),
            values.join(", ")
        ));
        Ok(())
    }

    /// The calls of the function of a pass for the elements of an invocation: `e0`, `e1`, …
    fn elements(&mut self, pass: usize, lanes: &[usize], columns: &str) -> Result<()> {
        let frame = self.frame;
        let mut loads: Vec<(usize, DType, String)> = Vec::new();
        for &k in lanes {
            let Some((Walk::Columns(sizes, strides, _), _)) = self.walks[k].clone() else {
                continue;
            };
            let dtype = self.program.arrays[k];
            let along = self.shader.offset_of(&sizes, &strides, "c");
            let (memory, ty) = self.memory(self.operands[k].range);
            let at = self.shader.name(format!("b{k} + {along}"));
            match (ty == pack(dtype) && ty != "u32" || dtype.size() == 1, is_wide(dtype)) {
                (true, false) => {
                    self.shader.line(format!("let d{k} = {memory}[{at} >> 2u];"));
                    loads.push((k, dtype, String::new()));
                }
                (true, true) => loads.push((k, dtype, format!("{memory}[{at} + E]"))),
                (false, _) => {
                    let lane = element(dtype, &memory, &format!("({at} + E)"));
                    loads.push((k, dtype, format!("({lane})")));
                }
            }
        }
        for e in 0..frame.vector {
            let at = match (e, frame.is_whole) {
                (0, _) => "c".to_owned(),
                (_, true) => format!("c + {e}u"),
                (_, false) => {
                    self.shader.line(format!("let k{e} = c + {e}u < {columns};"));
                    format!("min(c + {e}u, {columns} - 1u)")
                }
            };
            let mut args = String::new();
            for (k, dtype, text) in &loads {
                let text = match text.is_empty() {
                    true => lane(*dtype, &format!("d{k}"), e),
                    false => text.replace('E', &format!("{e}u")),
                };
                let _ = write!(args, ", {text}");
            }
            self.shader.line(format!("let e{e} = p{pass}({at}{args});"));
        }
        Ok(())
    }

    /// Writes field `y` of the elements of an invocation.
    fn store(&mut self, range: usize, dtype: DType, y: usize) -> Result<()> {
        let frame = self.frame;
        self.shader.register(dtype)?;
        let (memory, ty) = self.memory(range);
        let lane = |e: usize| stored(dtype, &format!("e{e}.y{y}"));
        self.shader.line("if is_row {");
        if frame.is_whole && !is_wide(dtype) {
            let i = self.element();
            let lanes: [String; PACK] = std::array::from_fn(|e| format!("({})", lane(e)));
            let value = self.shader.name(packed(dtype, lanes));
            let words = PACK * dtype.size() / 4;
            match ty == pack(dtype) {
                true => self.shader.line(format!("{memory}[{i} >> 2u] = {value};")),
                false => {
                    for (j, part) in ["x", "y", "z", "w"].iter().take(words).enumerate() {
                        let at = format!("({i} >> 2u) * {words}u + {j}u");
                        self.shader.line(format!("{memory}[{at}] = {value}.{part};"));
                    }
                }
            }
        } else {
            for e in 0..frame.vector {
                let is_masked = e > 0 && !frame.is_whole;
                if is_masked {
                    self.shader.line(format!("if k{e} {{"));
                }
                let dense = View::dense(&frame.sizes);
                let (sizes, strides) = frame.along(&dense, &frame.columns);
                let c = self.shader.name(format!("c + {e}u"));
                let along = self.shader.offset_of(&sizes, &strides, &c);
                let i = self.shader.name(format!("origin + {along}"));
                self.put(&memory, ty, dtype, &i, &lane(e));
                if is_masked {
                    self.shader.line("}");
                }
            }
        }
        self.shader.line("}");
        Ok(())
    }

    /// Writes one element of at least a word.
    fn put(&mut self, memory: &str, ty: &str, dtype: DType, i: &str, lane: &str) {
        match (is_wide(dtype), ty) {
            (true, "u32") => {
                let lane = self.shader.name(lane);
                self.shader.line(format!("{memory}[2u * {i}] = {lane}.x;"));
                self.shader.line(format!("{memory}[2u * {i} + 1u] = {lane}.y;"));
            }
            (false, "vec4<u32>") => {
                self.shader.line(format!("{memory}[{i} >> 2u][{i} & 3u] = {lane};"));
            }
            _ => self.shader.line(format!("{memory}[{i}] = {lane};")),
        }
    }

    /// Joins what the lanes of a row have reduced.
    fn join(
        &mut self,
        joins: &[(usize, Join, DType)],
        all: &[(String, String, Option<String>)],
        columns: &str,
    ) -> Result<()> {
        let frame = self.frame;
        let mut values: Vec<String> = Vec::new();
        for (all, _, lost) in all {
            let value = lost.as_ref().map_or_else(|| all.clone(), |lost| with_lost(all, lost));
            values.push(self.shader.name(value));
        }
        let mut stride = 1;
        while stride < frame.lanes && !joins.is_empty() {
            let mut memories = Vec::new();
            for ((stage, join, _), value) in joins.iter().zip(&values) {
                let ty = self.shader.register(join.dtype)?.name();
                let name = format!("shared{stage}_{stride}");
                self.shader
                    .function(&format!("var<workgroup> {name}: array<{ty}, {WORKGROUP}>;\n"));
                self.shader.line(format!("{name}[local] = {value};"));
                memories.push(name);
            }
            self.shader.line("workgroupBarrier();");
            // Lanes are `unit` apart; of those that have one part, the first.
            let unit = if frame.is_across { frame.height() } else { 1 };
            let base = match (frame.is_across, stride) {
                (true, 1) => format!("local % {unit}u + (own / {LANES}u) * {}u", LANES * unit),
                (true, _) => format!("local % {unit}u"),
                (false, 1) => format!("local - local % {LANES}u"),
                (false, _) => format!("local - local % {}u", frame.lanes),
            };
            let base = self.shader.name(base);
            for ((_, join, _), (memory, value)) in
                joins.iter().zip(memories.iter().zip(values.iter_mut()))
            {
                let mut terms: Vec<String> = Vec::new();
                for k in 0..LANES {
                    let at = k * stride * unit;
                    terms.push(self.shader.name(format!("{memory}[{base} + {at}u]")));
                }
                while terms.len() > 1 {
                    let mut next = Vec::new();
                    for pair in terms.chunks(2) {
                        let both = join.call(&mut self.shader, &pair[0], &pair[1])?;
                        next.push(self.shader.name(both));
                    }
                    terms = next;
                }
                *value = terms.swap_remove(0);
            }
            stride *= LANES;
        }
        for ((stage, join, dtype), value) in joins.iter().zip(&values) {
            let value =
                self.shader.name(format!("select({value}, {}, {columns} == 0u)", join.empty));
            let ty = self.shader.register(*dtype)?.name();
            self.private(&narrow(*stage, 0), ty);
            let value = match dtype {
                DType::Bool => format!("{value} != 0u"),
                _ => {
                    let lane = self.shader.narrowed(*dtype, &value)?;
                    loaded(*dtype, &lane)
                }
            };
            self.shader.line(format!("{} = {value};", narrow(*stage, 0)));
        }
        Ok(())
    }

    fn narrow_results(&mut self) -> Result<()> {
        let results = self.results.iter().zip(&self.program.results);
        for (&range, &(value, wide)) in results {
            if let (Value::Made(stage, k), false) = (value, wide) {
                let dtype = self.program.dtype(value);
                self.shader.register(dtype)?;
                let (memory, ty) = self.memory(range);
                self.shader.line("if own == 0u && is_row {");
                self.put(&memory, ty, dtype, "row", &stored(dtype, &narrow(stage, k)));
                self.shader.line("}");
            }
        }
        Ok(())
    }
}
