use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::table::{CAPACITY, count};
use super::*;
use crate::cpu::testing::{array, bytes};
use crate::engine::backward::{Options, gradients};
use crate::engine::eager;
use crate::engine::tape::{History, Leaf};
use crate::passes::derived;

fn composite(name: &str) -> &'static Composite {
    let mut tables = crate::ops::composite::tables();
    tables.find(|composite| composite.name == name).expect("it is in the table")
}

/// A leaf of some elements, the same each time.
fn leaf(sizes: &[usize]) -> Value {
    let n = sizes.iter().product::<usize>();
    let elements: Vec<f64> = (0..n).map(|i| ((i * 37 + 11) % 64) as f64 / 16.0 - 2.0).collect();
    let array = array(DType::F32, sizes, &elements);
    let ty = Type::new(DType::F32, array.shape().clone());
    Value { array, history: History::Leaf(Arc::new(Leaf::new(ty))) }
}

/// A composite without a gradient of its own, and one with.
const CALLS: [(&str, &[Attr]); 2] = [
    ("lerp", &[Attr::Operand, Attr::Operand, Attr::Operand]),
    ("softmax", &[Attr::Operand, Attr::Int(-1)]),
];

/// The leaf in every place but the second, where a number stands.
fn operands<'a>(x: &'a Value, attributes: &[Attr]) -> SmallVec<[Operand<'a>; 3]> {
    let operand = |i: usize| match i {
        1 => Operand::Scalar(Scalar::Float(1.5).into()),
        _ => Operand::Value(x),
    };
    (0..attributes.iter().map(Attr::width).sum()).map(operand).collect()
}

/// The gradient of a call by its operand, as bytes.
fn gradient(name: &str, attributes: &[Attr], x: &Value) -> Vec<u8> {
    let y = eager::call(composite(name), attributes, &operands(x, attributes), true).unwrap();
    let options = Options { retain_graph: false, create_graph: false };
    let seed = Value::plain(x.array.clone());
    let outputs = [(y[0].clone(), Some(seed))];
    let found = gradients("test", &outputs, std::slice::from_ref(x), options).unwrap();
    bytes(&found[0].as_ref().unwrap().array).to_vec()
}

#[test]
fn ten_thousand_shapes_leave_the_table_small_and_what_is_used_in_it() {
    let (name, attributes) = CALLS[1];
    let of = |x: &Value| of(composite(name), attributes, &operands(x, attributes)).unwrap();
    let used = leaf(&[3, 5]);
    let (first, forgotten) = (of(&used), Arc::downgrade(&of(&leaf(&[2, 7]))));
    let held = of(&leaf(&[4, 4]));
    for n in 1..=10_000 {
        of(&leaf(&[n]));
        if n % 1000 == 0 {
            assert!(Arc::ptr_eq(&of(&used), &first), "forgotten although it is used, after {n}");
        }
    }
    assert!(count() <= CAPACITY, "{} signatures", count());
    assert!(Weak::upgrade(&forgotten).is_none(), "kept although nobody uses it");
    // One that is held outlives its place in the table, and another takes that.
    assert!(!Arc::ptr_eq(&of(&leaf(&[4, 4])), &held));
}

#[test]
fn an_entry_holds_its_signature_whatever_the_table_forgets() {
    for (name, attributes) in CALLS {
        let x = leaf(&[4, 6]);
        let want = gradient(name, attributes, &x);
        let y = eager::call(composite(name), attributes, &operands(&x, attributes), true).unwrap();
        for n in 1..=CAPACITY + 10 {
            of(composite(name), attributes, &operands(&leaf(&[n]), attributes));
        }
        let options = Options { retain_graph: false, create_graph: false };
        let outputs = [(y[0].clone(), Some(Value::plain(x.array.clone())))];
        let found = gradients("test", &outputs, std::slice::from_ref(&x), options).unwrap();
        assert_eq!(bytes(&found[0].as_ref().unwrap().array), want, "{name}");
    }
}

