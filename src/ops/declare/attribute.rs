//! Attributes: parsed arguments.

use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use crate::dtype::{DType, Scalar};
use crate::shape::Dim;

/// A parsed argument.
#[derive(Clone, Debug)]
pub enum Attr {
    /// Absent
    None,
    /// `bool`
    Bool(bool),
    /// `int`
    Int(i64),
    /// `float`
    Float(f64),
    /// Several ints
    Ints(SmallVec<[i64; 6]>),
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
            _ => 0,
        }
    }

    /// Visits every size that is an expression: ints hold its code.
    pub fn each_dim(&mut self, f: &mut impl FnMut(&mut Dim)) {
        let mut visit = |n: &mut i64| {
            let mut dim = Dim::from_i64(*n);
            if dim.known().is_none() {
                f(&mut dim);
                *n = dim.to_i64();
            }
        };
        match self {
            Attr::Int(n) => visit(n),
            Attr::Ints(list) => list.iter_mut().for_each(visit),
            Attr::None
            | Attr::Bool(_)
            | Attr::Float(_)
            | Attr::DType(_)
            | Attr::Text(_)
            | Attr::Operands(_)
            | Attr::Operand => {}
        }
    }

    /// Whether an int in it is a size that is an expression.
    pub fn has_size(&self) -> bool {
        let mut any = false;
        self.clone().each_dim(&mut |_| any = true);
        any
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
        }
    }
}

impl PartialEq for Attr {
    fn eq(&self, other: &Attr) -> bool {
        match (self, other) {
            (Attr::Ints(a), Attr::Ints(b)) => a == b,
            (Attr::Text(a), Attr::Text(b)) => a == b,
            _ => self.key() == other.key(),
        }
    }
}

impl Eq for Attr {}

impl Hash for Attr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
        match self {
            Attr::Ints(v) => v.hash(state),
            Attr::Text(s) => s.hash(state),
            _ => {}
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
        _ => None,
    }
}
