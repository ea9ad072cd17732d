//! Reductions along axes, and positions of extremes.
//!
//! Terms lie in turn: part `p` of `n` takes terms `p`, `p + n`, `p + 2n`, …, so that neighbouring
//! invocations read neighbouring elements. A second dispatch joins the parts: where they are many, a
//! workgroup those of a result, through its own memory.

use super::element::is_wide;
use super::kernel::{Dispatch, Input, Kernel, Output, Place, WORKGROUP};
use super::lanes::Lanes;
use super::shader::{Shader, lanes as lanes_of, written};
use super::terms::{
    BLOCK, Join, MOST_PARTS, Source, Strides, add_exactly, along, merged, parts, read, register,
    with_lost,
};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attributes::{ArgReduction, Reduction};
use crate::scalar::wgsl::WgslType;
use crate::shape::{Dim, Dims};
use crate::target::Abilities;

/// Terms that are worth an invocation.
const EACH: usize = 64;

/// Parts that one invocation joins: fewer than these leave some of a workgroup without work.
const MANY: usize = WORKGROUP;

/// Rounds of a loop over terms, four at a time.
const UNROLLED: usize = 4;

/// The kernel of a reduction along axes.
pub fn reduce(
    kind: Reduction,
    axes: &[usize],
    x: &Input,
    out: &Output,
    abilities: Abilities,
) -> Result<Kernel> {
    let x = Source::of(x)?;
    let join = Join::of(kind, x.dtype);
    let mut kernel = Kernel::default();
    let to = (Place::Range(out.range), read(out.ty.dtype));
    let (terms, sums) = (x.count(axes), super::kernel::count(out.ty.shape.dims()));
    let Some(parts) = parts(terms, sums, EACH, abilities.busy) else {
        kernel.dispatches.push(walk(&x, axes, None).reduced(&join, to)?);
        return Ok(kernel);
    };
    let place = kernel.scratch(join.dtype, sums * parts);
    let first = walk(&x, axes, Some(parts));
    let (sizes, axis) = first.partial();
    kernel.dispatches.push(first.reduced(&join, (place, join.dtype))?);
    let rest = Source::dense(place, join.dtype, &sizes);
    kernel.dispatches.push(walk(&rest, &[axis], None).joined(&join, to, abilities)?);
    Ok(kernel)
}

/// The kernel of the position of an extreme along an axis.
pub fn arg_reduce(
    kind: ArgReduction,
    axis: usize,
    x: &Input,
    out: &Output,
    abilities: Abilities,
) -> Result<Kernel> {
    let x = Source::of(x)?;
    let mut kernel = Kernel::default();
    let to = Place::Range(out.range);
    let (terms, sums) = (x.count(&[axis]), super::kernel::count(out.ty.shape.dims()));
    let Some(parts) = parts(terms, sums, EACH, abilities.busy) else {
        kernel.dispatches.push(walk(&x, &[axis], None).found(kind, to, None)?);
        return Ok(kernel);
    };
    let place = kernel.scratch(DType::U32, sums * parts);
    let first = walk(&x, &[axis], Some(parts));
    let (sizes, among) = first.partial();
    kernel.dispatches.push(first.found(kind, place, None)?);
    let best = Source::dense(place, DType::U32, &sizes);
    let best = walk(&best, &[among], None);
    let all = walk(&x, &[axis], None);
    kernel.dispatches.push(match best.are_many() {
        true => all.gathered_place(kind, to, &best, abilities)?,
        false => all.found(kind, to, Some(&best))?,
    });
    Ok(kernel)
}

/// Adds up parts of sums of a dtype, which lie behind each other at a place.
pub fn joined(
    dtype: DType,
    place: Place,
    [parts, sums]: [Dim; 2],
    out: &Output,
    abilities: Abilities,
) -> Result<Dispatch> {
    let join = Join::of(Reduction::Sum, dtype);
    let parts = Source::dense(place, join.dtype, &[parts, sums]);
    walk(&parts, &[0], None).joined(&join, (Place::Range(out.range), read(out.ty.dtype)), abilities)
}

