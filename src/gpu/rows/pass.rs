//! Passes over a row: what its elements give, and how lanes join it.

use std::fmt::Write;

use rustc_hash::FxHashMap;

use super::super::create::whole;
use super::super::element::{
    PACK, element, is_wide, lane, lane_type, loaded, pack, packed, stored,
};
use super::super::kernel::{Place, View, WORKGROUP};
use super::super::terms::{Join, add_exactly, with_lost};
use super::text::{Text, Walk, narrow};
use super::{LANES, level};
use crate::dtype::DType;
use crate::error::Result;
use crate::schedule::block_fusion::rows::{Stage, Value};

impl Text<'_> {
    /// The lines that compute values of element `c`: their names, and the operands that come as
    /// lanes of packs.
    pub(super) fn wide_values(
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
        for (stage, wanted) in wanted.iter().enumerate() {
            let Stage::Map { program: group, arrays, first, .. } = &program.stages[stage] else {
                continue;
            };
            if wanted.is_empty() {
                continue;
            }
            let mut args = Vec::new();
            for &value in arrays {
                args.push(self.wide_value(value, Some(stage), may_pack, &mut names, &mut lanes)?);
            }
            let made = self.instructions(group, *first, &args, wanted)?;
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
    pub(super) fn pass(&mut self, pass: usize, is_last: bool) -> Result<()> {
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
                let value = match *dtype == DType::Bool {
                    true => format!("select(0u, 1u, e{e}.y{j})"),
                    false => format!("e{e}.y{j}"),
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
            let (memory, ty) = self.memory(self.operands[k].place);
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
