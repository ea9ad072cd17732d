//! Reductions along axes, and positions of extremes.
//!
//! Terms lie in turn: part `p` of `n` takes terms `p`, `p + n`, `p + 2n`, …, so that neighbouring
//! invocations read neighbouring elements. A second dispatch joins the parts.

use super::element::is_wide;
use super::kernel::{Dispatch, Input, Kernel, Output, Place};
use super::shader::Shader;
use super::terms::{
    BLOCK, BUSY, Join, MOST_PARTS, Source, Strides, add_exactly, along, merged, parts, read,
    register, with_lost,
};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attributes::{ArgReduction, Reduction};
use crate::shape::{Dim, Dims};

/// Terms that are worth an invocation.
const EACH: usize = 64;

/// Rounds of a loop over terms, four at a time.
const UNROLLED: usize = 4;

/// The kernel of a reduction along axes.
pub fn reduce(kind: Reduction, axes: &[usize], x: &Input, out: &Output) -> Result<Kernel> {
    let x = Source::of(x)?;
    let join = Join::of(kind, x.dtype);
    let mut kernel = Kernel::default();
    let to = (Place::Range(out.range), read(out.ty.dtype));
    let (terms, sums) = (x.count(axes), super::kernel::count(out.ty.shape.dims()));
    let Some(parts) = parts(terms, sums, EACH, BUSY) else {
        kernel.dispatches.push(walk(&x, axes, None).reduced(&join, to)?);
        return Ok(kernel);
    };
    let place = kernel.scratch(join.dtype, sums * parts);
    let first = walk(&x, axes, Some(parts));
    let (sizes, axis) = first.partial();
    kernel.dispatches.push(first.reduced(&join, (place, join.dtype))?);
    let rest = Source::dense(place, join.dtype, &sizes);
    kernel.dispatches.push(walk(&rest, &[axis], None).reduced(&join, to)?);
    Ok(kernel)
}

/// The kernel of the position of an extreme along an axis.
pub fn arg_reduce(kind: ArgReduction, axis: usize, x: &Input, out: &Output) -> Result<Kernel> {
    let x = Source::of(x)?;
    let mut kernel = Kernel::default();
    let to = Place::Range(out.range);
    let (terms, sums) = (x.count(&[axis]), super::kernel::count(out.ty.shape.dims()));
    let Some(parts) = parts(terms, sums, EACH, BUSY) else {
        kernel.dispatches.push(walk(&x, &[axis], None).found(kind, to, None)?);
        return Ok(kernel);
    };
    let place = kernel.scratch(DType::U32, sums * parts);
    let first = walk(&x, &[axis], Some(parts));
    let (sizes, among) = first.partial();
    kernel.dispatches.push(first.found(kind, place, None)?);
    let best = Source::dense(place, DType::U32, &sizes);
    let best = walk(&best, &[among], None);
    kernel.dispatches.push(walk(&x, &[axis], None).found(kind, to, Some(&best))?);
    Ok(kernel)
}

/// Adds up parts of sums of a dtype, which lie behind each other at a place.
pub fn joined(dtype: DType, place: Place, parts: Dim, sums: Dim, out: &Output) -> Result<Dispatch> {
    let join = Join::of(Reduction::Sum, dtype);
    let parts = Source::dense(place, join.dtype, &[parts, sums]);
    walk(&parts, &[0], None).reduced(&join, (Place::Range(out.range), read(out.ty.dtype)))
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
        shader.register(self.x.dtype)?;
        let names = self.names(&mut shader);
        let key_type = if is_wide(self.x.dtype) { "vec2<u32>" } else { "u32" };
        shader.line(format!("var best = {key_type}();\nvar place = 0xffffffffu;"));
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
        let key = key(&mut shader, self.x.dtype, kind, &value);
        let larger = match is_wide(self.x.dtype) {
            true => format!("wide_less_u(best, {key})"),
            false => format!("{key} > best"),
        };
        shader.line(format!(
            "if {larger} || (all({key} == best) && {term} < place) {{\n    best = {key};\n    \
             place = {term};\n}}\n}}"
        ));
        let count = self.parts.map_or(self.sums, |parts| self.sums * parts);
        Ok(match self.parts {
            Some(_) => shader.finish(to, DType::U32, count, "place", most),
            None => shader.finish(to, DType::I64, count, "vec2<u32>(place, 0u)", most),
        })
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
