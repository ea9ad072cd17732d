//! Attributes: parsed arguments.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use smallvec::SmallVec;

use crate::dtype::{DType, Scalar};
use crate::shape::{Dim, Extent};

/// The places of the operands that attribute `i` stands for, among those of its call.
pub fn operands_of(attributes: &[Attr], i: usize) -> Range<usize> {
    let start = attributes[..i].iter().map(Attr::width).sum();
    start..start + attributes[i].width()
}

/// Which attribute stands for an operand.
pub fn attribute_of(attributes: &[Attr], operand: usize) -> Option<usize> {
    let mut seen = 0;
    attributes.iter().position(|attr| {
        seen += attr.width();
        operand < seen
    })
}

/// A parsed argument. Its tag is a word, as that of a [`Scalar`](crate::dtype::Scalar).
#[derive(Clone, Debug)]
#[repr(u64)]
pub enum Attr {
    /// Absent
    None,
    /// `bool`
    Bool(bool),
    /// `int`
    Int(i64),
    /// `float`
    Float(f64),
    /// An int that is a size, of which only an expression is known
    Size(Dim),
    /// Several ints
    Ints(SmallVec<[i64; 6]>),
    /// Several ints, some of which are such sizes
    Sizes(Box<[Extent]>),
    /// A dtype
    DType(DType),
    /// A word
    Text(Box<str>),
    /// The next `n` operands: structure only, the values are runtime operands
    Operands(u32),
    /// The next operand
    Operand,
}

impl Attr {
    /// How many operands this stands for.
    pub fn width(&self) -> usize {
        match self {
            Attr::Operand => 1,
            Attr::Operands(n) => *n as usize,
            Attr::None
            | Attr::Bool(_)
            | Attr::Int(_)
            | Attr::Float(_)
            | Attr::Size(_)
            | Attr::Ints(_)
            | Attr::Sizes(_)
            | Attr::DType(_)
            | Attr::Text(_) => 0,
        }
    }

    /// Ints, some of which may be sizes.
    pub fn of_extents(list: &[Extent]) -> Attr {
        match list.iter().map(|n| n.known()).collect() {
            Some(numbers) => Attr::Ints(numbers),
            None => Attr::Sizes(list.into()),
        }
    }

    /// Visits every size that is an expression.
    pub fn each_dim(&mut self, f: &mut impl FnMut(&mut Dim)) {
        let mut visit = |mut dim: Dim| {
            f(&mut dim);
            Extent::from(dim)
        };
        match self {
            Attr::Size(dim) => *self = visit(*dim).into(),
            Attr::Sizes(list) => {
                let visited = list.iter().map(|&item| match item {
                    Extent::Number(_) => item,
                    Extent::Size(dim) => visit(dim),
                });
                *self = Attr::of_extents(&visited.collect::<SmallVec<[Extent; 6]>>());
            }
            Attr::None
            | Attr::Int(_)
            | Attr::Ints(_)
            | Attr::Bool(_)
            | Attr::Float(_)
            | Attr::DType(_)
            | Attr::Text(_)
            | Attr::Operands(_)
            | Attr::Operand => {}
        }
    }

    /// Whether it has a size that is an expression.
    pub fn has_size(&self) -> bool {
        matches!(self, Attr::Size(_) | Attr::Sizes(_))
    }

    /// Floats compare and hash by their bits, so that attributes can key plans.
    fn key(&self) -> (u8, u64) {
        match self {
            Attr::None => (0, 0),
            Attr::Bool(b) => (1, u64::from(*b)),
            Attr::Int(i) => (2, *i as u64),
            Attr::Float(x) => (3, x.to_bits()),
            Attr::Ints(_) => (4, 0),
            Attr::DType(d) => (5, *d as u64),
            Attr::Text(_) => (6, 0),
            Attr::Operands(n) => (7, u64::from(*n)),
            Attr::Operand => (8, 0),
            Attr::Size(dim) => (9, dim.key()),
            Attr::Sizes(_) => (10, 0),
        }
    }
}

impl PartialEq for Attr {
    fn eq(&self, other: &Attr) -> bool {
        match (self, other) {
            (Attr::Ints(a), Attr::Ints(b)) => a == b,
            (Attr::Sizes(a), Attr::Sizes(b)) => {
                let key = |n: &Extent| match *n {
                    Extent::Number(n) => (false, n as u64),
                    Extent::Size(dim) => (true, dim.key()),
                };
                a.iter().map(key).eq(b.iter().map(key))
            }
            (Attr::Text(a), Attr::Text(b)) => a == b,
            _ => self.key() == other.key(),
        }
    }
}

impl Eq for Attr {}

impl From<Extent> for Attr {
    fn from(n: Extent) -> Attr {
        match n {
            Extent::Number(n) => Attr::Int(n),
            Extent::Size(dim) => Attr::Size(dim),
        }
    }
}

impl Hash for Attr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
        match self {
            Attr::Ints(v) => v.hash(state),
            Attr::Sizes(v) => v.hash(state),
            Attr::Text(s) => s.hash(state),
            Attr::None
            | Attr::Bool(_)
            | Attr::Int(_)
            | Attr::Float(_)
            | Attr::Size(_)
            | Attr::DType(_)
            | Attr::Operands(_)
            | Attr::Operand => {}
        }
    }
}

/// A default, read from its Python source.
pub fn parse_default(source: &str) -> Attr {
    match source {
        "None" => Attr::None,
        "True" => Attr::Bool(true),
        "False" => Attr::Bool(false),
        _ if source.starts_with('"') => Attr::Text(source.trim_matches('"').into()),
        _ if source.starts_with('(') => {
            let inner = source.trim_matches(['(', ')']);
            let items = inner.split(',').filter_map(|item| item.trim().parse().ok());
            Attr::Ints(items.collect())
        }
        _ => source.parse().map(Attr::Int).unwrap_or_else(|_| {
            Attr::Float(
                source
                    .parse()
                    .unwrap_or_else(|_| unreachable!("default {source} is no Python literal")),
            )
        }),
    }
}

/// The number a default or argument stands for, where the parameter is a runtime number.
pub fn number(attr: &Attr) -> Option<Scalar> {
    match attr {
        Attr::Bool(b) => Some(Scalar::Bool(*b)),
        Attr::Int(n) => Some(Scalar::Int(*n)),
        Attr::Float(x) => Some(Scalar::Float(*x)),
        Attr::None
        | Attr::Size(_)
        | Attr::Ints(_)
        | Attr::Sizes(_)
        | Attr::DType(_)
        | Attr::Text(_)
        | Attr::Operands(_)
        | Attr::Operand => None,
    }
}
