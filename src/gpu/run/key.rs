//! What a kernel of a device is kept by.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::pipeline::Pipeline;
use crate::dtype::DType;
use crate::gpu::kernel::Kernel;
use crate::layout::Layout;
use crate::ops::element::ElementProgram;
use crate::ops::op::Op;
use crate::schedule::{Product, RowFusion};
use crate::shape::Shape;

/// The most bytes of kernels that are kept, beside their texts, which pipelines keep.
const MOST_KERNELS: usize = 16 << 20;

/// What a kernel computes.
#[derive(Clone)]
pub enum What {
    /// An op, with where its numbers stand
    Op(Op),
    /// A group of a plan
    Group(Arc<ElementProgram>, Shape),
    /// A row fusion of a plan
    Rows(Box<RowFusion>),
    /// A product of a plan with its epilogue, at these sizes
    Product(Box<Product>, Shape),
}

impl What {
    /// The name in errors.
    pub fn name(&self) -> &'static str {
        match self {
            What::Op(op) => op.name(),
            What::Group(..) => "group",
            What::Rows(_) => "row fusion",
            What::Product(product, _) => product.op.name(),
        }
    }
}

/// The program of an epilogue, and which of its arrays is the product.
fn after(product: &Product) -> Option<(*const ElementProgram, usize)> {
    product.after.as_ref().map(|after| (Arc::as_ptr(&after.group.program), after.raw))
}

impl PartialEq for What {
    fn eq(&self, other: &What) -> bool {
        match (self, other) {
            (What::Op(a), What::Op(b)) => a == b,
            (What::Group(a, m), What::Group(b, n)) => Arc::ptr_eq(a, b) && m == n,
            (What::Rows(a), What::Rows(b)) => {
                Arc::ptr_eq(&a.program, &b.program) && a.sizes == b.sizes && a.shapes == b.shapes
            }
            (What::Product(a, m), What::Product(b, n)) => {
                a.op == b.op && after(a) == after(b) && m == n
            }
            (What::Op(_) | What::Group(..) | What::Rows(_) | What::Product(..), _) => false,
        }
    }
}

impl Hash for What {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            What::Op(op) => op.hash(state),
            What::Group(program, shape) => {
                (Arc::as_ptr(program) as usize).hash(state);
                shape.hash(state);
            }
            What::Rows(fusion) => {
                (Arc::as_ptr(&fusion.program) as usize).hash(state);
                fusion.sizes.hash(state);
            }
            What::Product(product, shape) => {
                product.op.hash(state);
                after(product).hash(state);
                shape.hash(state);
            }
        }
    }
}

/// What a kernel at known sizes depends on.
#[derive(Clone, PartialEq)]
pub struct Key {
    /// What is computed
    pub what: What,
    /// For each operand its range, dtype and layout; nothing for a number
    pub operands: SmallVec<[Option<(usize, DType, Layout)>; 4]>,
    /// The range of each result
    pub results: SmallVec<[usize; 2]>,
    /// Whether it looks at a flag first
    pub is_guarded: bool,
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.what.hash(state);
        for operand in self.operands.iter().flatten() {
            (operand.0, operand.1).hash(state);
            operand.2.shape().hash(state);
            operand.2.offset().hash(state);
        }
        (&self.results, self.is_guarded).hash(state);
    }
}

/// A kernel with its pipelines.
pub struct Compiled {
    pub kernel: Kernel,
    pub pipelines: SmallVec<[Arc<Pipeline>; 1]>,
}

impl Compiled {
    /// About the bytes that it takes with its key.
    fn bytes(&self, key: &Key) -> usize {
        let words = self.kernel.dispatches.iter().map(|dispatch| dispatch.words.len());
        let own = size_of::<Key>() + size_of::<Compiled>();
        own + key.operands.len() * 256 + words.map(|words| 256 + 16 * words).sum::<usize>()
    }
}

/// Kernels of ops that ran.
#[derive(Default)]
pub struct Kernels {
    /// By what they compute
    pub known: FxHashMap<Key, Arc<Compiled>>,
    bytes: usize,
}

impl Kernels {
    /// Keeps a kernel; where there are too many, it alone.
    pub fn keep(&mut self, key: Key, compiled: Arc<Compiled>) {
        let bytes = compiled.bytes(&key);
        if self.bytes + bytes > MOST_KERNELS {
            *self = Kernels::default();
        }
        if self.known.insert(key, compiled).is_none() {
            self.bytes += bytes;
        }
    }
}
