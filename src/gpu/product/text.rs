//! The text of a product: which block an invocation has, its sums, where they go.

use smallvec::SmallVec;

use super::{End, FOUR, Load, Product, Side, Tile};
use crate::dtype::DType;
use crate::error::Result;
use crate::gpu::element::is_wide;
use crate::gpu::epilogue::Target;
use crate::gpu::kernel::{Place, Word, count};
use crate::gpu::shader::{Shader, lanes};
use crate::gpu::terms::{BLOCK, Join, Source, along, read, register, zero};
use crate::ops::elementwise::{Elementwise, arithmetic, bits};
use crate::shape::Dim;

/// The names of what an invocation computes with.
#[derive(Default)]
pub(super) struct Names {
    /// Rows and columns, which may lie behind the last ones, and their counts
    pub(super) rows: Vec<String>,
    pub(super) columns: Vec<String>,
    pub(super) row_count: String,
    pub(super) column_count: String,
    /// The first column and row of an invocation in a tile, and whether its workgroup writes
    pub(super) x: String,
    pub(super) y: String,
    pub(super) is_own: String,
    /// Positions of the first terms
    a: Vec<String>,
    b: Vec<String>,
    /// For each column where its windows start
    starts: Vec<Vec<String>>,
    /// The first term and the one behind the last
    first: String,
    pub(super) last: String,
    /// The strides of terms
    a_steps: Vec<String>,
    b_steps: Vec<String>,
    /// For each window the factor of terms, the size and the stride
    windows: Vec<[String; 3]>,
    /// The divisors of windows
    divisors: Vec<Option<String>>,
    /// The sizes of axes of terms
    sizes: Vec<String>,
    /// The number of the part and batch
    pub(super) outer: String,
    /// The results
    pub(super) sums: Vec<Vec<String>>,
}

/// A shader of a product that is being written.
pub(super) struct Text<'a> {
    pub(super) tile: &'a Tile,
    pub(super) product: &'a Product,
    pub(super) shader: Shader,
    pub(super) sum: Join,
    pub(super) names: Names,
}

