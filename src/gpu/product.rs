//! General products: sums of products of elements of two operands, blocks of them at a time.
//!
//! An invocation computes a block of rows × columns, so that each element that it reads takes part
//! in several products. Where the terms are many and the blocks few, parts of the terms have
//! invocations of their own, and a second dispatch adds them.

use super::element::is_wide;
use super::kernel::{Dispatch, Input, Kernel, Output, Place, Word, count};
use super::reduce;
use super::shader::{Shader, lanes};
use super::terms::{
    BLOCK, Join, MOST_PARTS, Source, Strides, along, merged, parts, read, register, zero,
};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attributes::{Contraction, Reduction};
use crate::ops::elementwise::{Elementwise, arithmetic, bits};
use crate::shape::{Dim, Dims};

/// Terms that are worth an invocation.
const EACH: usize = 128;

/// Blocks that are enough to keep an adapter busy.
const BUSY: usize = 1024;

/// The most elements of a result whose terms are shared where their count is open.
const MOST_SHARED: usize = 1 << 16;

/// An operand of a product.
#[derive(Clone, Debug)]
pub struct Side {
    pub source: Source,
    /// The strides of batch axes
    pub batch: Strides,
    /// Those of the axes of its own: rows or columns
    pub free: Strides,
    /// Those of the axes of terms
    pub terms: Strides,
}

/// Where a side is read along an axis, beside its strides: at
/// `(column · i + term · j + start) / divisor`, which may lie outside: there are zeros.
#[derive(Clone, Debug)]
pub struct Window {
    /// The size of the axis, and its stride
    pub size: Dim,
    pub stride: Word,
    /// Which axis of columns is `i`, and its factor
    pub column: (usize, Word),
    /// Which axis of terms is `j`, and its factor
    pub term: (usize, Word),
    pub start: Word,
    /// What is not a multiple of it takes no part
    pub divisor: Option<Word>,
}

/// `out[batch, rows, columns] = Σ a[batch, rows, terms] b[batch, columns, terms]`
#[derive(Clone, Debug)]
pub struct Product {
    pub batch: Dims,
    pub rows: Dims,
    pub columns: Dims,
    pub terms: Dims,
    pub a: Side,
    pub b: Side,
    /// Further axes of `b`
    pub windows: Vec<Window>,
}

/// The kernel of a general product.
pub fn contract(spec: &Contraction, inputs: &[Input], out: &Output) -> Result<Kernel> {
    let (a, b) = (Source::of(&inputs[0])?, Source::of(&inputs[1])?);
    let free = |x: &Source, batch: &[usize], terms: &[usize]| -> Vec<usize> {
        (0..x.view.sizes.len()).filter(|i| !batch.contains(i) && !terms.contains(i)).collect()
    };
    let rows = free(&a, &spec.a_batch, &spec.a_contract);
    let columns = free(&b, &spec.b_batch, &spec.b_contract);
    let side = |source: &Source, batch: &[usize], free: &[usize], terms: &[usize]| Side {
        source: source.clone(),
        batch: source.strides(batch),
        free: source.strides(free),
        terms: source.strides(terms),
    };
    let product = Product {
        batch: a.sizes(&spec.a_batch),
        rows: a.sizes(&rows),
        columns: b.sizes(&columns),
        terms: a.sizes(&spec.a_contract),
        a: side(&a, &spec.a_batch, &rows, &spec.a_contract),
        b: side(&b, &spec.b_batch, &columns, &spec.b_contract),
        windows: Vec::new(),
    };
    kernel(product, out)
}

/// The kernel of a product.
pub fn kernel(product: Product, out: &Output) -> Result<Kernel> {
    let product = product.merged();
    let dtype = product.a.source.dtype;
    let tile = Tile::of(&product);
    let sums = count(out.ty.shape.dims());
    let terms = count(&product.terms);
    let shared = match (terms.known(), sums.known()) {
        (None, None) => None,
        (None, Some(sums)) if sums > MOST_SHARED => None,
        _ => parts(terms, tile.blocks(&product), EACH, BUSY),
    };
    let mut kernel = Kernel::default();
    let to = (Place::Range(out.range), register(dtype));
    // Neighbours of a narrow dtype share words.
    if shared.is_none() && lanes(read(out.ty.dtype)) == 1 {
        kernel.dispatches.push(tile.dispatch(&product, None, to)?);
        return Ok(kernel);
    }
    let many = shared.unwrap_or(Dim::ONE);
    let place = kernel.scratch(register(dtype), sums * many);
    kernel.dispatches.push(tile.dispatch(&product, shared, (place, to.1))?);
    kernel.dispatches.push(reduce::joined(dtype, place, many, sums, out)?);
    Ok(kernel)
}

