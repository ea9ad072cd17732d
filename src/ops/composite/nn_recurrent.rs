//! Recurrent layers of `nn`: one direction of one layer over a whole sequence, each a call.
//!
//! The products of all steps with what is fed are one product before the loop, and a scan goes over
//! the steps. The gradient is a scan in the other direction that gives the cotangents of what the
//! gates are made of (the *slopes*); those of weights and inputs are products over all steps and
//! examples behind it. Half floats are calculated in float32 and rounded once. What is saved is 0
//! behind the end of an example.

use smallvec::SmallVec;

use super::nn_linear::product;
use super::nn_norm::wide;
use super::recurrent::*;
use crate::ops::emit::Expr;
use crate::shape::Shape;

composite! {
    /// One layer of long short-term memory over a sequence, in one direction: `y, h, c`.
    ///
    /// `i, f, o = σ(Wᵢ x + Uᵢ h), σ(W_f x + U_f h), σ(Wₒ x + Uₒ h)`, `g = tanh(W_g x + U_g h)`,
    /// then `c ← f c + i g` and `h ← o tanh(c)`.
    ///
    /// `x` (T, N, in), `h` and `c` (N, hidden), `weight_ih` (4·hidden, in) and `weight_hh`
    /// (4·hidden, hidden) with the gates in the order i f g o, biases (4·hidden,), all floating. `y`
    /// (T, N, hidden) has `h` of every step; `h` and `c` are the last ones. `reverse` goes from the
    /// last step to the first. With `lengths` (N,) an example ends there: behind its length `y` is 0,
    /// and its state stays. Raises ShapeError for other sizes.
    ///
    /// Source: Hochreiter, Schmidhuber: Long short-term memory, 1997.
    ///
    /// >>> import wengert as wg
    /// >>> zero, w = wg.zeros((2, 4)), wg.ones((16, 4))
    /// >>> y, h, c = wg.nn.lstm(wg.ones((5, 2, 3)), zero, zero, wg.ones((16, 3)), w)
    /// >>> y.shape, h.shape, c.shape
    /// ((5, 2, 4), (2, 4), (2, 4))
    nn function lstm(
        x: FloatTensor, h: FloatTensor, c: FloatTensor, weight_ih: FloatTensor,
        weight_hh: FloatTensor, bias_ih: MaybeFloatTensor = None,
        bias_hh: MaybeFloatTensor = None; lengths: MaybeIntTensor = None, reverse: Bool = False,
    ) -> Exactly(3) {
        let states = [("h", h), ("c", c)];
        let layer = Layer::new("lstm", x, &states, [weight_ih, weight_hh], [bias_ih, bias_hh], 4);
        let [h, c] = [layer.states[0], layer.states[1]];
        let inputs = layer.inputs(layer.bias());
        let xs = with(inputs, lasting("lstm", x, lengths, 0));
        let found = x.scan([&[h, c], &xs, &[layer.weight_hh]], reverse, &|_, v| {
            let (w, alive) = (v[v.len() - 1], (v.len() > 4).then(|| v[3]));
            let (gates, [h, c]) = lstm_step(v[2] + product(v[0], w, &[1], &[1]), v[1]);
            let (y, h) = (or_zero(alive, h), held(alive, h, v[0]));
            let (gates, cells) = (or_zero(alive, gates[0].concat(&gates, 1)), or_zero(alive, c));
            [h, held(alive, c, v[1]), y, gates, cells].into_iter().collect()
        });
        let dtype = layer.dtype;
        let given = [found[2], found[0], found[1]].map(|x| x.cast(dtype));
        given.into_iter().chain([found[3], found[4]]).collect::<Vec<_>>()
    }
    precision(Narrow)
    kernel(Lstm)
    batch(as_rows)
    vjp(
        g, y, last: g_last, end: g_end, gates: g_gates, cells: g_cells;
        found = lstm_gradients(
            y.cx(), g, gates, cells, c, weight_hh, g_last, g_end, g_gates, g_cells, lengths,
            reverse,
        ),
        states = states("lstm", h, y, lengths, reverse),
    ) {
        x: fed(found[0], weight_ih),
        h: found[1],
        c: found[2],
        weight_ih: weights(found[0], x),
        weight_hh: weights(found[0], *states),
        bias_ih: biases(found[0]),
        bias_hh: biases(found[0]),
        lengths: zero,
    }

    /// The slopes of `lstm`, and the cotangents of its first `h` and `c`, from what it saved and the
    /// cotangents of its results and of that.
    hidden function lstm_gradients(
        g: FloatTensor, gates: FloatTensor, cells: FloatTensor, c: FloatTensor,
        weight_hh: FloatTensor, g_h: MaybeFloatTensor = None, g_c: MaybeFloatTensor = None,
        g_gates: MaybeFloatTensor = None, g_cells: MaybeFloatTensor = None;
        lengths: MaybeIntTensor = None, reverse: Bool = False,
    ) -> Exactly(3) {
        check_saved("lstm_gradients", 4, weight_hh, &[
            ("g", Some(g), 1),
            ("gates", Some(gates), 4),
            ("cells", Some(cells), 1),
            ("c", Some(c), 0),
            ("g_h", g_h, 0),
            ("g_c", g_c, 0),
            ("g_gates", g_gates, 4),
            ("g_cells", g_cells, 1),
        ]);
        let dtype = gates.dtype();
        let c = c.cast(dtype);
        let given = g_gates.is_some();
        let before = states("lstm", c, cells, lengths, reverse);
        let xs: SmallVec<[Expr<'_>; 6]> = [g.cast(dtype), gates, cells, before]
            .into_iter()
            .chain([g_gates, g_cells].into_iter().flatten().map(|x| x.cast(dtype)))
            .chain(lasting("lstm", gates, lengths, 0))
            .collect();
        let (count, more) = (xs.len(), 4 + usize::from(given));
        let carry = [g_h, g_c].map(|x| x.map_or_else(|| c.zeros_like(), |x| x.cast(dtype)));
        let found = g.scan([&carry, &xs, &[weight_hh.cast(dtype)]], !reverse, &|_, v| {
            let (xs, w) = (&v[2..2 + count], v[2 + count]);
            let alive = lengths.map(|_| xs[count - 1]);
            let [i, f, g, o] = [0, 1, 2, 3].map(|k| part(xs[1], k, 4));
            let (dh, t) = (v[0] + xs[0], xs[2].tanh());
            let mut dc = v[1] + dh * o * (1.0 - t * t);
            if g_cells.is_some() {
                dc = dc + xs[more];
            }
            let mut d = [dc * g, dc * xs[3], dc * i, dh * t];
            if given {
                d = [0, 1, 2, 3].map(|k| d[k] + part(xs[4], k, 4));
            }
            let slopes = [
                d[0] * (i * (1.0 - i)),
                d[1] * (f * (1.0 - f)),
                d[2] * (1.0 - g * g),
                d[3] * (o * (1.0 - o)),
            ];
            let slopes = or_zero(alive, slopes[0].concat(&slopes, 1));
            let dh = held(alive, product(slopes, w, &[1], &[0]), v[0]);
            [dh, held(alive, dc * f, v[1]), slopes].into_iter().collect()
        });
        (found[2], found[0], found[1])
    }
    kernel(LstmGradients)
    batch(as_rows)

    /// One layer of gated recurrent units over a sequence, in one direction: `y, h`.
    ///
    /// `r, z = σ(W_r x + U_r h), σ(W_z x + U_z h)`, `n = tanh(W_n x + r (U_n h))`, then
    /// `h ← (1 − z) n + z h`.
    ///
    /// `x` (T, N, in), `h` (N, hidden), `weight_ih` (3·hidden, in) and `weight_hh` (3·hidden,
    /// hidden) with the gates in the order r z n, biases (3·hidden,), all floating; `bias_hh` is
    /// part of `U h`, inside the product with `r`. `y` (T, N, hidden) has `h` of every step; `h` is
    /// the last one. `reverse` and `lengths` are as for `lstm`. Raises ShapeError for other sizes.
    ///
    /// Source: Cho et al.: Learning phrase representations using RNN encoder-decoder, 2014.
    nn function gru(
        x: FloatTensor, h: FloatTensor, weight_ih: FloatTensor, weight_hh: FloatTensor,
        bias_ih: MaybeFloatTensor = None, bias_hh: MaybeFloatTensor = None;
        lengths: MaybeIntTensor = None, reverse: Bool = False,
    ) -> Exactly(2) {
        let layer =
            Layer::new("gru", x, &[("h", h)], [weight_ih, weight_hh], [bias_ih, bias_hh], 3);
        let inputs = layer.inputs(layer.bias_ih);
        let captures: SmallVec<[Expr<'_>; 2]> =
            [layer.weight_hh].into_iter().chain(layer.bias_hh).collect();
        let xs = with(inputs, lasting("gru", x, lengths, 0));
        let first = 1 + xs.len();
        let found = x.scan([&layer.states, &xs, &captures], reverse, &|_, v| {
            let alive = (first > 2).then(|| v[2]);
            let own = product(v[0], v[first], &[1], &[1]);
            let own = v.get(first + 1).map_or(own, |&b| own + b);
            let (gates, m, h) = gru_step(v[1], own, v[0]);
            let (y, h) = (or_zero(alive, h), held(alive, h, v[0]));
            let (gates, m) = (or_zero(alive, gates[0].concat(&gates, 1)), or_zero(alive, m));
            [h, y, gates, m].into_iter().collect()
        });
        let given = [found[1], found[0]].map(|x| x.cast(layer.dtype));
        given.into_iter().chain([found[2], found[3]]).collect::<Vec<_>>()
    }
    precision(Narrow)
    kernel(Gru)
    batch(as_rows)
    vjp(
        g, y, last: g_last, gates: g_gates, candidates: g_candidates;
        states = states("gru", h, y, lengths, reverse),
        found = gru_gradients(
            y.cx(), g, gates, candidates, *states, weight_hh, g_last, g_gates, g_candidates,
            lengths, reverse,
        ),
    ) {
        x: fed(found[0], weight_ih),
        h: found[2],
        weight_ih: weights(found[0], x),
        weight_hh: weights(found[1], *states),
        bias_ih: biases(found[0]),
        bias_hh: biases(found[1]),
        lengths: zero,
    }

    /// The slopes of `gru` by what is fed and by what the state gives, and the cotangent of its
    /// first `h`. `h` has the states before all steps, `m` is `U_n h`.
    hidden function gru_gradients(
        g: FloatTensor, gates: FloatTensor, m: FloatTensor, h: FloatTensor,
        weight_hh: FloatTensor, g_h: MaybeFloatTensor = None, g_gates: MaybeFloatTensor = None,
        g_m: MaybeFloatTensor = None; lengths: MaybeIntTensor = None, reverse: Bool = False,
    ) -> Exactly(3) {
        check_saved("gru_gradients", 3, weight_hh, &[
            ("g", Some(g), 1),
            ("gates", Some(gates), 3),
            ("m", Some(m), 1),
            ("h", Some(h), 1),
            ("g_h", g_h, 0),
            ("g_gates", g_gates, 3),
            ("g_m", g_m, 1),
        ]);
        let dtype = gates.dtype();
        let first = match g_h {
            Some(g) => g.cast(dtype),
            None => g.scalar(0.0).full(dtype, Shape::from_dims(&m.shape().dims()[1..])),
        };
        let given = g_gates.is_some();
        let xs: SmallVec<[Expr<'_>; 6]> = [g.cast(dtype), gates, m, h.cast(dtype)]
            .into_iter()
            .chain([g_gates, g_m].into_iter().flatten().map(|x| x.cast(dtype)))
            .chain(lasting("gru", gates, lengths, 0))
            .collect();
        let (count, more) = (xs.len(), 4 + usize::from(given));
        let found = g.scan([&[first], &xs, &[weight_hh.cast(dtype)]], !reverse, &|_, v| {
            let (xs, w) = (&v[1..1 + count], v[1 + count]);
            let alive = lengths.map(|_| xs[count - 1]);
            let [r, z, n] = [0, 1, 2].map(|k| part(xs[1], k, 3));
            let (dh, m, h) = (v[0] + xs[0], xs[2], xs[3]);
            let (mut dz, mut dn) = (dh * (h - n), dh * (1.0 - z));
            if given {
                (dz, dn) = (dz + part(xs[4], 1, 3), dn + part(xs[4], 2, 3));
            }
            let dn = dn * (1.0 - n * n);
            let (mut dr, mut dm) = (dn * m, dn * r);
            if given {
                dr = dr + part(xs[4], 0, 3);
            }
            if g_m.is_some() {
                dm = dm + xs[more];
            }
            let (dr, dz) = (dr * (r * (1.0 - r)), dz * (z * (1.0 - z)));
            let own = or_zero(alive, dr.concat(&[dr, dz, dm], 1));
            let dh = held(alive, dh * z + product(own, w, &[1], &[0]), v[0]);
            [dh, or_zero(alive, dr.concat(&[dr, dz, dn], 1)), own].into_iter().collect()
        });
        (found[1], found[2], found[0])
    }
    kernel(GruGradients)
    batch(as_rows)

    /// One layer of a simple recurrent net over a sequence, in one direction: `y, h`.
    ///
    /// `h ← tanh(W x + U h)` or, with `nonlinearity="relu"`, its positive part. `x` (T, N, in), `h`
    /// (N, hidden), `weight_ih` (hidden, in), `weight_hh` (hidden, hidden), biases (hidden,), all
    /// floating. `y` (T, N, hidden) has `h` of every step; `h` is the last one. `reverse` and
    /// `lengths` are as for `lstm`. Raises ShapeError for other sizes.
    ///
    /// Source: Elman: Finding structure in time, 1990.
    nn function rnn(
        x: FloatTensor, h: FloatTensor, weight_ih: FloatTensor, weight_hh: FloatTensor,
        bias_ih: MaybeFloatTensor = None, bias_hh: MaybeFloatTensor = None;
        lengths: MaybeIntTensor = None, nonlinearity: Nonlinearity = "tanh",
        reverse: Bool = False,
    ) -> Exactly(2) {
        let layer =
            Layer::new("rnn", x, &[("h", h)], [weight_ih, weight_hh], [bias_ih, bias_hh], 1);
        let inputs = layer.inputs(layer.bias());
        let captures = [layer.weight_hh];
        let xs = with(inputs, lasting("rnn", x, lengths, 0));
        let found = x.scan([&layer.states, &xs, &captures], reverse, &|_, v| {
            let (w, alive) = (v[v.len() - 1], (v.len() > 3).then(|| v[2]));
            let h = rnn_step(v[1] + product(v[0], w, &[1], &[1]), &nonlinearity);
            [held(alive, h, v[0]), or_zero(alive, h)].into_iter().collect()
        });
        (found[1].cast(layer.dtype), found[0].cast(layer.dtype))
    }
    precision(Narrow)
    kernel(Rnn)
    batch(as_rows)
    vjp(
        g, y, last: g_last;
        found = rnn_gradients(
            y.cx(), g, y, weight_hh, g_last, lengths, nonlinearity.clone(), reverse,
        ),
        states = states("rnn", h, y, lengths, reverse),
    ) {
        x: fed(found[0], weight_ih),
        h: found[1],
        weight_ih: weights(found[0], x),
        weight_hh: weights(found[0], *states),
        bias_ih: biases(found[0]),
        bias_hh: biases(found[0]),
        lengths: zero,
    }

    /// The slopes of `rnn`, and the cotangent of its first `h`.
    hidden function rnn_gradients(
        g: FloatTensor, y: FloatTensor, weight_hh: FloatTensor, g_h: MaybeFloatTensor = None;
        lengths: MaybeIntTensor = None, nonlinearity: Nonlinearity = "tanh",
        reverse: Bool = False,
    ) -> Exactly(2) {
        let parts = [("g", Some(g), 1), ("y", Some(y), 1), ("g_h", g_h, 0)];
        check_saved("rnn_gradients", 1, weight_hh, &parts);
        let y = wide(y);
        let dtype = y.dtype();
        let first = match g_h {
            Some(g) => g.cast(dtype),
            None => g.scalar(0.0).full(dtype, Shape::from_dims(&y.shape().dims()[1..])),
        };
        let xs: SmallVec<[Expr<'_>; 3]> =
            [g.cast(dtype), y].into_iter().chain(lasting("rnn", y, lengths, 0)).collect();
        let found = g.scan([&[first], &xs, &[weight_hh.cast(dtype)]], !reverse, &|_, v| {
            let (dh, y, w) = (v[0] + v[1], v[2], v[v.len() - 1]);
            let alive = lengths.map(|_| v[3]);
            let slopes = match nonlinearity == "relu" {
                true => y.greater(y.scalar(0.0)).select(dh, dh.scalar(0.0)),
                false => dh * (1.0 - y * y),
            };
            let slopes = or_zero(alive, slopes);
            [held(alive, product(slopes, w, &[1], &[0]), v[0]), slopes].into_iter().collect()
        });
        (found[1], found[0])
    }
    kernel(RnnGradients)
    batch(as_rows)

    /// One step of `lstm`: the next `h` and `c`.
    ///
    /// `x` (…, in), `h` and `c` (…, hidden); weights and biases are those of `lstm`. Raises
    /// ShapeError for other sizes.
    nn function lstm_cell(
        x: FloatTensor, h: FloatTensor, c: FloatTensor, weight_ih: FloatTensor,
        weight_hh: FloatTensor, bias_ih: MaybeFloatTensor = None,
        bias_hh: MaybeFloatTensor = None,
    ) -> Exactly(2) {
        let (weights, biases) = ([weight_ih, weight_hh], [bias_ih, bias_hh]);
        let layer = Layer::cell("lstm_cell", x, &[("h", h), ("c", c)], weights, biases, 4);
        let (_, found) = lstm_step(layer.inputs(layer.bias()) + layer.own(), layer.states[1]);
        let [h, c] = found.map(|x| x.cast(layer.dtype));
        (h, c)
    }
    precision(Narrow)

    /// One step of `gru`: the next `h`.
    ///
    /// `x` (…, in), `h` (…, hidden); weights and biases are those of `gru`. Raises ShapeError for
    /// other sizes.
    nn function gru_cell(
        x: FloatTensor, h: FloatTensor, weight_ih: FloatTensor, weight_hh: FloatTensor,
        bias_ih: MaybeFloatTensor = None, bias_hh: MaybeFloatTensor = None,
    ) -> One {
        let (weights, biases) = ([weight_ih, weight_hh], [bias_ih, bias_hh]);
        let layer = Layer::cell("gru_cell", x, &[("h", h)], weights, biases, 3);
        let own = layer.bias_hh.map_or_else(|| layer.own(), |b| layer.own() + b);
        gru_step(layer.inputs(layer.bias_ih), own, layer.states[0]).2.cast(layer.dtype)
    }
    precision(Narrow)

    /// One step of `rnn`: the next `h`.
    ///
    /// `x` (…, in), `h` (…, hidden); weights and biases are those of `rnn`. Raises ShapeError for
    /// other sizes.
    nn function rnn_cell(
        x: FloatTensor, h: FloatTensor, weight_ih: FloatTensor, weight_hh: FloatTensor,
        bias_ih: MaybeFloatTensor = None, bias_hh: MaybeFloatTensor = None;
        nonlinearity: Nonlinearity = "tanh",
    ) -> One {
        let (weights, biases) = ([weight_ih, weight_hh], [bias_ih, bias_hh]);
        let layer = Layer::cell("rnn_cell", x, &[("h", h)], weights, biases, 1);
        rnn_step(layer.inputs(layer.bias()) + layer.own(), &nonlinearity).cast(layer.dtype)
    }
    precision(Narrow)
}