#[test]
fn a_gradient_is_derived_once_and_planned_once() {
    let (name, attributes) = CALLS[0];
    let x = leaf(&[3, 7]);
    let derivations = derived::derivations();
    let first = gradient(name, attributes, &x);
    let once = derived::derivations();
    assert!(once > derivations);
    let signature = of(composite(name), attributes, &operands(&x, attributes)).unwrap();
    let planned = || {
        let mut gradients = signature.gradients.iter();
        gradients.next().unwrap().plan.plan.get().map(|plan| std::ptr::from_ref(plan).addr())
    };
    assert!(planned().is_none(), "planned at the first sweep");
    assert_eq!(gradient(name, attributes, &x), first);
    let plan = planned();
    assert!(plan.is_some(), "not planned at the second sweep");
    for _ in 0..3 {
        assert_eq!(gradient(name, attributes, &x), first);
    }
    assert_eq!((planned(), derived::derivations()), (plan, once));
    assert_eq!(signature.gradients.iter().count(), 1);
}

#[test]
fn a_recorded_sweep_uses_the_derivation_again() {
    let (name, attributes) = CALLS[0];
    let x = leaf(&[5, 2]);
    let options = Options { retain_graph: true, create_graph: true };
    let twice = || {
        let y = eager::call(composite(name), attributes, &operands(&x, attributes), true).unwrap();
        let outputs = [(y[0].clone(), Some(Value::plain(x.array.clone())))];
        let g = gradients("test", &outputs, std::slice::from_ref(&x), options).unwrap();
        let g = g[0].clone().unwrap();
        let outputs = [(g, Some(Value::plain(x.array.clone())))];
        let g = gradients("test", &outputs, std::slice::from_ref(&x), options).unwrap();
        bytes(&g[0].as_ref().unwrap().array).to_vec()
    };
    let first = twice();
    let derivations = derived::derivations();
    assert_eq!(twice(), first);
    assert_eq!(derived::derivations(), derivations);
}

#[test]
fn threads_that_record_and_sweep_at_once_get_the_bits_of_one() {
    let shapes: Vec<[usize; 2]> = (1..20).map(|n| [n, 24 - n]).collect();
    let all = || {
        let shapes = shapes.iter();
        let each = |shape| CALLS.map(|(name, attributes)| gradient(name, attributes, &leaf(shape)));
        shapes.map(|shape| each(shape.as_slice())).collect::<Vec<_>>()
    };
    // Threads go first, so that they derive and plan.
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| [all(), all(), all()])).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let want = all();
    assert!(found.into_iter().all(|found| found == want));
}

#[test]
fn a_float_that_a_formula_looks_at_becomes_part_of_the_signature() {
    // A rate of decay of 0 leaves the product out.
    let sgd = composite("sgd");
    let attributes = [const { Attr::Operand }; 4];
    let (p, g) = (leaf(&[6]), leaf(&[6]));
    let of = |lr: f64, decay: f64| {
        let numbers = [lr, decay].map(|x| Operand::Scalar(Scalar::Float(x).into()));
        let operands = [&[Operand::Value(&p), Operand::Value(&g)], &numbers[..]].concat();
        let mut signature = of(sgd, &attributes, &operands).unwrap();
        for _ in 0..3 {
            signature.run(&operands).unwrap();
        }
        signature
    };
    let one = of(0.5, 0.25);
    assert!(Arc::ptr_eq(&one, &of(0.125, 0.25)), "the rate is an operand");
    assert!(!Arc::ptr_eq(&one, &of(0.5, 0.0)), "the decay decides");
}

/// A child has one thread, which finds the table unlocked whatever others did at the fork.
#[cfg(all(unix, not(miri)))]
#[test]
fn a_forked_child_finds_the_table_unlocked() {
    let (name, attributes) = CALLS[1];
    let of = |n: usize| of(composite(name), attributes, &operands(&leaf(&[n]), attributes));
    of(1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for k in 0..2 {
            let (stop, of) = (&stop, &of);
            scope.spawn(move || {
                let mut sizes = (1..500).cycle();
                while !stop.load(Ordering::Relaxed) {
                    of(sizes.next().map_or(1, |n| n + 500 * k));
                }
            });
        }
        for n in 0..50 {
            // SAFETY: the child looks up signatures only, and leaves without anybody's handlers.
            let status = unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::alarm(60);
                    of(2000 + n);
                    of(3);
                    libc::_exit(0);
                }
                let mut status = -1;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                status
            };
            assert_eq!(status, 0, "the child failed");
        }
        stop.store(true, Ordering::Relaxed);
    });
}