impl Product {
    /// The same with neighbouring axes merged.
    fn merged(mut self) -> Product {
        let (batch, [a, b]) = merged(&self.batch, [&self.a.batch, &self.b.batch]);
        (self.batch, self.a.batch, self.b.batch) = (batch, a, b);
        let (rows, [a]) = merged(&self.rows, [&self.a.free]);
        (self.rows, self.a.free) = (rows, a);
        if self.windows.is_empty() {
            let (columns, [b]) = merged(&self.columns, [&self.b.free]);
            (self.columns, self.b.free) = (columns, b);
            let (terms, [a, b]) = merged(&self.terms, [&self.a.terms, &self.b.terms]);
            (self.terms, self.a.terms, self.b.terms) = (terms, a, b);
        }
        self
    }
}

/// How elements of a side are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// One by one
    Single,
    /// Four terms at a time
    Terms,
    /// Four rows or columns at a time
    Free,
}

/// The shape of a kernel.
struct Tile {
    rows: usize,
    columns: usize,
    a: Load,
    b: Load,
    /// Terms of a round
    unrolled: usize,
}

const FOUR: usize = 4;

fn is_multiple(word: &Word) -> bool {
    matches!(word, Word::Size(n) | Word::Minus(n)
        if n.known().is_some_and(|n| n.is_multiple_of(FOUR)))
}

impl Side {
    /// How its elements are read, in blocks of so many.
    fn load(&self, terms: &[Dim], block: usize, size: Dim) -> Load {
        let is_aligned = |strides: &Strides| strides.iter().all(is_multiple);
        let is_four = |size: Dim| size.known().is_some_and(|n| n.is_multiple_of(FOUR));
        let one = Word::Size(Dim::ONE);
        let is_fit = self.source.dtype == DType::F32
            && is_multiple(&self.source.view.offset)
            && is_aligned(&self.batch);
        if !is_fit {
            return Load::Single;
        }
        if self.terms[..] == [one] && is_four(terms[0]) && is_aligned(&self.free) {
            return Load::Terms;
        }
        let is_free = self.free[..] == [one] && is_four(size) && is_aligned(&self.terms);
        if is_free && block == FOUR { Load::Free } else { Load::Single }
    }
}

impl Tile {
    fn of(product: &Product) -> Tile {
        let most = if is_wide(product.a.source.dtype) { 2 } else { FOUR };
        let block = |sizes: &Dims| match count(sizes).known() {
            Some(n) => n.next_power_of_two().clamp(1, most),
            None => most,
        };
        let (rows, columns) = (block(&product.rows), block(&product.columns));
        let is_plain = product.terms.len() <= 1 && product.windows.is_empty();
        let (mut a, mut b) = (Load::Single, Load::Single);
        if is_plain && !product.terms.is_empty() {
            a = product.a.load(&product.terms, rows, count(&product.rows));
            b = product.b.load(&product.terms, columns, count(&product.columns));
        }
        let is_single = |load: Load| load == Load::Single;
        // A place is read in one way.
        if product.a.source.place == product.b.source.place && is_single(a) != is_single(b) {
            (a, b) = (Load::Single, Load::Single);
        }
        let unrolled = match count(&product.terms).known() {
            _ if !is_plain => 1,
            Some(_) => FOUR,
            None => 2 * FOUR,
        };
        Tile { rows, columns, a, b, unrolled }
    }

    fn row_blocks(&self, product: &Product) -> Dim {
        count(&product.rows).div_ceil(Dim::new(self.rows))
    }

    fn column_blocks(&self, product: &Product) -> Dim {
        count(&product.columns).div_ceil(Dim::new(self.columns))
    }

    fn blocks(&self, product: &Product) -> Dim {
        count(&product.batch) * self.row_blocks(product) * self.column_blocks(product)
    }

