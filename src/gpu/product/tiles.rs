//! Products with tiles of both operands in workgroup memory.
//!
//! A workgroup computes 32 × 32 results, 4 × 4 an invocation. Its invocations bring 16 terms of 32
//! rows and columns at a time, neighbours in memory side by side, so that each element is read once
//! a workgroup. The sums are formed in the order in which an invocation alone forms them.

use super::text::Text;
use super::{FOUR, Product, Side};
use crate::error::Result;
use crate::gpu::element::register as wgsl;
use crate::gpu::kernel::{Dispatch, WORKGROUP, Word, count};
use crate::gpu::shader::MOST_SHARED;
use crate::gpu::terms::{BLOCK, along, zero};
use crate::shape::{Dim, Dims};

/// Rows and columns of a tile.
pub(super) const SIDE: usize = 32;

/// Terms of a tile.
const DEPTH: usize = 16;

/// Elements between the terms of a tile: odd, so that neighbouring terms lie in different banks.
const PITCH: usize = SIDE + 1;

/// The most terms: each is a round.
pub(super) const MOST_TERMS: usize = 1 << 15;

/// Both tiles are in the workgroup memory that every adapter has, elements of two words too.
const _: () = assert!(2 * 8 * PITCH * DEPTH <= MOST_SHARED);

/// Elements of a tile that an invocation brings.
const EACH: usize = SIDE * DEPTH / WORKGROUP;

/// Tiles of the results of a product.
pub(super) fn tiles(product: &Product) -> Dim {
    let across = |sizes: &Dims| count(sizes).div_ceil(Dim::new(SIDE));
    count(&product.batch) * across(&product.rows) * across(&product.columns)
}

/// A tile of a side, as it is brought.
struct Brought {
    name: String,
    /// Where the first element of the matrix lies, and the stride of terms
    base: String,
    step: String,
    /// For each element that an invocation brings its term, its row or column, and the offset of
    /// that
    elements: Vec<[String; 3]>,
}

