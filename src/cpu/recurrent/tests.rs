use smallvec::SmallVec;

use crate::array::Array;
use crate::cpu::calls;
use crate::cpu::copy::contiguous;
use crate::cpu::testing::{array, bytes, layouts, noise, values};
use crate::cpu::{Operand, cast, execute};
use crate::dtype::DType;
use crate::graph::Graph;
use crate::graph::testing::run;
use crate::ops::composite;
use crate::ops::declare::{Arguments, Attr};
use crate::ops::emit::{Arg, catch};
use crate::ops::op::{Call, Op, Type};
use crate::ops::structural::whole;
use crate::shape::Dim;
use crate::threads;

/// Steps, rows, inputs and units, on both sides of every bound that chooses a kernel.
const SIZES: [[usize; 4]; 12] = [
    [3, 2, 2, 3],
    [4, 1, 3, 16],
    [2, 1, 1, 70],
    [3, 5, 4, 17],
    [2, 13, 3, 33],
    [1, 50, 2, 20],
    [5, 12, 1, 1],
    [2, 3, 2, 300],
    [0, 3, 2, 4],
    [2, 0, 2, 4],
    [2, 3, 0, 4],
    [1, 97, 2, 9],
];

/// The operands of a call, by the parameters that are tensors, and the attributes behind them.
struct Case {
    name: &'static str,
    operands: Vec<Option<Array>>,
    rest: Vec<Attr>,
}

impl Case {
    fn call(&self) -> (Call, Vec<&Array>) {
        let composite = composite::tables().find(|c| c.name == self.name).unwrap();
        let place = |x: &Option<Array>| if x.is_some() { Attr::Operand } else { Attr::None };
        let attributes: Vec<Attr> =
            self.operands.iter().map(place).chain(self.rest.iter().cloned()).collect();
        let call = Call { composite, attributes: attributes.into() };
        (call, self.operands.iter().flatten().collect())
    }

    /// The results of the kernel.
    fn kernel(&self) -> Vec<Array> {
        let (call, args) = self.call();
        let args: Vec<Operand<'_>> = args.into_iter().map(Operand::Array).collect();
        let found = calls::run(call.composite.kernel.unwrap(), &call, &args).unwrap();
        found.expect("the kernel takes these").into_vec()
    }

    /// Those of the formula, op by op.
    fn formula(&self) -> Vec<Array> {
        let (call, args) = self.call();
        let graph = Graph::new();
        let input = |x: &&Array| Arg::Node(graph.input(Type::new(x.dtype, x.shape().clone())));
        let operands: Vec<Arg> = args.iter().map(input).collect();
        let arguments = Arguments { cx: &graph, attributes: &call.attributes, operands: &operands };
        catch(|| {
            let found = call.composite.formula(&arguments);
            found.iter().for_each(|x| graph.output(x.node()));
        })
        .unwrap();
        let inputs: Vec<Array> = args.into_iter().cloned().collect();
        run(&graph.list(), &inputs, &[]).unwrap()
    }

    fn check(&self) {
        let (found, want) = (self.kernel(), self.formula());
        assert_eq!(found.len(), want.len());
        for (k, (x, y)) in found.iter().zip(&want).enumerate() {
            assert_eq!((x.dtype, x.shape()), (y.dtype, y.shape()), "{} {k}", self.name);
            let is_same = bytes(x) == bytes(y);
            assert!(is_same, "{} {k}: {:?}\n{:?}", self.name, values(x), values(y));
        }
    }
}

