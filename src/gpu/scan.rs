//! Running reductions along an axis.
//!
//! A line is cut into parts. One dispatch joins the elements of each part, one runs over the parts
//! of each line, and one runs over the elements of each part, from what comes before. No invocation
//! waits for another. Sums and products of floats carry what each step lost.

use super::element::is_wide;
use super::kernel::{Dispatch, Input, Kernel, Output, Place, count};
use super::shader::{Shader, lanes};
use super::terms::{Join, Source, add_exactly, merged, parts, read};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attributes::{Cumulation, Reduction};
use crate::shape::Dim;

/// Elements that are worth an invocation.
const EACH: usize = 64;

/// Invocations that are enough.
const BUSY: usize = 2048;

/// The kernel of a running reduction along an axis.
pub fn cumulate(
    kind: Cumulation,
    axis: usize,
    reverse: bool,
    x: &Input,
    out: &Output,
) -> Result<Kernel> {
    let x = Source::of(x)?;
    let kind = match kind {
        Cumulation::Sum => Reduction::Sum,
        Cumulation::Prod => Reduction::Prod,
        Cumulation::Max => Reduction::Max,
        Cumulation::Min => Reduction::Min,
    };
    let join = Join::of(kind, x.dtype);
    let is_exact = join.dtype == DType::F32 && matches!(kind, Reduction::Sum | Reduction::Prod);
    let size = x.view.sizes[axis];
    let rest: Vec<usize> = (0..x.view.sizes.len()).filter(|&other| other != axis).collect();
    let lines = count(&x.sizes(&rest));
    let split = parts(size, lines, EACH, BUSY);
    let parts = split.unwrap_or(Dim::ONE);
    let scan = Scan { kind, join, is_exact, axis, reverse, rest, size, lines, parts, x: &x };

    let mut kernel = Kernel::default();
    let all = count(out.ty.shape.dims());
    let carries = split.map(|_| {
        let mut place = || kernel.scratch(join.dtype, lines * parts);
        (place(), place())
    });
    if let Some(carries) = carries {
        kernel.dispatches.push(scan.part(None, Some(carries))?);
        kernel.dispatches.push(scan.over_parts(carries)?);
    }
    // Neighbours along another axis may share a word, which only one invocation may write.
    let dtype = read(out.ty.dtype);
    if lanes(dtype) == 1 {
        let to = Source::dense(Place::Range(out.range), dtype, out.ty.shape.dims());
        kernel.dispatches.push(scan.part(Some(&to), carries)?);
        return Ok(kernel);
    }
    let wide = kernel.scratch(join.dtype, all);
    let to = Source::dense(wide, join.dtype, out.ty.shape.dims());
    kernel.dispatches.push(scan.part(Some(&to), carries)?);
    let mut shader = Shader::new();
    let value = shader.load_at(wide, join.dtype, "i")?;
    let lane = shader.narrowed(dtype, &value)?;
    kernel.dispatches.push(shader.finish(Place::Range(out.range), dtype, all, &lane, Dim::new(0)));
    Ok(kernel)
}

struct Scan<'a> {
    kind: Reduction,
    join: Join,
    /// Whether what each step loses is carried too
    is_exact: bool,
    axis: usize,
    reverse: bool,
    /// The other axes
    rest: Vec<usize>,
    size: Dim,
    lines: Dim,
    parts: Dim,
    x: &'a Source,
}