impl Text<'_> {
    /// The names of an invocation's results, and the tiles.
    fn tile(&mut self) -> Result<[Brought; 2]> {
        let product = self.product;
        let shader = &mut self.shader;
        let all = shader.size(tiles(product));
        // Workgroups behind the last one compute what it does, and write nothing.
        let group = shader.name(format!("min(group, {all} - 1u)"));
        let across = shader.size(count(&product.columns).div_ceil(Dim::new(SIDE)));
        let down = shader.size(count(&product.rows).div_ceil(Dim::new(SIDE)));
        let column = shader.name(format!("({group} % {across}) * {SIDE}u"));
        let rest = shader.name(format!("{group} / {across}"));
        let row = shader.name(format!("({rest} % {down}) * {SIDE}u"));
        let outer = shader.name(format!("{rest} / {down}"));
        let index = shader.indices(&outer, &product.batch);
        let (rows, columns) = (count(&product.rows), count(&product.columns));
        let names = &mut self.names;
        names.row_count = shader.size(rows);
        names.column_count = shader.size(columns);
        names.last = shader.size(count(&product.terms));
        let width = SIDE / FOUR;
        let y = shader.name(format!("local / {width}u * {FOUR}u"));
        let x = shader.name(format!("local % {width}u * {FOUR}u"));
        for k in 0..FOUR {
            names.rows.push(shader.name(format!("{row} + {y} + {k}u")));
            names.columns.push(shader.name(format!("{column} + {x} + {k}u")));
        }
        names.outer = outer;
        (names.x, names.y, names.is_own) = (x, y, format!("group < {all}"));
        let row_count = names.row_count.clone();
        let column_count = names.column_count.clone();
        let a = (&product.a, &product.rows, row, row_count);
        let b = (&product.b, &product.columns, column, column_count);
        let mut brought =
            |(side, sizes, first, all): (&Side, &Dims, String, String)| -> Result<Brought> {
                let ty = wgsl(self.sum.dtype)?;
                let name = shader.shared(ty, PITCH * DEPTH);
                let offset = shader.offset(&side.batch, &index);
                let start = shader.word(side.source.view.offset);
                let base = shader.name(format!("{start} + {offset}"));
                let step =
                    shader.steps(&side.terms).first().cloned().unwrap_or_else(|| "0u".into());
                let steps = shader.steps(&side.free);
                let is_along_terms = side.terms[..] == [Word::Size(Dim::ONE)];
                let mut elements: Vec<[String; 3]> = Vec::new();
                for e in 0..EACH {
                    let at = shader.name(format!("local + {}u", e * WORKGROUP));
                    let [term, own] = match is_along_terms {
                        true => [format!("{at} % {DEPTH}u"), format!("{at} / {DEPTH}u")],
                        false => [format!("{at} / {SIDE}u"), format!("{at} % {SIDE}u")],
                    };
                    let term = shader.name(term);
                    let own = shader.name(own);
                    let near = shader.name(format!("min({first} + {own}, {all} - 1u)"));
                    let index = shader.indices(&near, sizes);
                    let offset = shader.name(along(&steps, &index));
                    elements.push([term, own, offset]);
                }
                Ok(Brought { name, base, step, elements })
            };
        Ok([brought(a)?, brought(b)?])
    }

    /// The lines that bring the terms from `s` on.
    fn bring(&mut self, side: &Side, tile: &Brought) -> Result<()> {
        let (terms, zero) = (self.names.last.clone(), zero(self.sum.dtype));
        for [term, own, offset] in &tile.elements {
            let at = self.shader.name(format!("s + {term}"));
            let near = self.shader.name(format!("min({at}, {terms} - 1u)"));
            let step = &tile.step;
            let place = format!("{} + {offset} + {near} * {step}", tile.base);
            let value = self.element(side, &place)?;
            let value = self.shader.name(value);
            // Zeros change no sum: it is never −0.
            self.shader.line(format!(
                "{}[{term} * {PITCH}u + {own}] = select({zero}, {value}, {at} < {terms});",
                tile.name
            ));
        }
        Ok(())
    }

    /// The loops over tiles.
    pub(super) fn tiled(&mut self) -> Result<()> {
        let [a, b] = self.tile()?;
        let (zero, product) = (zero(self.sum.dtype), self.product);
        let terms = self.names.last.clone();
        let all = self.block(zero);
        self.shader.line(format!("for (var j = 0u; j < {terms}; j += {BLOCK}u) {{"));
        let own = self.block(zero);
        self.shader
            .line(format!("for (var s = j; s < min(j + {BLOCK}u, {terms}); s += {DEPTH}u) {{"));
        self.bring(&product.a, &a)?;
        self.bring(&product.b, &b)?;
        self.shader.barrier();
        self.shader.line(format!("for (var k = 0u; k < {DEPTH}u; k++) {{"));
        let (x, y) = (self.names.x.clone(), self.names.y.clone());
        let mut read = |tile: &Brought, from: &str| -> Vec<String> {
            let name = |k| format!("{}[k * {PITCH}u + {from} + {k}u]", tile.name);
            (0..FOUR).map(|k| self.shader.name(name(k))).collect()
        };
        let (rows, columns) = (read(&a, &y), read(&b, &x));
        for (row, sums) in rows.iter().zip(&own) {
            for (column, sum) in columns.iter().zip(sums) {
                self.add(sum, row, column, None)?;
            }
        }
        self.shader.line("}");
        self.shader.barrier();
        self.shader.line("}");
        self.join_blocks(&all, &own)?;
        self.shader.line("}");
        self.names.sums = all;
        Ok(())
    }

    /// The dispatch of the lines.
    pub(super) fn tiled_dispatch(mut self) -> Dispatch {
        let terms = count(&self.product.terms);
        let rounds =
            terms.div_ceil(Dim::new(DEPTH)) * Dim::new(DEPTH + 1) + terms.div_ceil(Dim::new(BLOCK));
        let invocations = tiles(self.product) * Dim::new(WORKGROUP);
        let body = self.shader.taken();
        self.shader.entry(&body, invocations, rounds)
    }
}