/// The layer, and its gradient from what the layer saved, with what derivatives of derivatives add
/// where `deep`.
fn cases(
    name: &'static str,
    dtype: DType,
    [t, n, i, h]: [usize; 4],
    biases: [bool; 2],
    reverse: bool,
    deep: bool,
    ends: bool,
) -> [Case; 2] {
    let (layer, gates): (&'static str, usize) = match name {
        "lstm" => ("lstm", 4),
        "gru" => ("gru", 3),
        _ => ("rnn", 1),
    };
    let part = |sizes: &[usize], seed: u64| noise(dtype, sizes, seed);
    let own: u64 = name.len() as u64;
    let bias = |k: usize| biases[k].then(|| part(&[gates * h], 20 + k as u64));
    let form: &[Attr] = match name {
        "rnn" => &[Attr::Text("tanh".into())],
        "relu" => &[Attr::Text("relu".into())],
        _ => &[],
    };
    let rest: Vec<Attr> = form.iter().cloned().chain([Attr::Bool(reverse)]).collect();
    let lengths: Vec<f64> = (0..n).map(|r| ((r * 7 + h) % (t + 2)) as f64).collect();
    let lengths = ends.then(|| array(DType::I32, &[n], &lengths));
    let state = |seed| Some(part(&[n, h], seed));
    let mut operands = vec![Some(part(&[t, n, i], own)), state(2)];
    if layer == "lstm" {
        operands.push(state(3));
    }
    operands.extend([Some(part(&[gates * h, i], 4)), Some(part(&[gates * h, h], 5))]);
    operands.extend([bias(0), bias(1), lengths.clone()]);
    let forward = Case { name: layer, operands, rest: rest.clone() };
    let found = forward.kernel();
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let more = |sizes: &[usize], seed| deep.then(|| noise(wide, sizes, seed));
    let weight = forward.operands[if layer == "lstm" { 4 } else { 3 }].clone();
    let g = Some(part(&[t, n, h], 7));
    let operands = match layer {
        "lstm" => vec![
            g,
            Some(found[3].clone()),
            Some(found[4].clone()),
            forward.operands[2].clone(),
            weight,
            deep.then(|| part(&[n, h], 8)),
            more(&[n, h], 9),
            more(&[t, n, 4 * h], 10),
            more(&[t, n, h], 11),
            lengths,
        ],
        "gru" => vec![
            g,
            Some(found[2].clone()),
            Some(found[3].clone()),
            Some(part(&[t, n, h], 12)),
            weight,
            deep.then(|| part(&[n, h], 8)),
            more(&[t, n, 3 * h], 10),
            more(&[t, n, h], 11),
            lengths,
        ],
        _ => vec![g, Some(found[0].clone()), weight, deep.then(|| part(&[n, h], 8)), lengths],
    };
    let name = match layer {
        "lstm" => "lstm_gradients",
        "gru" => "gru_gradients",
        _ => "rnn_gradients",
    };
    let backward = Case { name, operands, rest };
    [forward, backward]
}

const NAMES: [&str; 4] = ["lstm", "gru", "rnn", "relu"];

/// The first index of an axis.
fn first(x: &Array, axis: usize) -> Array {
    let mut at = whole(x.shape());
    at[axis].size = Dim::ONE;
    contiguous(&execute(&Op::Slice(at), &[Operand::Array(x)]).unwrap()).unwrap()
}

#[test]
fn kernels_have_the_bits_of_their_formulas() {
    for (k, sizes) in SIZES.into_iter().enumerate() {
        for name in NAMES {
            for dtype in [DType::F32, DType::F64, DType::F16] {
                let biases = [k % 2 == 0, k % 3 == 0];
                let both = cases(name, dtype, sizes, biases, k % 2 == 1, k % 4 < 2, k % 5 < 3);
                both.iter().for_each(Case::check);
            }
        }
    }
}

#[test]
fn operands_of_any_layout_and_dtype_give_the_same() {
    for name in NAMES {
        let [forward, _] = cases(name, DType::F32, [3, 4, 3, 20], [true, true], true, true, true);
        let want: Vec<Vec<u8>> = forward.kernel().iter().map(bytes).collect();
        for i in 0..forward.operands.len() {
            for other in layouts(forward.operands[i].as_ref().unwrap()) {
                let mut operands = forward.operands.clone();
                operands[i] = Some(other);
                let case = Case { operands, rest: forward.rest.clone(), ..forward };
                assert_eq!(case.kernel().iter().map(bytes).collect::<Vec<_>>(), want);
            }
        }
        let mut operands = forward.operands.clone();
        operands[1] = operands[1].as_ref().map(|h| cast(h, DType::F64).unwrap());
        Case { operands, ..forward }.check();
    }
}

#[test]
fn threads_and_rows_beside_a_row_change_no_bit() {
    let before = threads::num_threads();
    for name in NAMES {
        for sizes in [[3, 2, 3, 300], [4, 26, 3, 100], [30, 7, 2, 64], [2, 9, 2, 200]] {
            let both = || cases(name, DType::F32, sizes, [true, true], true, true, false);
            let mut all: Vec<SmallVec<[Vec<u8>; 4]>> = Vec::new();
            for count in [1, 2, 3, 5] {
                threads::set_num_threads(count);
                all.push(both().iter().flat_map(Case::kernel).map(|x| bytes(&x)).collect());
            }
            threads::set_num_threads(before);
            assert!(all.iter().all(|found| *found == all[0]), "{name} {sizes:?}");
            // The first row alone.
            let [forward, _] = both();
            let (whole, states) = (forward.kernel(), if name == "lstm" { 3 } else { 2 });
            let mut operands = forward.operands.clone();
            for x in operands[1..states].iter_mut().flatten() {
                *x = first(x, 0);
            }
            operands[0] = operands[0].as_ref().map(|x| first(x, 1));
            let alone = Case { operands, rest: forward.rest.clone(), ..forward }.kernel();
            assert_eq!(bytes(&alone[0]), bytes(&first(&whole[0], 1)), "{name} {sizes:?}");
        }
    }
}