impl Source {
    /// The count of elements along axes.
    fn count(&self, axes: &[usize]) -> Dim {
        super::kernel::count(&self.sizes(axes))
    }
}

/// How the terms of a reduction are walked.
struct Walk<'a> {
    x: &'a Source,
    /// The sizes and strides of axes that stay
    kept: (Dims, Strides),
    /// The sizes and strides of axes that go
    own: (Dims, Strides),
    sums: Dim,
    terms: Dim,
    parts: Option<Dim>,
    /// Whether neighbouring elements are terms of one sum
    is_inner: bool,
}

/// What is reduced along axes, in so many parts.
fn walk<'a>(x: &'a Source, axes: &[usize], parts: Option<Dim>) -> Walk<'a> {
    let rest: Vec<usize> = (0..x.view.sizes.len()).filter(|axis| !axes.contains(axis)).collect();
    let along = |axes: &[usize]| {
        let (sizes, [strides]) = merged(&x.sizes(axes), [&x.strides(axes)]);
        (sizes, strides)
    };
    let is_inner = axes.last().is_some_and(|&last| last + 1 == x.view.sizes.len());
    let (sums, terms) = (x.count(&rest), x.count(axes));
    Walk { x, kept: along(&rest), own: along(axes), sums, terms, parts, is_inner }
}

/// The names of what an invocation walks.
struct Names {
    /// The position of the first element
    base: String,
    /// The part
    part: String,
    /// How many parts there are
    parts: String,
    /// How many terms this part has
    count: String,
    /// The strides of terms
    steps: Vec<String>,
}

