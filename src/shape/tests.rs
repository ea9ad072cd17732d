//! Sizes as expressions: the normal form, questions, and the constraints that they record.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

#[test]
fn broadcasting_names_the_axis_that_refuses() {
    let error = Shape::of(&[2, 3]).broadcast(&Shape::of(&[4]), "add").unwrap_err();
    let want = "add: shapes (2, 3) and (4,) do not broadcast: axis -1 has sizes 3 and 4";
    assert_eq!(error.to_string(), want);
    let both = Shape::of(&[5, 1, 3]).broadcast(&Shape::of(&[4, 1]), "add").unwrap();
    assert_eq!(both, Shape::of(&[5, 4, 3]));
    assert_eq!(Shape::of(&[0]).broadcast(&Shape::of(&[1]), "add").unwrap(), Shape::of(&[0]));
}

#[test]
fn axes_count_from_either_end_and_only_once() {
    let shape = Shape::of(&[2, 3, 4]);
    assert_eq!(shape.axes(Some(&[-1, 0]), "sum").unwrap().as_slice(), [2, 0]);
    assert_eq!(shape.axes(Some(&[0, -3]), "sum").unwrap_err().code(), "repeated_axis");
    assert_eq!(shape.axis(3, "sum").unwrap_err().code(), "bad_axis");
}

#[test]
fn repeated_axes_are_what_a_sum_must_undo() {
    let axes = Shape::of(&[1, 3]).repeated_axes(&Shape::of(&[2, 5, 3]));
    assert_eq!(axes.as_slice(), [0, 1]);
}

/// A stream of small numbers.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

/// An expression over `s0` and `s1`, and the function that it stands for.
type Case = (Dim, Box<dyn Fn(usize, usize) -> usize>);

fn expression(choices: &mut Choices, depth: usize) -> Case {
    if depth == 0 || choices.below(5) == 0 {
        return match choices.below(3) {
            0 => (Dim::numbered(0), Box::new(|a, _| a)),
            1 => (Dim::numbered(1), Box::new(|_, b| b)),
            _ => {
                let n = choices.below(7);
                (Dim::new(n), Box::new(move |_, _| n))
            }
        };
    }
    let ((x, f), (y, g)) = (expression(choices, depth - 1), expression(choices, depth - 1));
    let n = 1 + choices.below(4);
    match choices.below(7) {
        0 | 1 => (x + y, Box::new(move |a, b| f(a, b) + g(a, b))),
        2 => (x * y, Box::new(move |a, b| f(a, b) * g(a, b))),
        3 => (x / Dim::new(n), Box::new(move |a, b| f(a, b) / n)),
        4 => (x % Dim::new(n), Box::new(move |a, b| f(a, b) % n)),
        5 => (x.min(y), Box::new(move |a, b| f(a, b).min(g(a, b)))),
        _ => (x.max(y), Box::new(move |a, b| f(a, b).max(g(a, b)))),
    }
}

#[test]
fn expressions_have_the_value_of_what_they_were_made_from() {
    let mut choices = Choices(7);
    for _ in 0..3000 {
        let (dim, f) = expression(&mut choices, 4);
        let text = dim.to_string();
        assert_eq!(Dim::parse(&text).map(Dim::key), Some(dim.key()), "{text}");
        for _ in 0..4 {
            let (a, b) = (choices.below(20), choices.below(20));
            let sizes =
                Bindings::of([(Dim::numbered(0), Dim::new(a)), (Dim::numbered(1), Dim::new(b))]);
            assert_eq!(sizes.size(dim), Some(f(a, b)), "{text} of {a} and {b}");
        }
    }
}