impl Text<'_> {
    /// Which block and which terms are an invocation's.
    pub(super) fn place(&mut self, parts: Option<Dim>) -> Result<()> {
        let (tile, product, shader) = (self.tile, self.product, &mut self.shader);
        let (row_count, column_count) = (count(&product.rows), count(&product.columns));
        let across = shader.size(tile.column_blocks(product));
        let down = shader.size(tile.row_blocks(product));
        let column = shader.name(format!("(i % {across}) * {}u", tile.columns));
        let rest = shader.name(format!("i / {across}"));
        let row = shader.name(format!("({rest} % {down}) * {}u", tile.rows));
        let outer = shader.name(format!("{rest} / {down}"));
        let terms = shader.size(count(&product.terms));
        let (batch, first, last) = match parts {
            None => (outer.clone(), "0u".to_owned(), terms),
            Some(parts) => {
                let batches = shader.size(count(&product.batch));
                let parts = shader.size(parts);
                let batch = shader.name(format!("{outer} % {batches}"));
                let length =
                    shader.name(format!("(({terms} + {parts} - 1u) / {parts} + 3u) & ~3u"));
                let first = shader.name(format!("min({outer} / {batches} * {length}, {terms})"));
                let last = shader.name(format!("min({first} + {length}, {terms})"));
                (batch, first, last)
            }
        };
        let names = &mut self.names;
        names.row_count = shader.size(row_count);
        names.column_count = shader.size(column_count);
        let index = shader.indices(&batch, &product.batch);
        let mut base = |side: &Side| {
            let offset = shader.offset(&side.batch, &index);
            let start = shader.word(side.source.view.offset);
            shader.name(format!("{start} + {offset}"))
        };
        let (a, b) = (base(&product.a), base(&product.b));
        names.a_steps = shader.steps(&product.a.terms);
        names.b_steps = shader.steps(&product.b.terms);
        let (a_free, b_free) = (shader.steps(&product.a.free), shader.steps(&product.b.free));
        for window in &product.windows {
            let words = [window.term.1, Word::Size(window.size), window.stride];
            names.windows.push(words.map(|word| {
                let word = shader.word(word);
                shader.name(word)
            }));
            names.divisors.push(window.divisor.map(|divisor| {
                let word = shader.word(divisor);
                shader.name(format!("bitcast<i32>({word})"))
            }));
        }
        if tile.unrolled == 1 {
            for &size in &product.terms {
                let size = shader.size(size);
                names.sizes.push(shader.name(size));
            }
        }
        for k in 0..tile.rows {
            let own = shader.name(format!("{row} + {k}u"));
            let near = shader.name(format!("min({own}, {} - 1u)", names.row_count));
            let index = shader.indices(&near, &product.rows);
            let offset = along(&a_free, &index);
            names.a.push(shader.name(format!("{a} + {offset}")));
            names.rows.push(own);
        }
        for k in 0..tile.columns {
            let own = shader.name(format!("{column} + {k}u"));
            let near = shader.name(format!("min({own}, {} - 1u)", names.column_count));
            let index = shader.indices(&near, &product.columns);
            let offset = along(&b_free, &index);
            names.b.push(shader.name(format!("{b} + {offset}")));
            let mut starts = Vec::new();
            for window in &product.windows {
                let (axis, factor) = window.column;
                let (factor, start) = (shader.word(factor), shader.word(window.start));
                starts.push(shader.name(format!("{} * {factor} + {start}", index[axis])));
            }
            names.starts.push(starts);
            names.columns.push(own);
        }
        (names.first, names.last, names.outer) = (first, last, outer);
        Ok(())
    }

    pub(super) fn block(&mut self, value: &str) -> Vec<Vec<String>> {
        let (rows, columns) = (self.tile.rows, self.tile.columns);
        let mut row = || (0..columns).map(|_| self.shader.variable(value)).collect();
        (0..rows).map(|_| row()).collect()
    }

    /// The loops over terms.
    pub(super) fn sums(&mut self) -> Result<()> {
        let zero = zero(self.sum.dtype);
        let is_inexact = self.sum.is_inexact;
        let all = self.block(zero);
        self.shader.line(format!("var j = {};", self.names.first));
        let is_walked = self.tile.unrolled == 1;
        let mut index: Vec<String> = Vec::new();
        if is_walked {
            let sizes = self.product.terms.clone();
            let first = self.shader.indices("j", &sizes);
            index = first.iter().map(|i| self.shader.variable(i)).collect();
        }
        let last = self.names.last.clone();
        let mut own = all.clone();
        let mut end = last.clone();
        if is_inexact {
            self.shader.line(format!("while (j < {last}) {{"));
            end = self.shader.name(format!("min(j + {BLOCK}u, {last})"));
            own = self.block(zero);
        }
        let unrolled = self.tile.unrolled;
        if is_walked {
            self.shader.line(format!("for (; j < {end}; j++) {{"));
            self.walked(&index, &own)?;
            self.shader.line("}");
        } else {
            self.shader.line(format!("for (; j + {unrolled}u <= {end}; j += {unrolled}u) {{"));
            for start in (0..unrolled).step_by(FOUR) {
                self.terms(start, FOUR, &own)?;
            }
            self.shader.line("}");
            let is_whole = |size: Dim| size.known().is_some_and(|n| n.is_multiple_of(unrolled));
            if !is_whole(count(&self.product.terms)) {
                self.shader.line(format!("for (; j < {end}; j++) {{"));
                self.terms(0, 1, &own)?;
                self.shader.line("}");
            }
        }
        if is_inexact {
            self.join_blocks(&all, &own)?;
            self.shader.line("}");
        }
        self.names.sums = all;
        Ok(())
    }

    /// Adds sums to those of all terms.
    pub(super) fn join_blocks(&mut self, all: &[Vec<String>], own: &[Vec<String>]) -> Result<()> {
        for (all, own) in all.iter().flatten().zip(own.iter().flatten()) {
            let joined = self.sum.call(&mut self.shader, all, own)?;
            self.shader.line(format!("{all} = {joined};"));
        }
        Ok(())
    }

    /// Adds the products of `many` terms from `j + start` on.
    fn terms(&mut self, start: usize, many: usize, sums: &[Vec<String>]) -> Result<()> {
        let at = match (start, many) {
            (0, _) => "j".to_owned(),
            _ => self.shader.name(format!("j + {start}u")),
        };
        let (tile, product) = (self.tile, self.product);
        let a = self.values(&product.a, tile.a, true, &at, many)?;
        let b = self.values(&product.b, tile.b, false, &at, many)?;
        for k in 0..many {
            for (row, sums) in sums.iter().enumerate() {
                for (column, sum) in sums.iter().enumerate() {
                    self.add(sum, &a[row][k], &b[column][k], None)?;
                }
            }
        }
        Ok(())
    }

    /// The elements of a side of some terms, by row or column and term.
    fn values(
        &mut self,
        side: &Side,
        load: Load,
        is_a: bool,
        term: &str,
        many: usize,
    ) -> Result<Vec<Vec<String>>> {
        let own = if is_a { self.names.a.clone() } else { self.names.b.clone() };
        let (source, tile) = (&side.source, self.tile);
        let parts = ["x", "y", "z", "w"];
        let steps = if is_a { &self.names.a_steps } else { &self.names.b_steps };
        let first = along(steps, &[term.to_owned()]);
        let step = steps.first().cloned().unwrap_or_else(|| "0u".to_owned());
        let mut offsets = vec![self.shader.name(&first)];
        for k in 1..many {
            let last = &offsets[k - 1];
            offsets.push(self.shader.name(format!("{last} + {step}")));
        }
        let mut values = vec![Vec::new(); own.len()];
        let shader = &mut self.shader;
        let four = |shader: &mut Shader, at: String| {
            let memory = shader.memory_as(source.place, tile.vectors());
            let pack = format!("{memory}[({at}) >> 2u]");
            shader.name(match tile.is_native {
                true => format!("vec4<f32>({pack})"),
                false => format!("bitcast<vec4<f32>>({pack})"),
            })
        };
        match load {
            Load::Terms => {
                for (own, values) in own.iter().zip(&mut values) {
                    let pack = four(shader, format!("{own} + {}", offsets[0]));
                    values.extend(parts.iter().take(many).map(|part| format!("{pack}.{part}")));
                }
            }
            Load::Free => {
                for offset in &offsets {
                    let pack = four(shader, format!("{} + {offset}", own[0]));
                    for (values, part) in values.iter_mut().zip(parts) {
                        values.push(format!("{pack}.{part}"));
                    }
                }
            }
            Load::Single => {
                for (own, values) in own.iter().zip(&mut values) {
                    for offset in &offsets {
                        let at = format!("{own} + {offset}");
                        let value = self.element(side, &at)?;
                        values.push(self.shader.name(value));
                    }
                }
            }
        }
        Ok(values)
    }

    /// The register of an element of a side, which is read alone.
    pub(super) fn element(&mut self, side: &Side, at: &str) -> Result<String> {
        let Source { place, dtype, .. } = side.source;
        if self.tile.is_native {
            let memory = self.shader.memory_as(place, "f16");
            return Ok(format!("f32({memory}[{at}])"));
        }
        self.shader.load_at(place, read(dtype), at)
    }

    /// Adds the products of the term at an index along several axes, and moves the index on.
    fn walked(&mut self, index: &[String], sums: &[Vec<String>]) -> Result<()> {
        let product = self.product;
        let a = &product.a;
        let offset = along(&self.names.a_steps, index);
        let offset = self.shader.name(offset);
        let mut rows = Vec::new();
        for own in self.names.a.clone() {
            let at = format!("{own} + {offset}");
            let value = self.shader.load_at(a.source.place, read(a.source.dtype), &at)?;
            rows.push(self.shader.name(value));
        }
        let offset = along(&self.names.b_steps, index);
        let offset = self.shader.name(offset);
        let mut moves = Vec::new();
        for (window, [factor, ..]) in product.windows.iter().zip(&self.names.windows) {
            let axis = window.term.0;
            moves.push(self.shader.name(format!("{} * {factor}", index[axis])));
        }
        for (column, own) in self.names.b.clone().into_iter().enumerate() {
            let at = format!("{own} + {offset}");
            let (value, touches) = self.windowed(column, &at, &moves)?;
            for (row, sums) in rows.iter().zip(sums) {
                self.add(&sums[column], row, &value, touches.as_deref())?;
            }
        }
        let mut carry = String::from("1u");
        for (axis, size) in self.names.sizes.iter().enumerate().rev() {
            let i = &index[axis];
            self.shader.line(format!("{i} += {carry};"));
            if axis == 0 {
                break;
            }
            let is_over = self.shader.name(format!("{i} == {size}"));
            self.shader.line(format!("{i} = select({i}, 0u, {is_over});"));
            carry = format!("select(0u, 1u, {is_over})");
        }
        Ok(())
    }

    /// The element of `b` of a column, zero outside of a window; and whether it takes part, where
    /// it may not.
    fn windowed(
        &mut self,
        column: usize,
        at: &str,
        moves: &[String],
    ) -> Result<(String, Option<String>)> {
        let source = &self.product.b.source;
        let dtype = read(source.dtype);
        if self.product.windows.is_empty() {
            let value = self.shader.load_at(source.place, dtype, at)?;
            return Ok((self.shader.name(value), None));
        }
        let shader = &mut self.shader;
        let (mut position, mut inside, mut touches) = (at.to_owned(), Vec::new(), Vec::new());
        for (k, [_, size, stride]) in self.names.windows.iter().enumerate() {
            let start = &self.names.starts[column][k];
            let mut place = shader.name(format!("{start} + {}", moves[k]));
            if let Some(divisor) = &self.names.divisors[k] {
                let signed = shader.name(format!("bitcast<i32>({place})"));
                place = shader.name(format!("bitcast<u32>({signed} / {divisor})"));
                touches.push(format!("({signed} % {divisor} == 0i)"));
            }
            inside.push(format!("({place} < {size})"));
            position += &format!(" + {place} * {stride}");
        }
        let inside = shader.name(inside.join(" && "));
        let touches = (!touches.is_empty()).then(|| shader.name(touches.join(" && ")));
        let position = shader.name(format!("select(0u, {position}, {inside})"));
        let value = shader.load_at(source.place, dtype, &position)?;
        let value = shader.name(format!("select({}, {value}, {inside})", zero(register(dtype))));
        Ok((value, touches))
    }

    /// Adds a product to a sum.
    pub(super) fn add(&mut self, sum: &str, a: &str, b: &str, touches: Option<&str>) -> Result<()> {
        let is_bool = self.product.a.source.dtype == DType::Bool;
        let def: &'static Elementwise =
            if is_bool { &bits::bitwise_and } else { &arithmetic::multiply };
        let mut product = self.shader.call(def, self.sum.dtype, &[a, b])?;
        if let Some(touches) = touches {
            product = format!("select({}, {product}, {touches})", zero(self.sum.dtype));
        }
        let joined = self.sum.call(&mut self.shader, sum, &product)?;
        self.shader.line(format!("{sum} = {joined};"));
        Ok(())
    }

    /// Writes the block.
    pub(super) fn write(&mut self, end: &End<'_>) -> Result<()> {
        let dtype = self.sum.dtype;
        let (places, is_through) = match end {
            End::Parts(place) => (SmallVec::from_iter([(*place, dtype)]), false),
            End::Target(to @ Target::Range(_), _) => (to.results(), false),
            End::Target(to @ Target::Epilogue(_), _) => (to.results(), true),
        };
        let names = std::mem::take(&mut self.names);
        if !names.is_own.is_empty() {
            self.shader.line(format!("if {} {{", names.is_own));
        }
        let (rows, columns, outer) = (&names.row_count, &names.column_count, &names.outer);
        let each = places.iter().map(|(_, dtype)| lanes(*dtype)).max().unwrap_or(1);
        for (row, sums) in names.rows.iter().zip(&names.sums) {
            let start = self.shader.name(format!("({outer} * {rows} + {row}) * {columns}"));
            self.shader.line(format!("if {row} < {rows} {{"));
            for (columns_, sums) in names.columns.chunks(each).zip(sums.chunks(each)) {
                let first = &columns_[0];
                self.shader.line(format!("if {first} < {columns} {{"));
                let mut values: Vec<Vec<String>> = vec![Vec::new(); places.len()];
                for (column, sum) in columns_.iter().zip(sums) {
                    if is_through {
                        let facts = format!("{outer}, {row}, {column}, {start} + {column}");
                        let lanes = self.shader.name(format!("after({facts}, {sum})"));
                        for (k, values) in values.iter_mut().enumerate() {
                            values.push(format!("{lanes}.y{k}"));
                        }
                    } else {
                        values[0].push(self.shader.narrowed(read(places[0].1), sum)?);
                    }
                }
                for (&(place, dtype), values) in places.iter().zip(&values) {
                    self.store(place, dtype, &format!("({start} + {first})"), values);
                }
                self.shader.line("}");
            }
            self.shader.line("}");
        }
        if !names.is_own.is_empty() {
            self.shader.line("}");
        }
        Ok(())
    }

    /// Writes lanes to elements from `at` on, which fill words.
    fn store(&mut self, place: Place, dtype: DType, at: &str, values: &[String]) {
        let memory = self.shader.memory(place);
        let per = lanes(dtype);
        for (k, values) in values.chunks(per).enumerate() {
            if is_wide(dtype) {
                let value = self.shader.name(&values[0]);
                for (half, part) in ["x", "y"].into_iter().enumerate() {
                    let at = format!("2u * ({at} + {k}u) + {half}u");
                    self.shader.line(format!("{memory}[{at}] = {value}.{part};"));
                }
                continue;
            }
            let lane = |(e, value): (usize, &String)| match e {
                0 => value.clone(),
                _ => format!("({value} << {}u)", 8 * e * dtype.size()),
            };
            let word: Vec<String> = values.iter().enumerate().map(lane).collect();
            let at = if per == 1 { at.to_owned() } else { format!("{at} / {per}u") };
            self.shader.line(format!("{memory}[{at} + {k}u] = {};", word.join(" | ")));
        }
    }
}