impl Scan<'_> {
    /// Runs over the elements of a part: to the running values, from what came before; or to what
    /// all of them make.
    fn part(&self, to: Option<&Source>, carries: Option<(Place, Place)>) -> Result<Dispatch> {
        let mut shader = Shader::new();
        shader.register(self.join.dtype)?;
        shader.function(FUNCTIONS);
        let (lines, parts, size) =
            (shader.size(self.lines), shader.size(self.parts), shader.size(self.size));
        let line = shader.name(format!("i % {lines}"));
        let part = shader.name(format!("i / {lines}"));
        let length = shader.name(format!("({size} + {parts} - 1u) / {parts}"));
        let base = self.base(&mut shader, self.x, &line);
        let to = to.map(|to| (to, self.base(&mut shader, to, &line)));
        let (value, lost) = (self.join.variable(&mut shader), self.lost(&mut shader));
        if let (Some(_), Some((high, low))) = (&to, carries) {
            let before = shader.load_at(high, self.join.dtype, "i")?;
            shader.line(format!("{value} = {before};"));
            if self.is_exact {
                let before = shader.load_at(low, self.join.dtype, "i")?;
                shader.line(format!("{lost} = {before};"));
            }
        }
        let end = shader.name(format!("min(({part} + 1u) * {length}, {size})"));
        shader.line(format!("for (var j = {part} * {length}; j < {end}; j++) {{"));
        let at = if self.reverse { format!("({size} - 1u - j)") } else { "j".into() };
        let from = {
            let stride = shader.word(self.x.view.strides[self.axis]);
            format!("{base} + {at} * {stride}")
        };
        let x = shader.load_at(self.x.place, read(self.x.dtype), &from)?;
        let x = shader.name(x);
        self.step(&mut shader, &value, &lost, &x)?;
        if let Some((to, base)) = &to {
            let stride = shader.word(to.view.strides[self.axis]);
            let at = format!("{base} + {at} * {stride}");
            let all = self.value(&value, &lost);
            self.store(&mut shader, to.place, to.dtype, &at, &all)?;
        }
        shader.line("}");
        if let (None, Some((high, low))) = (&to, carries) {
            self.store(&mut shader, high, self.join.dtype, "i", &value)?;
            if self.is_exact {
                self.store(&mut shader, low, self.join.dtype, "i", &lost)?;
            }
        }
        let length = match (self.size.known(), self.parts.known()) {
            (Some(size), Some(parts)) => Dim::new(size.div_ceil(parts.max(1))),
            _ => self.size.div_ceil(Dim::new(super::terms::MOST_PARTS)).max(Dim::new(4 * EACH)),
        };
        Ok(shader.each(self.lines * self.parts, length))
    }

    /// Replaces what each part makes by what all parts before make.
    fn over_parts(&self, (high, low): (Place, Place)) -> Result<Dispatch> {
        let mut shader = Shader::new();
        shader.register(self.join.dtype)?;
        shader.function(FUNCTIONS);
        let (lines, parts) = (shader.size(self.lines), shader.size(self.parts));
        let (value, lost) = (self.join.variable(&mut shader), self.lost(&mut shader));
        shader.line(format!("for (var p = 0u; p < {parts}; p++) {{"));
        let at = shader.name(format!("p * {lines} + i"));
        let x = shader.load_at(high, self.join.dtype, &at)?;
        let x = shader.name(x);
        let rest = match self.is_exact {
            true => {
                let rest = shader.load_at(low, self.join.dtype, &at)?;
                Some(shader.name(rest))
            }
            false => None,
        };
        self.store(&mut shader, high, self.join.dtype, &at, &value)?;
        if let Some(rest) = &rest {
            self.store(&mut shader, low, self.join.dtype, &at, &lost)?;
            if self.kind == Reduction::Sum {
                add_exactly(&mut shader, &value, &lost, &x);
                shader.line(format!("{lost} += {rest};"));
            } else {
                let next = shader.name(format!("{value} * {x}"));
                shader.line(format!(
                    "{lost} = product_lost({value}, {x}, {next}) + ({lost} * {x} + {value} * \
                     {rest});\n{value} = {next};"
                ));
            }
        } else {
            let joined = self.join.call(&mut shader, &value, &x)?;
            shader.line(format!("{value} = {joined};"));
        }
        shader.line("}");
        Ok(shader.each(self.lines, self.parts))
    }

    /// The variable of what was lost, if it is carried.
    fn lost(&self, shader: &mut Shader) -> String {
        if self.is_exact { shader.variable("0.0f") } else { String::new() }
    }

    /// The position of the first element of a line.
    fn base(&self, shader: &mut Shader, of: &Source, line: &str) -> String {
        let (sizes, [strides]) = merged(&of.sizes(&self.rest), [&of.strides(&self.rest)]);
        let offset = shader.offset_of(&sizes, &strides, line);
        let start = shader.word(of.view.offset);
        shader.name(format!("{start} + {offset}"))
    }

    /// Joins one more element.
    fn step(&self, shader: &mut Shader, value: &str, lost: &str, x: &str) -> Result<()> {
        match (self.is_exact, self.kind) {
            (true, Reduction::Sum) => add_exactly(shader, value, lost, x),
            (true, _) => {
                let next = shader.name(format!("{value} * {x}"));
                shader.line(format!(
                    "{lost} = product_lost({value}, {x}, {next}) + {lost} * {x};\n{value} = {next};"
                ));
            }
            (false, _) => {
                let joined = self.join.call(shader, value, x)?;
                shader.line(format!("{value} = {joined};"));
            }
        }
        Ok(())
    }

    /// The value with what was lost.
    fn value(&self, value: &str, lost: &str) -> String {
        if self.is_exact { super::terms::with_lost(value, lost) } else { value.to_owned() }
    }

    /// Writes a register to element `at` of a place, whose elements are whole words.
    fn store(
        &self,
        shader: &mut Shader,
        place: Place,
        dtype: DType,
        at: &str,
        value: &str,
    ) -> Result<()> {
        let lane = shader.narrowed(dtype, value)?;
        let memory = shader.memory(place);
        if is_wide(dtype) {
            let at = shader.name(at);
            let lane = shader.name(lane);
            shader.line(format!(
                "{memory}[2u * {at}] = {lane}.x;\n{memory}[2u * {at} + 1u] = {lane}.y;"
            ));
        } else {
            shader.line(format!("{memory}[{at}] = {lane};"));
        }
        Ok(())
    }
}

/// What rounding lost of a product: factors in halves of twelve bits, whose products are exact.
const FUNCTIONS: &str = "\
fn product_lost(a: f32, b: f32, product: f32) -> f32 {
    let c = bitcast<f32>(bitcast<u32>(a) & 0xfffff000u);
    let d = bitcast<f32>(bitcast<u32>(b) & 0xfffff000u);
    let e = a - c;
    let f = b - d;
    return ((c * d - product) + (c * f + e * d)) + e * f;
}

";
