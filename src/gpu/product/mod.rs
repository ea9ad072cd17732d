//! General products: sums of products of elements of two operands, blocks of them at a time.
//!
//! An invocation computes a block of rows × columns, so that each element that it reads takes part
//! in several products. Where the terms are many and the blocks few, parts of the terms have
//! invocations of their own, and a second dispatch adds them.

mod text;
mod tiles;

use super::element::is_wide;
use super::epilogue::{Grid, Target};
use super::kernel::{Dispatch, Input, Kernel, Place, Word, count};
use super::reduce;
use super::shader::{Shader, lanes};
use super::terms::{BLOCK, Join, MOST_PARTS, Source, Strides, merged, parts, register};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attributes::{Contraction, Reduction};
use crate::shape::{Dim, Dims};
use crate::target::{Abilities, Tiling};
use text::{Names, Text};

/// Terms that are worth an invocation.
const EACH: usize = 128;

/// Blocks that are enough to keep an adapter busy.
const BUSY: usize = 1024;

/// Tiles in workgroup memory that are enough to keep an adapter busy.
const MANY_TILES: usize = 32;

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
pub fn contract(
    spec: &Contraction,
    inputs: &[Input],
    to: Target<'_>,
    abilities: Abilities,
) -> Result<Kernel> {
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
    kernel(product, to, abilities)
}

/// The kernel of a product.
pub fn kernel(product: Product, to: Target<'_>, abilities: Abilities) -> Result<Kernel> {
    let grid = product.grid();
    let product = product.merged();
    let dtype = product.a.source.dtype;
    let tile = Tile::of(&product, to, abilities);
    let sums = count(to.sizes());
    let terms = count(&product.terms);
    let shared = match (terms.known(), sums.known()) {
        (Some(_), _) if tile.is_shared => None,
        (None, None) => None,
        (None, Some(sums)) if sums > MOST_SHARED => None,
        _ => parts(terms, tile.blocks(&product), EACH, BUSY),
    };
    let mut kernel = Kernel::default();
    if shared.is_none() && tile.owns_words(&product, to) {
        kernel.dispatches.push(tile.dispatch(&product, None, &End::Target(to, &grid))?);
        return Ok(kernel);
    }
    let many = shared.unwrap_or(Dim::ONE);
    let place = kernel.scratch(register(dtype), sums * many);
    kernel.dispatches.push(tile.dispatch(&product, shared, &End::Parts(place))?);
    kernel.dispatches.push(match to {
        Target::Range(out) => reduce::joined(dtype, place, [many, sums], out, abilities)?,
        Target::Epilogue(epilogue) => epilogue.dispatch(place, many)?,
    });
    Ok(kernel)
}

/// Whether a product takes tiles in workgroup memory. They read each element once for 32 results
/// instead of four, which pays where that memory is nearer than the caches (not on processors),
/// where both sides fill tiles, and where there are so many tiles that no terms need be shared
/// out. Sums of open length are always shared out, because rounds of loops are limited.
fn takes_tiles(product: &Product, tiling: Tiling) -> bool {
    let known = |sizes: &Dims| count(sizes).known();
    let is_plain = product.terms.len() <= 1 && product.windows.is_empty();
    let is_short = known(&product.terms).is_some_and(|terms| terms <= tiles::MOST_TERMS);
    if !is_plain || !is_short {
        return false;
    }
    let fills = |sizes: &Dims| known(sizes).is_none_or(|n| n >= tiles::SIDE);
    match tiling {
        Tiling::Never => false,
        Tiling::Large => {
            let is_busy = tiles::tiles(product).known().is_none_or(|tiles| tiles >= MANY_TILES);
            fills(&product.rows) && fills(&product.columns) && is_busy
        }
        Tiling::Always => true,
    }
}

/// Where the sums of a dispatch go.
enum End<'a> {
    /// To scratch, in the dtype that sums are kept in
    Parts(Place),
    /// Where the product goes
    Target(Target<'a>, &'a Grid),
}