impl Walk<'_> {
    /// The sizes of the array of parts, and the axis of parts.
    fn partial(&self) -> ([Dim; 2], usize) {
        let parts = self.parts.unwrap_or(Dim::ONE);
        if self.is_inner { ([self.sums, parts], 1) } else { ([parts, self.sums], 0) }
    }

    fn names(&self, shader: &mut Shader) -> Names {
        let terms = shader.size(self.terms);
        let (part, parts, sum, count) = match self.parts {
            None => ("0u".into(), "1u".into(), "i".into(), terms),
            Some(parts) => {
                let parts = shader.size(parts);
                let [part, sum] = if self.is_inner {
                    [format!("i % {parts}"), format!("i / {parts}")]
                } else {
                    let sums = shader.size(self.sums);
                    [format!("i / {sums}"), format!("i % {sums}")]
                };
                let [part, sum] = [part, sum].map(|text| shader.name(text));
                let count = shader.name(format!("({terms} + {parts} - 1u - {part}) / {parts}"));
                (part, parts, sum, count)
            }
        };
        let (sizes, strides) = &self.kept;
        let offset = shader.offset_of(sizes, strides, &sum);
        let start = shader.word(self.x.view.offset);
        let base = shader.name(format!("{start} + {offset}"));
        let steps = shader.steps(&self.own.1);
        Names { base, part, parts, count, steps }
    }

    /// The number of term `j` of a part.
    fn term(&self, names: &Names, j: &str) -> String {
        match self.parts {
            Some(_) => format!("({} + ({j}) * {})", names.part, names.parts),
            None => format!("({j})"),
        }
    }

    /// The register of a term.
    fn load(&self, shader: &mut Shader, names: &Names, term: &str) -> Result<String> {
        let term = shader.name(term);
        let index = shader.indices(&term, &self.own.0);
        let offset = along(&names.steps, &index);
        let at = format!("{} + {offset}", names.base);
        let value = shader.load_at(self.x.place, read(self.x.dtype), &at)?;
        Ok(shader.name(value))
    }

    /// Terms of a part, at most.
    fn most(&self) -> Dim {
        match (self.parts.map(Dim::known), self.terms.known()) {
            (None, _) => self.terms,
            (Some(Some(parts)), Some(terms)) => Dim::new(terms.div_ceil(parts.max(1))),
            // As many parts as `parts` takes for open sizes.
            _ => self.terms.div_ceil(Dim::new(MOST_PARTS)).max(Dim::new(4 * EACH)),
        }
    }

    /// What parts are joined to.
    fn joined(&self, join: &Join, to: (Place, DType), abilities: Abilities) -> Result<Dispatch> {
        match self.are_many() {
            true => self.gathered(join, to, abilities),
            false => self.reduced(join, to),
        }
    }

    /// Whether its terms are worth a workgroup.
    fn are_many(&self) -> bool {
        self.terms.known().is_none_or(|terms| terms > MANY)
    }

    /// What all terms are joined to, by a workgroup for the results in a word: its invocations take
    /// terms in turn.
    fn gathered(&self, join: &Join, to: (Place, DType), abilities: Abilities) -> Result<Dispatch> {
        let mut shader = Shader::able(abilities);
        let ty = shader.register(join.dtype)?;
        let mut lanes = Lanes::new(WORKGROUP, 1);
        let (sums, terms) = (shader.size(self.sums), shader.size(self.terms));
        let mut found: Vec<String> = Vec::new();
        for e in 0..lanes_of(to.1) {
            let all = join.variable(&mut shader);
            let lost = join.is_inexact.then(|| shader.variable("0.0f"));
            self.each_of_result(
                &mut shader,
                [e, lanes_of(to.1)],
                [&sums, &terms],
                |shader, names| {
                    let value = self.load(shader, names, "j")?;
                    match &lost {
                        Some(lost) => add_exactly(shader, &all, lost, &value),
                        None => {
                            let joined = join.call(shader, &all, &value)?;
                            shader.line(format!("{all} = {joined};"));
                        }
                    }
                    Ok(())
                },
            )?;
            let value = lost.map_or(all.clone(), |lost| with_lost(&all, &lost));
            let value = vec![shader.name(value)];
            let both = |shader: &mut Shader, a: &[String], b: &[String]| {
                Ok(vec![join.both(shader, &a[0], &b[0])?])
            };
            let value = lanes.join(&mut shader, &[ty], value, both)?.swap_remove(0);
            let value = shader.name(format!("select({value}, {}, {terms} == 0u)", join.empty));
            let lane = shader.narrowed(to.1, &value)?;
            found.push(shader.name(lane));
        }
        Ok(self.written(shader, to, &found))
    }

    /// The lines that go over the terms of one of the results of a workgroup.
    fn each_of_result(
        &self,
        shader: &mut Shader,
        [e, per]: [usize; 2],
        [sums, terms]: [&str; 2],
        lines: impl FnOnce(&mut Shader, &Names) -> Result<()>,
    ) -> Result<()> {
        shader.line(format!("{{\nlet i = min(group * {per}u + {e}u, {sums} - 1u);"));
        let names = self.names(shader);
        shader.line(format!("for (var j = local; j < {terms}; j += {WORKGROUP}u) {{"));
        lines(shader, &names)?;
        shader.line("}\n}");
        Ok(())
    }

    /// The dispatch of workgroups that have found the lanes of a word, or one that is two.
    fn written(
        &self,
        mut shader: Shader,
        (place, dtype): (Place, DType),
        found: &[String],
    ) -> Dispatch {
        let (to, per) = (shader.memory(place), found.len());
        let lines = written(&to, "group", dtype, found);
        shader.line(format!("if local == 0u {{\n{lines}}}"));
        let rounds = self.terms.div_ceil(Dim::new(WORKGROUP)) * Dim::new(per);
        shader.grouped(self.sums.div_ceil(Dim::new(per)), rounds)
    }

    /// What all terms are joined to.
    fn reduced(&self, join: &Join, to: (Place, DType)) -> Result<Dispatch> {
        let mut shader = Shader::new();
        shader.register(join.dtype)?;
        let names = self.names(&mut shader);
        let all = join.variable(&mut shader);
        let lost = join.is_inexact.then(|| shader.variable("0.0f"));
        shader.line("var j = 0u;");
        shader.line(format!("while (j < {}) {{", names.count));
        let end = shader.name(format!("min(j + {BLOCK}u, {})", names.count));
        let sums: Vec<String> = (0..UNROLLED).map(|_| join.variable(&mut shader)).collect();
        shader.line(format!("for (; j + {UNROLLED}u <= {end}; j += {UNROLLED}u) {{"));
        for (k, sum) in sums.iter().enumerate() {
            let term = self.term(&names, &format!("j + {k}u"));
            let value = self.load(&mut shader, &names, &term)?;
            let joined = join.call(&mut shader, sum, &value)?;
            shader.line(format!("{sum} = {joined};"));
        }
        shader.line("}");
        shader.line(format!("for (; j < {end}; j++) {{"));
        let term = self.term(&names, "j");
        let value = self.load(&mut shader, &names, &term)?;
        let joined = join.call(&mut shader, &sums[0], &value)?;
        shader.line(format!("{} = {joined};\n}}", sums[0]));
        let low = join.call(&mut shader, &sums[0], &sums[1])?;
        let high = join.call(&mut shader, &sums[2], &sums[3])?;
        let block = join.call(&mut shader, &low, &high)?;
        let block = shader.name(block);
        match &lost {
            Some(lost) => add_exactly(&mut shader, &all, lost, &block),
            None => {
                let joined = join.call(&mut shader, &all, &block)?;
                shader.line(format!("{all} = {joined};"));
            }
        }
        shader.line("}");
        let value = lost.map_or(all.clone(), |lost| with_lost(&all, &lost));
        let terms = shader.size(self.terms);
        let value = shader.name(format!("select({value}, {}, {terms} == 0u)", join.empty));
        let lane = shader.narrowed(to.1, &value)?;
        let most = self.most();
        let rounds =
            most.div_ceil(Dim::new(UNROLLED)) + most.div_ceil(Dim::new(BLOCK)) + Dim::new(UNROLLED);
        let count = self.parts.map_or(self.sums, |parts| self.sums * parts);
        Ok(shader.finish(to.0, to.1, count, &lane, rounds))
    }

    /// The position of an extreme: that of a part as a word, or, among those of the parts, that of
    /// all.
    fn found(&self, kind: ArgReduction, to: Place, among: Option<&Walk<'_>>) -> Result<Dispatch> {
        let mut shader = Shader::new();
        let names = self.names(&mut shader);
        let best = Best::of(&mut shader, self.x.dtype, kind)?;
        let (count, most) = match among {
            Some(parts) => (shader.size(parts.terms), parts.terms),
            None => (names.count.clone(), self.most()),
        };
        let others = among.map(|parts| (parts, parts.names(&mut shader)));
        shader.line(format!("for (var j = 0u; j < {count}; j++) {{"));
        let term = match &others {
            Some((parts, names)) => parts.load(&mut shader, names, "j")?,
            None => shader.name(self.term(&names, "j")),
        };
        let value = self.load(&mut shader, &names, &term)?;
        best.meet(&mut shader, &value, &term);
        shader.line("}");
        let count = self.parts.map_or(self.sums, |parts| self.sums * parts);
        let place = &best.place;
        Ok(match self.parts {
            Some(_) => shader.finish(to, DType::U32, count, place, most),
            None => shader.finish(to, DType::I64, count, &format!("vec2<u32>({place}, 0u)"), most),
        })
    }

    /// The position of an extreme among those of many parts, by a workgroup for each.
    fn gathered_place(
        &self,
        kind: ArgReduction,
        to: Place,
        parts: &Walk<'_>,
        abilities: Abilities,
    ) -> Result<Dispatch> {
        let mut shader = Shader::able(abilities);
        let best = Best::of(&mut shader, self.x.dtype, kind)?;
        let (sums, terms) = (shader.size(self.sums), shader.size(parts.terms));
        parts.each_of_result(&mut shader, [0, 1], [&sums, &terms], |shader, names| {
            let term = parts.load(shader, names, "j")?;
            let names = self.names(shader);
            let value = self.load(shader, &names, &term)?;
            best.meet(shader, &value, &term);
            Ok(())
        })?;
        let key = if is_wide(self.x.dtype) { WgslType::U64 } else { WgslType::U32 };
        let own = [&best.key, &best.place].map(|name| shader.name(name)).to_vec();
        let mut lanes = Lanes::new(WORKGROUP, 1);
        let both = |shader: &mut Shader, a: &[String], b: &[String]| {
            let is_later = shader.name(best.is_before([&a[0], &a[1]], [&b[0], &b[1]]));
            let pick = |k: usize| format!("select({}, {}, {is_later})", a[k], b[k]);
            Ok([0, 1].map(|k| shader.name(pick(k))).to_vec())
        };
        let found = lanes.join(&mut shader, &[key, WgslType::U32], own, both)?;
        let place = [format!("vec2<u32>({}, 0u)", found[1])];
        Ok(parts.written(shader, (to, DType::I64), &place))
    }
}

