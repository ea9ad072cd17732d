//! Kernels that composites may have, and what they have in common.

/// What an executor may compute by a kernel of its own, instead of running the formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// `scaled_dot_product_attention`
    Attention,
    /// Its gradient
    AttentionGradients,
    /// `layer_norm`
    LayerNorm,
    /// Its gradient
    LayerNormGradients,
    /// `lstm`
    Lstm,
    /// Its gradient
    LstmGradients,
    /// `gru`
    Gru,
    /// Its gradient
    GruGradients,
    /// `rnn`
    Rnn,
    /// Its gradient
    RnnGradients,
    /// `softmax`
    Softmax,
    /// `log_softmax`
    LogSoftmax,
    /// `max_pool1d`
    MaxPool1d,
    /// `max_pool2d`
    MaxPool2d,
    /// `max_pool3d`
    MaxPool3d,
}

/// What kernels have in common that are alike to executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Attention
    Attention,
    /// A norm over the last axes
    LayerNorm,
    /// A recurrent layer
    Recurrent(Cell),
    /// `softmax`, or its logarithm
    #[allow(missing_docs)]
    Softmax { is_log: bool },
    /// The maxima of windows over so many axes
    MaxPool(usize),
}

/// The steps of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// `lstm`
    Lstm,
    /// `gru`
    Gru,
    /// `rnn`
    Rnn,
}

/// Which call of a layer a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The layer
    Forward,
    /// Its gradient
    Backward,
}

impl Kernel {
    /// What it computes, in parts that executors tell apart.
    pub const fn family(self) -> (Family, Pass) {
        match self {
            Kernel::Attention => (Family::Attention, Pass::Forward),
            Kernel::AttentionGradients => (Family::Attention, Pass::Backward),
            Kernel::LayerNorm => (Family::LayerNorm, Pass::Forward),
            Kernel::LayerNormGradients => (Family::LayerNorm, Pass::Backward),
            Kernel::Lstm => (Family::Recurrent(Cell::Lstm), Pass::Forward),
            Kernel::LstmGradients => (Family::Recurrent(Cell::Lstm), Pass::Backward),
            Kernel::Gru => (Family::Recurrent(Cell::Gru), Pass::Forward),
            Kernel::GruGradients => (Family::Recurrent(Cell::Gru), Pass::Backward),
            Kernel::Rnn => (Family::Recurrent(Cell::Rnn), Pass::Forward),
            Kernel::RnnGradients => (Family::Recurrent(Cell::Rnn), Pass::Backward),
            Kernel::Softmax => (Family::Softmax { is_log: false }, Pass::Forward),
            Kernel::LogSoftmax => (Family::Softmax { is_log: true }, Pass::Forward),
            Kernel::MaxPool1d => (Family::MaxPool(1), Pass::Forward),
            Kernel::MaxPool2d => (Family::MaxPool(2), Pass::Forward),
            Kernel::MaxPool3d => (Family::MaxPool(3), Pass::Forward),
        }
    }

    /// Whether it gives the bits of the formula: then it may be declined, as planners do for the
    /// sake of fusions. Any other runs in every mode, and states how far it is from the formula.
    pub const fn is_exact(self) -> bool {
        match self.family().0 {
            Family::Attention | Family::Recurrent(_) => false,
            Family::LayerNorm | Family::Softmax { .. } | Family::MaxPool(_) => true,
        }
    }

    /// Whether the gradient of what it computes is one call of an exact kernel, which eager code
    /// rather runs than a plan of the formula.
    pub const fn has_exact_gradient(self) -> bool {
        matches!(self.family(), (Family::LayerNorm, Pass::Forward))
    }
}