    /// The dispatch that computes blocks, or parts of them, which lie behind each other.
    fn dispatch(
        &self,
        product: &Product,
        parts: Option<Dim>,
        to: (Place, DType),
    ) -> Result<Dispatch> {
        let dtype = product.a.source.dtype;
        let mut shader = Shader::new();
        shader.register(to.1)?;
        let sum = Join::of(Reduction::Sum, dtype);
        let mut text = Text { tile: self, product, shader, sum, names: Names::default() };
        text.place(parts)?;
        text.sums()?;
        text.write(to)?;
        let terms = count(&product.terms);
        let each = match (parts.map(Dim::known), terms.known()) {
            (None, _) => terms,
            (Some(Some(parts)), Some(terms)) => Dim::new(terms.div_ceil(parts.max(1)) + FOUR),
            _ => terms.div_ceil(Dim::new(MOST_PARTS)).max(Dim::new(4 * EACH)) + Dim::new(FOUR),
        };
        let rounds = each.div_ceil(Dim::new(self.unrolled))
            + each.div_ceil(Dim::new(BLOCK))
            + Dim::new(self.unrolled);
        let count = self.blocks(product) * parts.unwrap_or(Dim::ONE);
        Ok(text.shader.each(count, rounds))
    }
}

/// The names of what an invocation computes with.
#[derive(Default)]
struct Names {
    /// Rows and columns, which may lie behind the last ones, and their counts
    rows: Vec<String>,
    columns: Vec<String>,
    row_count: String,
    column_count: String,
    /// Positions of the first terms
    a: Vec<String>,
    b: Vec<String>,
    /// For each column where its windows start
    starts: Vec<Vec<String>>,
    /// The first term and the one behind the last
    first: String,
    last: String,
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
    outer: String,
    /// The results
    sums: Vec<Vec<String>>,
}

struct Text<'a> {
    tile: &'a Tile,
    product: &'a Product,
    shader: Shader,
    sum: Join,
    names: Names,
}

impl Text<'_> {
    /// Which block and which terms are an invocation's.
    fn place(&mut self, parts: Option<Dim>) -> Result<()> {
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

    fn block(&mut self, value: &str) -> Vec<Vec<String>> {
        let (rows, columns) = (self.tile.rows, self.tile.columns);
        let mut row = || (0..columns).map(|_| self.shader.variable(value)).collect();
        (0..rows).map(|_| row()).collect()
    }

    /// The loops over terms.
    fn sums(&mut self) -> Result<()> {
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
            for (all, own) in all.iter().flatten().zip(own.iter().flatten()) {
                let joined = self.sum.call(&mut self.shader, all, own)?;
                self.shader.line(format!("{all} = {joined};"));
            }
            self.shader.line("}");
        }
        self.names.sums = all;
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
        let source = &side.source;
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
            let memory = shader.memory_as(source.place, "vec4<u32>");
            shader.name(format!("bitcast<vec4<f32>>({memory}[({at}) >> 2u])"))
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
                        let value = shader.load_at(source.place, read(source.dtype), &at)?;
                        values.push(shader.name(value));
                    }
                }
            }
        }
        Ok(values)
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
    fn add(&mut self, sum: &str, a: &str, b: &str, touches: Option<&str>) -> Result<()> {
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
    fn write(&mut self, (place, dtype): (Place, DType)) -> Result<()> {
        let memory = self.shader.memory(place);
        let names = &self.names;
        for (row, sums) in names.rows.iter().zip(&names.sums) {
            let (rows, columns) = (&names.row_count, &names.column_count);
            let start = self.shader.name(format!("({} * {rows} + {row}) * {columns}", names.outer));
            self.shader.line(format!("if {row} < {rows} {{"));
            for (column, sum) in names.columns.iter().zip(sums) {
                let lane = self.shader.stored(dtype, sum)?;
                let store = match is_wide(dtype) {
                    true => format!(
                        "{memory}[2u * ({start} + {column})] = {lane}.x;\n    {memory}[2u * \
                         ({start} + {column}) + 1u] = {lane}.y;"
                    ),
                    false => format!("{memory}[{start} + {column}] = {lane};"),
                };
                self.shader.line(format!("if {column} < {columns} {{\n    {store}\n}}"));
            }
            self.shader.line("}");
        }
        Ok(())
    }
}