#[test]
fn expressions_that_are_equal_have_one_code() {
    let equal = |a: &str, b: &str| {
        let (x, y) = (Dim::parse(a).unwrap(), Dim::parse(b).unwrap());
        assert_eq!(x.key(), y.key(), "{a} is {x}, {b} is {y}");
    };
    equal("(s0 + 1) - 1", "s0");
    equal("2*s0", "s0 + s0");
    equal("(s0*4)//4", "s0");
    equal("(s0*4 + 3)//4", "s0");
    equal("(s0*s1*6)//(s1*2)", "3*s0");
    equal("(s0 + 1)*(s1 + 2)//(s0 + 1)", "s1 + 2");
    equal("(4*s0 + 5) % 4", "1");
    equal("(s0//2)//3", "s0//6");
    equal("(s0//2 + 1)//2", "(s0 + 2)//4");
    equal("(2*s0 + 1)//4", "s0//2");
    equal("(s0 - 3)//2 + 1", "(s0 - 1)//2");
    equal("min(s0, s0 + 1)", "s0");
    equal("max(s1, s0)", "max(s0, s1)");
    equal("s1*s0", "s0*s1");
    assert_eq!(Dim::parse("2*batch + 1").unwrap().to_string(), "2*batch + 1");
    assert_eq!(Dim::parse("3*(s0//2)").unwrap().to_string(), "3*(s0//2)");
    for text in ["", "s0 +", "s0 s1", "(s0", "min(s0)", "2x", "s0 / 2", "-"] {
        assert!(Dim::parse(text).is_none(), "{text}");
    }
    assert!(is_name("batch") && is_name("s") && is_name("_x1"));
    assert!(!is_name("s0") && !is_name("min") && !is_name("1x") && !is_name(""));
}

fn texts(scope: &Scope) -> Vec<String> {
    scope.constraints().iter().map(Constraint::to_string).collect()
}

#[test]
fn a_question_is_answered_for_the_size_at_hand_and_remembered() {
    let scope = Scope::new();
    let (x, y) = (scope.symbol(Some(5)), scope.symbol(Some(5)));
    scope.run(|| {
        assert!(x.equals(x) && !x.equals(x + Dim::ONE) && x.is_below(x + Dim::ONE));
        assert!(texts(&scope).is_empty(), "what always holds is not asked");
        assert!(x != y, "`==` compares forms and asks nothing");
        assert!(texts(&scope).is_empty());
        assert!(x.equals(y) && !x.equals(4));
        assert!(Dim::new(3).is_below(x) && Dim::new(2).is_at_most(x));
        assert!(x.same(y), "equal by a constraint");
        assert_eq!((x + y).value(), 10);
        assert_eq!(x - Dim::new(2) + Dim::new(2), x);
    });
    assert_eq!(texts(&scope), ["s0 == s1", "s0 != 4", "3 < s0", "s0 + s1 == 10"]);
    let sizes = |a: usize, b: usize| Bindings::of([(x, a.into()), (y, b.into())]);
    assert_eq!(sizes(5, 5).broken(&scope.constraints()), None);
    assert_eq!(sizes(5, 6).broken(&scope.constraints()), Some(0));
    assert_eq!(sizes(4, 4).broken(&scope.constraints()), Some(1));
    assert_eq!(sizes(6, 6).broken(&scope.constraints()), Some(3));
    assert!(!x.same(y), "outside of the scope they are two symbols");
}

#[test]
fn broadcasting_asks_only_what_it_must() {
    let scope = Scope::new();
    let (x, one) = (scope.symbol(Some(5)), scope.symbol(Some(1)));
    scope.run(|| {
        let shape = |dims: &[Dim]| Shape::from_dims(dims);
        let known = |n: usize| Dim::new(n);
        let wide = shape(&[x, known(3)]).broadcast(&shape(&[known(1), known(3)]), "add").unwrap();
        assert!(wide.same(&shape(&[x, known(3)])) && texts(&scope).is_empty());
        assert_eq!(shape(&[known(1)]).repeated_axes(&shape(&[x])).as_slice(), [0]);
        assert!(texts(&scope).is_empty());
        let grown = shape(&[one]).broadcast(&shape(&[x]), "add").unwrap();
        assert!(grown.same(&shape(&[x])));
        assert_eq!(texts(&scope), ["s1 == 1"]);
        assert_eq!(shape(&[one]).repeated_axes(&grown).as_slice(), [0]);
        assert!(shape(&[x]).broadcast(&shape(&[known(4)]), "add").is_err());
        let fixed = shape(&[x]).broadcast(&shape(&[known(5)]), "add").unwrap();
        assert_eq!(fixed[0].known(), Some(5));
    });
    assert_eq!(texts(&scope), ["s1 == 1", "s0 != 4", "s0 == 5"]);
}

#[test]
fn a_symbol_without_a_size_takes_the_one_it_is_compared_with() {
    let scope = Scope::new();
    let (x, y) = (scope.symbol(None), scope.declare("batch", None));
    scope.run(|| {
        assert!(!x.equals(1) && Dim::new(2).is_at_most(x) && x.equals(y));
        assert_eq!(hint(x), None);
        assert!((x + Dim::ONE).equals(8));
        assert_eq!(hint(x), Some(7));
    });
    let z = scope.declare("half", None);
    scope.suppose(Dim::new(2) * z + Dim::ONE, 3);
    assert_eq!(scope.run(|| hint(z)), Some(1));
    assert!(scope.is_declared(y) && !scope.is_declared(x));
    assert_eq!(texts(&scope), ["s0 != 1", "2 <= s0", "s0 == batch", "s0 + 1 == 8"]);
}

