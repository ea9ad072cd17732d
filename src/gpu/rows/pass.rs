//! Passes over a row: what its elements give, and how lanes join it.

use std::fmt::Write;

use rustc_hash::FxHashMap;

use super::super::create::whole;
use super::super::element::{PACK, is_wide, lane, loaded, pack, packed, stored};
use super::super::kernel::{Place, View};
use super::super::lanes::MOST_JOINED;
use super::super::shader::Shader;
use super::super::terms::{Join, add_exactly, with_lost};
use super::level;
use super::text::{Text, Walk, narrow};
use crate::dtype::DType;
use crate::error::Result;
use crate::schedule::block_fusion::rows::{Stage, Value};

/// What one walk over the elements of a row computes.
pub struct Pass {
    number: usize,
    /// By reduction: its stage, how lanes are joined, and of what dtype
    joins: Vec<(usize, Join, DType)>,
    /// Results: their ranges and dtypes
    stores: Vec<(usize, DType)>,
    /// The operands whose elements it reads one after the other
    pub operands: Vec<usize>,
}

/// An operand whose elements stay with the invocation that has read them.
pub struct Held {
    pub operand: usize,
    /// The pass that reads it
    pub first: usize,
}

impl Text<'_> {
    /// The lines that compute values of element `c`: their names, and the operands whose elements
    /// are given, if any are.
    pub(super) fn wide_values(
        &mut self,
        targets: &[Value],
        are_given: bool,
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
        let mut given: Vec<usize> = Vec::new();
        for (stage, wanted) in wanted.iter().enumerate() {
            let Stage::Map { program: group, arrays, first, .. } = &program.stages[stage] else {
                continue;
            };
            if wanted.is_empty() {
                continue;
            }
            let mut args = Vec::new();
            for &value in arrays {
                args.push(self.wide_value(
                    value,
                    Some(stage),
                    are_given,
                    &mut names,
                    &mut given,
                )?);
            }
            let made = self.instructions(group, *first, &args, wanted)?;
            for (k, name) in made.into_iter().enumerate() {
                names.insert(Value::Made(stage, k), name);
            }
        }
        let mut found = Vec::new();
        for &value in targets {
            found.push(self.wide_value(value, None, are_given, &mut names, &mut given)?);
        }
        Ok((found, given))
    }

    fn wide_value(
        &mut self,
        value: Value,
        stage: Option<usize>,
        are_given: bool,
        names: &mut FxHashMap<Value, String>,
        given: &mut Vec<usize>,
    ) -> Result<String> {
        if let Some(known) = names.get(&value) {
            return Ok(known.clone());
        }
        let k = match value {
            Value::Made(stage, k) => {
                let Stage::Line(dtype) = self.program.stages[stage] else {
                    return Ok(narrow(stage, k));
                };
                self.shader.register(dtype)?;
                let lane = whole(&mut self.shader, dtype, "c".to_owned())?;
                let name = self.shader.name(loaded(dtype, &format!("({lane})")));
                names.insert(value, name.clone());
                return Ok(name);
            }
            Value::Array(k) => k,
        };
        let fusion = self.fusion;
        let shape = stage.map_or(fusion.sizes.dims(), |stage| fusion.shapes[stage].dims());
        let walk = self.walk(k, shape);
        let is_free = matches!(walk, Walk::Free);
        let name = match walk {
            Walk::Row => format!("x{k}"),
            Walk::Columns(..) if are_given => {
                given.push(k);
                format!("l{k}")
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

    /// What a pass computes, whose function is printed; `None` where that is nothing.
    pub(super) fn pass(&mut self, pass: usize, is_last: bool) -> Result<Option<Pass>> {
        let program = self.program;
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
            return Ok(None);
        }
        let (values, operands) = self.wide_values(&targets, true)?;
        self.function(pass, &targets, &values, &operands)?;
        Ok(Some(Pass { number: pass, joins, stores, operands }))
    }

    /// One pass over the row: reductions, and at last the results.
    pub(super) fn go(&mut self, pass: &Pass) -> Result<()> {
        let (frame, joins) = (self.frame, &pass.joins);
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
        match self.rounds {
            // A number of rounds that drivers know lets them keep what is held in registers.
            Some(rounds) => {
                self.shader.line(format!("for (var r = 0u; r < {rounds}u; r++) {{"));
                self.shader.line(format!("let c = {from} + r * {step}u;"));
                self.shader.line(format!("if c < {columns} {{"));
            }
            None => {
                self.shader.line(format!("for (var c = {from}; c < {columns}; c += {step}u) {{"));
            }
        }
        self.elements(pass, &columns)?;
        for (j, (_, join, dtype)) in joins.iter().enumerate() {
            let (all, start, lost) = &all[j];
            let mut terms: Vec<String> = Vec::new();
            for e in 0..vector {
                let value = match *dtype == DType::Bool {
                    true => format!("select(0u, 1u, e{e}.y{j})"),
                    false => format!("e{e}.y{j}"),
                };
                terms.push(match e > 0 && !frame.is_whole {
                    true => self.shader.name(format!("select({start}, {value}, k{e})")),
                    false => self.shader.name(value),
                });
            }
            let joined = join.all(&mut self.shader, terms)?;
            match lost {
                Some(lost) => add_exactly(&mut self.shader, all, lost, &joined),
                None => {
                    let joined = join.call(&mut self.shader, all, &joined)?;
                    self.shader.line(format!("{all} = {joined};"));
                }
            }
        }
        for (k, &(range, dtype)) in pass.stores.iter().enumerate() {
            self.store(range, dtype, joins.len() + k)?;
        }
        self.shader.line(if self.rounds.is_some() { "}\n}" } else { "}" });
        self.join(joins, &all, &columns)
    }

    /// The function that computes the values of a pass.
    fn function(
        &mut self,
        pass: usize,
        targets: &[Value],
        values: &[String],
        operands: &[usize],
    ) -> Result<()> {
        let body = self.shader.taken();
        let mut fields = Vec::new();
        for (j, value) in targets.iter().enumerate() {
            let ty = self.shader.register(self.program.dtype(*value))?.name();
            fields.push(format!("y{j}: {ty}"));
        }
        let mut params = String::new();
        for &k in operands {
            let ty = self.shader.register(self.program.arrays[k])?.name();
            let _ = write!(params, ", l{k}: {ty}");
        }
        self.shader.function(&format!(
            "struct P{pass} {{ {} }}\n\nfn p{pass}(c: u32{params}) -> P{pass} {{\n{body}    \
             return P{pass}({});\n}}\n\n",
            fields.join(", "),
            values.join(", ")
        ));
        Ok(())
    }

    /// The calls of the function of a pass for the elements of an invocation: `e0`, `e1`, …
    fn elements(&mut self, pass: &Pass, columns: &str) -> Result<()> {
        let frame = self.frame;
        let mut at = vec!["c".to_owned()];
        for e in 1..frame.vector {
            let next = match frame.is_whole {
                true => format!("c + {e}u"),
                false => {
                    self.shader.line(format!("let k{e} = c + {e}u < {columns};"));
                    format!("min(c + {e}u, {columns} - 1u)")
                }
            };
            at.push(self.shader.name(next));
        }
        let mut args = at.clone();
        for &k in &pass.operands {
            for (args, value) in args.iter_mut().zip(self.elements_of(k, &at, pass.number)?) {
                let _ = write!(args, ", {value}");
            }
        }
        for (e, args) in args.iter().enumerate() {
            self.shader.line(format!("let e{e} = p{}({args});", pass.number));
        }
        Ok(())
    }

    /// The elements of an operand at columns `at`, which follow each other.
    fn elements_of(&mut self, k: usize, at: &[String], pass: usize) -> Result<Vec<String>> {
        let Some((Walk::Columns(sizes, strides, _), _)) = self.walks[k].clone() else {
            return Ok(Vec::new());
        };
        let dtype = self.program.arrays[k];
        self.shader.register(dtype)?;
        let first = self.held.iter().find(|held| held.operand == k).map(|held| held.first);
        let (is_first, is_later) = (first == Some(pass), first.is_some_and(|first| first < pass));
        if self.is_pack(k) {
            if is_later {
                self.shader.line(format!("let d{k} = h{k}[r];"));
            } else {
                let (memory, _) = self.memory(self.operands[k].place);
                let along = self.shader.offset_of(&sizes, &strides, "c");
                let from = self.shader.name(format!("b{k} + {along}"));
                self.shader.line(format!("let d{k} = {memory}[{from} >> 2u];"));
            }
            if is_first {
                self.shader.line(format!("h{k}[r] = d{k};"));
            }
            let lanes = (0..at.len()).map(|e| lane(dtype, &format!("d{k}"), e));
            return Ok(lanes.map(|lane| loaded(dtype, &format!("({lane})"))).collect());
        }
        let mut values = Vec::new();
        for (e, at) in at.iter().enumerate() {
            let place = format!("h{k}[r * {}u + {e}u]", self.frame.vector);
            if is_later {
                values.push(place);
                continue;
            }
            let along = self.shader.offset_of(&sizes, &strides, at);
            let value = self.load(k, &format!("b{k} + {along}"))?;
            if is_first {
                self.shader.line(format!("{place} = {value};"));
            }
            values.push(value);
        }
        Ok(values)
    }

    /// Whether four elements of an operand are loaded at a time.
    fn is_pack(&self, k: usize) -> bool {
        let dtype = self.program.arrays[k];
        let is_packed = matches!(self.walks[k], Some((Walk::Columns(_, _, true), _)));
        is_packed && !is_wide(dtype) && self.type_of(self.operands[k].place) == pack(dtype)
    }

    /// Declares what one pass holds for later ones.
    pub(super) fn declare_held(&mut self, at: usize, rounds: usize) -> Result<()> {
        let k = self.held[at].operand;
        let dtype = self.program.arrays[k];
        let (ty, count) = match self.is_pack(k) {
            true => (pack(dtype), rounds),
            false => (self.shader.register(dtype)?.name(), rounds * self.frame.vector),
        };
        self.shader.line(format!("var h{k}: array<{ty}, {count}>;"));
        Ok(())
    }

    /// Writes field `y` of the elements of an invocation.
    fn store(&mut self, range: usize, dtype: DType, y: usize) -> Result<()> {
        let frame = self.frame;
        self.shader.register(dtype)?;
        let (memory, ty) = self.memory(Place::Range(range));
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
    pub(super) fn put(&mut self, memory: &str, ty: &str, dtype: DType, i: &str, lane: &str) {
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
        let mut values: Vec<String> = Vec::new();
        for (all, _, lost) in all {
            let value = lost.as_ref().map_or_else(|| all.clone(), |lost| with_lost(all, lost));
            values.push(self.shader.name(value));
        }
        let mut joined = Vec::new();
        for (joins, values) in joins.chunks(MOST_JOINED).zip(values.chunks(MOST_JOINED)) {
            let mut types = Vec::new();
            for (_, join, _) in joins {
                types.push(self.shader.register(join.dtype)?);
            }
            let both = |shader: &mut Shader, a: &[String], b: &[String]| {
                let each = joins.iter().zip(a.iter().zip(b));
                each.map(|((_, join, _), (a, b))| join.both(shader, a, b)).collect()
            };
            joined.extend(self.lanes.join(&mut self.shader, &types, values.to_vec(), both)?);
        }
        for ((stage, join, dtype), value) in joins.iter().zip(&joined) {
            let value =
                self.shader.name(format!("select({value}, {}, {columns} == 0u)", join.empty));
            let ty = self.shader.register(*dtype)?.name();
            self.private(&narrow(*stage, 0), ty);
            let value = match *dtype == DType::Bool {
                true => format!("{value} != 0u"),
                false => {
                    let lane = self.shader.narrowed(*dtype, &value)?;
                    loaded(*dtype, &lane)
                }
            };
            self.shader.line(format!("{} = {value};", narrow(*stage, 0)));
        }
        Ok(())
    }

    pub(super) fn narrow_results(&mut self) -> Result<()> {
        let results = self.results.iter().zip(&self.program.results);
        for (&range, &(value, wide)) in results {
            if let (Value::Made(stage, k), false) = (value, wide) {
                let dtype = self.program.dtype(value);
                self.shader.register(dtype)?;
                let (memory, ty) = self.memory(Place::Range(range));
                self.shader.line("if own == 0u && is_row {");
                self.put(&memory, ty, dtype, "row", &stored(dtype, &narrow(stage, k)));
                self.shader.line("}");
            }
        }
        Ok(())
    }
}