/// The best key of what an invocation has met, and its place.
struct Best {
    dtype: DType,
    kind: ArgReduction,
    key: String,
    place: String,
}

impl Best {
    /// Nothing yet.
    fn of(shader: &mut Shader, dtype: DType, kind: ArgReduction) -> Result<Best> {
        shader.register(dtype)?;
        let key = shader.variable(if is_wide(dtype) { "vec2<u32>()" } else { "0u" });
        let place = shader.variable("0xffffffffu");
        Ok(Best { dtype, kind, key, place })
    }

    /// Whether key and place `b` come before `a`: the larger key, and of equal ones the first.
    fn is_before(&self, a: [&str; 2], b: [&str; 2]) -> String {
        let larger = match is_wide(self.dtype) {
            true => format!("wide_less_u({}, {})", a[0], b[0]),
            false => format!("{} > {}", b[0], a[0]),
        };
        format!("({larger}) || (all({} == {}) && {} < {})", b[0], a[0], b[1], a[1])
    }

    /// An element and its place.
    fn meet(&self, shader: &mut Shader, value: &str, place: &str) {
        let key = key(shader, self.dtype, self.kind, value);
        let is_better = self.is_before([&self.key, &self.place], [&key, place]);
        shader.line(format!(
            "if {is_better} {{\n    {} = {key};\n    {} = {place};\n}}",
            self.key, self.place
        ));
    }
}

/// A key of an element, unsigned: the larger one wins. NaN has the largest, both zeros the same.
fn key(shader: &mut Shader, dtype: DType, kind: ArgReduction, value: &str) -> String {
    let flip = |key: String| if kind == ArgReduction::Min { format!("~({key})") } else { key };
    let key = if dtype.is_float() {
        let bits = shader.name(format!("bitcast<u32>({value})"));
        let size = shader.name(format!("{bits} & 0x7fffffffu"));
        let bits = shader.name(format!("select({bits}, 0u, {size} == 0u)"));
        let sign = format!("({bits} >> 31u) == 1u");
        let key = flip(format!("select({bits} | 0x80000000u, ~{bits}, {sign})"));
        format!("select({key}, 0xffffffffu, {size} > 0x7f800000u)")
    } else if register(dtype) == DType::I32 {
        flip(format!("bitcast<u32>({value}) ^ 0x80000000u"))
    } else if dtype == DType::I64 {
        flip(format!("{value} ^ vec2<u32>(0u, 0x80000000u)"))
    } else {
        flip(value.to_owned())
    };
    shader.name(key)
}