#[test]
fn scopes_nest_and_constraints_go_to_the_owner() {
    let outer = Scope::new();
    let x = outer.symbol(Some(4));
    outer.run(|| {
        let inner = Scope::new();
        let y = inner.symbol(Some(4));
        assert_eq!(y.to_string(), "s1");
        inner.run(|| assert!(x.equals(4) && y.equals(4)));
        assert_eq!(texts(&inner), ["s1 == 4"]);
    });
    assert_eq!(texts(&outer), ["s0 == 4"]);
    assert!(!x.equals(4), "outside it is a symbol");
}

#[test]
fn shapes_bind_the_symbols_that_stand_alone() {
    let (a, b) = (Dim::numbered(0), Dim::named("time"));
    let pattern = Shape::from_dims(&[a, b, Dim::new(3), a + b]);
    let mut sizes = Bindings::default();
    assert_eq!(sizes.fit(&pattern, &Shape::of(&[2, 5, 3, 7])), Ok(()));
    assert!(sizes.fits(&pattern, &Shape::of(&[2, 5, 3, 7])));
    assert!(!sizes.fits(&pattern, &Shape::of(&[2, 5, 3, 8])));
    assert_eq!(sizes.fit(&pattern, &Shape::of(&[2, 5, 4, 7])), Err(2));
    assert_eq!(sizes.fit(&pattern, &Shape::of(&[3, 5, 3, 7])), Err(0));
    let half = Bindings::of([(a, Dim::new(2) * b)]);
    assert_eq!((a + b).to_string(), "s0 + time");
    assert_eq!(half.resolve(a + b).to_string(), "3*time");
}

/// The result of a formula, or the error it unwinds with.
fn catch<T>(f: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|_| error::thrown().unwrap())
}

/// A different expression for each number, over a symbol that only this test uses.
fn own(n: usize) -> Dim {
    let half = Dim::named("of_a_test_alone") / Dim::new(n + 2);
    half * half + Dim::new(n)
}

#[test]
fn expressions_go_with_the_last_that_keeps_them() {
    let (keeper, other, keeper_of_test) = (Keeper::new(), Keeper::new(), Keeper::new());
    let made = {
        let _keeping = keeper.enter();
        own(1)
    };
    other.keep(made);
    drop(keeper);
    assert_eq!(made.to_string(), "(of_a_test_alone//3)*(of_a_test_alone//3) + 1");
    {
        let _keeping = other.enter();
        assert_eq!(
            own(1).key(),
            made.key(),
            "equal expressions have one code as long as they are there"
        );
    }
    let object = Retained::new(made);
    drop(other);
    assert_eq!(made.symbols().len(), 1);
    drop(object);
    let stale = catch(|| made + Dim::ONE).unwrap_err();
    assert_eq!(stale.code(), "internal");
    assert_eq!(made.to_string(), "?", "a message does not fail");
    let _keeping = keeper_of_test.enter();
    assert_ne!(own(1).key(), made.key(), "a code is given once");
    let uses: [fn(Dim) -> bool; 6] = [
        |dim| dim.equals(3),
        |dim| dim.same(Dim::new(3)),
        |dim| dim.is_symbol(),
        |dim| Bindings::default().resolve(dim) == dim,
        |dim| dim.is_below(Dim::named("of_a_test_alone")),
        |dim| Dim::new(2).min(dim) == dim,
    ];
    for (i, f) in uses.into_iter().enumerate() {
        let found = Scope::new().run(|| catch(|| f(made)));
        assert!(!matches!(found, Ok(true)), "use {i} reads what is not there");
    }
}

#[test]
fn scopes_inside_of_one_share_what_it_keeps() {
    let outer = Scope::owner();
    let made = outer.run(|| Scope::new().run(|| own(7)));
    assert_eq!(made.symbols().len(), 1, "it left the inner scope for the outer");
    let inner = outer.run(Scope::new);
    drop(outer);
    assert_eq!(made.symbols().len(), 1);
    drop(inner);
    assert!(catch(|| made.symbols()).is_err());
}
