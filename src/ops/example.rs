//! The ops of `docs/adding-an-op.md`, which only a build with `--features example-op` contains.

/// The elementwise one.
pub mod elementwise {
    elementwise! {
        /// A smooth sign: x / (1 + |x|).
        Method soft_sign(x) -> Same { Float: x / (S::lit(1.0) + x.abs()) }
        domain [-3.0, 3.0];
        vjp(g) { x: { let d = 1.0 + x.abs(); g / (d * d) } }
    }
}

/// The composite, and the function that the structural one is called by.
pub mod composite {
    use crate::ops::op::Op;

    composite! {
        /// Clips smoothly: bound · tanh(x / bound).
        ///
        /// >>> import wengert as wg
        /// >>> wg.soft_clip(wg.tensor([0.0, 100.0]), 5.0).tolist()
        /// [0.0, 5.0]
        top function soft_clip(x: FloatTensor, bound: Float = 1.0) -> One {
            (x / bound).tanh() * bound
        }

        /// The steps between neighbours along an axis: x[i + 1] − x[i].
        ///
        /// >>> import wengert as wg
        /// >>> wg.increments(wg.tensor([1, 4, 9])).tolist()
        /// [3, 5]
        top function increments(x: NumericTensor, axis: Int = -1) -> One inline {
            x.emit(Op::Increments(x.axis(axis, "increments")))
        }
    }
}