impl Product {
    fn grid(&self) -> Grid {
        let Product { batch, rows, columns, .. } = self;
        Grid { batch: batch.clone(), rows: rows.clone(), columns: columns.clone() }
    }

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
    /// Whether a workgroup shares tiles
    is_shared: bool,
    /// Whether memory is read as floats of 16 bits
    is_native: bool,
}

const FOUR: usize = 4;

fn is_multiple(word: &Word) -> bool {
    matches!(word, Word::Size(n) | Word::Minus(n)
        if n.known().is_some_and(|n| n.is_multiple_of(FOUR)))
}

impl Side {
    /// How its elements are read, in blocks of so many.
    fn load(&self, terms: &[Dim], block: usize, size: Dim, is_native: bool) -> Load {
        let is_aligned = |strides: &Strides| strides.iter().all(is_multiple);
        let is_four = |size: Dim| size.known().is_some_and(|n| n.is_multiple_of(FOUR));
        let one = Word::Size(Dim::ONE);
        let is_fit = (self.source.dtype == DType::F32 || is_native)
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
    fn of(product: &Product, to: Target<'_>, abilities: Abilities) -> Tile {
        let dtype = product.a.source.dtype;
        let is_plain = product.terms.len() <= 1 && product.windows.is_empty();
        let sides = [product.a.source.place, product.b.source.place];
        // What an epilogue reads besides is read as words.
        let is_read = match to {
            Target::Range(_) => false,
            Target::Epilogue(epilogue) => {
                epilogue.operands.iter().any(|operand| sides.contains(&operand.place))
            }
        };
        let is_native = abilities.has_f16 && dtype == DType::F16 && is_plain && !is_read;
        let (mut a, mut b) = (Load::Single, Load::Single);
        if takes_tiles(product, abilities.tiling) {
            let (rows, columns, unrolled) = (FOUR, FOUR, FOUR);
            return Tile { rows, columns, a, b, unrolled, is_shared: true, is_native };
        }
        let most = if is_wide(dtype) { 2 } else { FOUR };
        let block = |sizes: &Dims| match count(sizes).known() {
            Some(n) => n.next_power_of_two().clamp(1, most),
            None => most,
        };
        let (rows, columns) = (block(&product.rows), block(&product.columns));
        if is_plain && !product.terms.is_empty() {
            a = product.a.load(&product.terms, rows, count(&product.rows), is_native);
            b = product.b.load(&product.terms, columns, count(&product.columns), is_native);
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
        Tile { rows, columns, a, b, unrolled, is_shared: false, is_native }
    }

    /// The type of four elements in memory.
    fn vectors(&self) -> &'static str {
        if self.is_native { "vec4<f16>" } else { "vec4<u32>" }
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

    /// Whether no two invocations write to one word of a result: neighbours of a narrow dtype
    /// share words.
    fn owns_words(&self, product: &Product, to: Target<'_>) -> bool {
        let columns = count(&product.columns).known();
        to.results().iter().all(|&(_, dtype)| {
            let each = lanes(dtype);
            each == 1
                || self.columns.is_multiple_of(each)
                    && columns.is_some_and(|n| n.is_multiple_of(each))
        })
    }

    /// The dispatch that computes blocks, or parts of them, which lie behind each other.
    fn dispatch(&self, product: &Product, parts: Option<Dim>, end: &End<'_>) -> Result<Dispatch> {
        let dtype = product.a.source.dtype;
        let mut shader = Shader::new();
        shader.register(register(dtype))?;
        let sides = [(product.a.source.place, self.a), (product.b.source.place, self.b)];
        for (place, load) in sides {
            if load != Load::Single {
                shader.memory_as(place, self.vectors());
            }
        }
        if let End::Target(Target::Epilogue(epilogue), grid) = end {
            epilogue.print(&mut shader, grid)?;
        }
        let sum = Join::of(Reduction::Sum, dtype);
        let mut text = Text { tile: self, product, shader, sum, names: Names::default() };
        if self.is_shared {
            text.tiled()?;
            text.write(end)?;
            return Ok(text.tiled_dispatch());
        }
        text.place(parts)?;
        text.sums()?;
        text.write(end)?;
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
