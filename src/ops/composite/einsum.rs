//! Einstein summation: products over named axes.
//!
//! A term is an operand and one label for each of its axes. Axes with repeated labels become
//! diagonals, labels that nobody else needs are summed, and the terms are joined from left to
//! right, each time by one contraction.

use super::movement::diagonal_of;
use super::promoted;
use crate::error;
use crate::ops::attributes::{Contraction, Reduction};
use crate::ops::emit::{Expr, throw};
use crate::shape::{Axes, Dim, Shape};

composite! {
    /// Sum of products over named axes (Einstein's convention).
    ///
    /// `subscripts`: a letter for each axis of each operand, separated by commas, and after `->`
    /// those of the result; letters that the result lacks are summed. Without `->` the result has
    /// the letters that occur once, in alphabetical order. A letter that one operand has twice
    /// means its diagonal. `...` stands for further axes, which broadcast. Operands are joined from
    /// left to right.
    ///
    /// >>> import wengert as wg
    /// >>> wg.einsum("ij,j->i", wg.tensor([[1, 2], [3, 4]]), wg.tensor([1, 1])).tolist()
    /// [3, 7]
    top function einsum(subscripts: Text, operands: Tensors) -> One inline {
        let operands = promoted(&operands, "einsum");
        evaluate(&subscripts, &operands)
    }
    precision(Narrow)
}

/// The name of an axis: a letter, or a place from the right among the axes of `...`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Rest(usize),
    Letter(char),
}

/// An operand with named axes.
struct Term<'e> {
    x: Expr<'e>,
    labels: Vec<Label>,
}

/// What one operand's subscripts say: letters before and after the ellipsis, if there is one.
struct Subscripts {
    before: Vec<char>,
    after: Option<Vec<char>>,
}

fn refuse(what: &str, facts: impl std::fmt::Display) -> ! {
    throw(error::bad_value("einsum", what, facts))
}

fn evaluate<'e>(text: &str, operands: &[Expr<'e>]) -> Expr<'e> {
    let (inputs, output) = parse(text, operands.len());
    let rest = inputs.iter().zip(operands).map(|(s, x)| ellipsis_rank(s, *x, text)).max();
    let rest = rest.unwrap_or(0);
    let output = match output {
        Some(output) => labels(&output, rest),
        None => implicit(&inputs, rest),
    };
    let all: Vec<Vec<Label>> =
        inputs.iter().zip(operands).map(|(s, x)| labels(s, ellipsis_rank(s, *x, text))).collect();
    if let Some(label) = output.iter().find(|label| !all.iter().any(|own| own.contains(label))) {
        refuse("the result has an axis that no operand has", format!("{label} in \"{text}\""));
    }
    if inputs.iter().any(|s| s.after.is_some()) && rest > 0 && !output.contains(&Label::Rest(0)) {
        refuse("the result lacks the ellipsis of the operands", format!("\"{text}\""));
    }
    check_sizes(text, operands, &all);
    let mut terms = terms(operands, all);
    for i in 0..terms.len() {
        let (own, others) = (&terms[i].labels, &terms);
        let lone = |label: &Label| {
            !output.contains(label)
                && others.iter().enumerate().all(|(j, t)| i == j || !t.labels.contains(label))
        };
        let lone: Vec<Label> = own.iter().copied().filter(lone).collect();
        terms[i] = terms[i].summed(&lone);
    }
    let mut terms = terms.into_iter();
    let Some(mut so_far) = terms.next() else { refuse("expected operands", "got none") };
    while let Some(next) = terms.next() {
        let needed = |label: &Label| {
            output.contains(label) || terms.as_slice().iter().any(|t| t.labels.contains(label))
        };
        so_far = so_far.join(&next, needed);
    }
    let order = output.iter().filter_map(|label| so_far.place(*label)).collect();
    so_far.x.permute(order)
}

/// The subscripts of each operand, and those of the result where they are written.
fn parse(text: &str, operands: usize) -> (Vec<Subscripts>, Option<Subscripts>) {
    let bare: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = match bare.split_once("->") {
        Some((inputs, output)) => (inputs, Some(parse_one(output, text))),
        None => (bare.as_str(), None),
    };
    let inputs: Vec<Subscripts> = inputs.split(',').map(|part| parse_one(part, text)).collect();
    if inputs.len() != operands {
        let facts = format!("\"{text}\" names {}, got {operands}", inputs.len());
        refuse("subscripts and operands differ in number", facts);
    }
    if let Some(output) = &output {
        let mut letters: Vec<char> = output.letters().collect();
        letters.sort_unstable();
        if let Some(twice) = letters.windows(2).find(|pair| pair[0] == pair[1]) {
            refuse("the result has a letter twice", format!("{} in \"{text}\"", twice[0]));
        }
    }
    (inputs, output)
}

fn parse_one(part: &str, text: &str) -> Subscripts {
    let letters = |part: &str| -> Vec<char> {
        if let Some(c) = part.chars().find(|c| !c.is_ascii_alphabetic()) {
            refuse("subscripts are letters, commas, ... and ->", format!("got {c} in \"{text}\""));
        }
        part.chars().collect()
    };
    match part.split_once("...") {
        Some((before, after)) => {
            Subscripts { before: letters(before), after: Some(letters(after)) }
        }
        None => Subscripts { before: letters(part), after: None },
    }
}

impl Subscripts {
    fn letters(&self) -> impl Iterator<Item = char> + '_ {
        self.before.iter().chain(self.after.iter().flatten()).copied()
    }
}

/// How many axes of an operand its ellipsis stands for.
fn ellipsis_rank(subscripts: &Subscripts, x: Expr<'_>, text: &str) -> usize {
    let named = subscripts.letters().count();
    match x.rank().checked_sub(named) {
        Some(rest) if rest == 0 || subscripts.after.is_some() => rest,
        _ => {
            let facts = format!("{named} letters in \"{text}\" for shape {}", x.shape());
            throw(error::bad_shape("einsum", "subscripts do not fit an operand", facts))
        }
    }
}

fn labels(subscripts: &Subscripts, rest: usize) -> Vec<Label> {
    let rest = if subscripts.after.is_some() { rest } else { 0 };
    let before = subscripts.before.iter().copied().map(Label::Letter);
    let after = subscripts.after.iter().flatten().copied().map(Label::Letter);
    before.chain((0..rest).rev().map(Label::Rest)).chain(after).collect()
}

/// The axes of `...`, then the letters that occur once.
fn implicit(inputs: &[Subscripts], rest: usize) -> Vec<Label> {
    let mut letters: Vec<char> = inputs.iter().flat_map(Subscripts::letters).collect();
    letters.sort_unstable();
    let once = |c: &char| letters.iter().filter(|other| *other == c).count() == 1;
    let single = letters.iter().copied().filter(once).map(Label::Letter);
    (0..rest).rev().map(Label::Rest).chain(single).collect()
}

/// Refuses a letter with two sizes, and axes of `...` that do not broadcast.
fn check_sizes(text: &str, operands: &[Expr<'_>], all: &[Vec<Label>]) {
    let mut seen: Vec<(Label, Dim)> = Vec::new();
    for (x, own) in operands.iter().zip(all) {
        for (&label, &size) in own.iter().zip(x.shape().dims()) {
            let spread = matches!(label, Label::Rest(_));
            match seen.iter_mut().find(|(other, _)| *other == label) {
                None => seen.push((label, size)),
                Some((_, known)) if spread && known.joint(size).is_some() => {
                    *known = known.joint(size).unwrap_or(size);
                }
                Some((_, known)) if !spread && known.equals(size) => {}
                Some((_, known)) => {
                    let shapes: Vec<String> =
                        operands.iter().map(|x| x.shape().to_string()).collect();
                    let facts = format!("\"{text}\" with shapes {}", shapes.join(" and "));
                    let what = format!("{label} has sizes {known} and {size}");
                    throw(error::bad_shape("einsum", what, facts));
                }
            }
        }
    }
}

/// The operands with diagonals taken, and without the axes of `...` that only repeat.
fn terms<'e>(operands: &[Expr<'e>], all: Vec<Vec<Label>>) -> Vec<Term<'e>> {
    let grows = |label: Label| {
        let sizes = operands.iter().zip(&all).flat_map(|(x, own)| {
            let place = own.iter().position(|other| *other == label);
            place.map(|i| x.size(i))
        });
        sizes.into_iter().any(|n| !n.same(Dim::ONE))
    };
    let term = |(x, own): (&Expr<'e>, &Vec<Label>)| {
        let repeats = |i: usize| {
            matches!(own[i], Label::Rest(_)) && x.size(i).same(Dim::ONE) && grows(own[i])
        };
        let drop: Axes = (0..own.len()).filter(|&i| repeats(i)).collect();
        let kept = (0..own.len()).filter(|i| !drop.contains(i)).map(|i| own[i]).collect();
        Term { x: x.reshape(x.shape().reduce(&drop, false)), labels: kept }.with_diagonals()
    };
    operands.iter().zip(&all).map(term).collect()
}

impl<'e> Term<'e> {
    fn place(&self, label: Label) -> Option<usize> {
        self.labels.iter().position(|own| *own == label)
    }

    /// Axes of one label joined to their diagonal.
    fn with_diagonals(mut self) -> Term<'e> {
        let twice = |labels: &[Label]| {
            let pairs = (0..labels.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
            pairs.into_iter().find(|&(i, j)| labels[i] == labels[j])
        };
        while let Some((i, j)) = twice(&self.labels) {
            let label = self.labels.remove(j);
            self.labels.remove(i);
            self.labels.push(label);
            self.x = diagonal_of(self.x, 0, i as i64, j as i64, "einsum");
        }
        self
    }

    fn summed(&self, labels: &[Label]) -> Term<'e> {
        let axes: Axes = labels.iter().filter_map(|label| self.place(*label)).collect();
        let kept = self.labels.iter().copied().filter(|label| !labels.contains(label)).collect();
        Term { x: self.x.reduce(Reduction::Sum, &axes), labels: kept }
    }

    /// The product with another term, summed over the shared labels that are not `needed` any more.
    fn join(&self, other: &Term<'e>, needed: impl Fn(&Label) -> bool) -> Term<'e> {
        let shared = |label: &Label| other.labels.contains(label);
        let (batch, gone): (Vec<Label>, Vec<Label>) =
            self.labels.iter().filter(|label| shared(label)).partition(|label| needed(label));
        if gone.is_empty() {
            return self.times(other);
        }
        let places = |term: &Term<'_>, labels: &[Label]| -> Axes {
            labels.iter().filter_map(|label| term.place(*label)).collect()
        };
        let spec = Contraction {
            a_batch: places(self, &batch),
            b_batch: places(other, &batch),
            a_contract: places(self, &gone),
            b_contract: places(other, &gone),
        };
        let own = |term: &Term<'_>| -> Vec<Label> {
            let taken = |label: &&Label| !batch.contains(label) && !gone.contains(label);
            term.labels.iter().filter(taken).copied().collect()
        };
        let labels = [batch.clone(), own(self), own(other)].concat();
        Term { x: self.x.contract(other.x, spec), labels }
    }

    /// The product with another term over all labels of both.
    fn times(&self, other: &Term<'e>) -> Term<'e> {
        let new = other.labels.iter().copied().filter(|label| self.place(*label).is_none());
        let labels: Vec<Label> = self.labels.iter().copied().chain(new).collect();
        Term { x: self.aligned(&labels) * other.aligned(&labels), labels }
    }

    /// The operand with its axes in the order of `labels`, of size 1 where it has none.
    fn aligned(&self, labels: &[Label]) -> Expr<'e> {
        let order: Axes = labels.iter().filter_map(|label| self.place(*label)).collect();
        let size = |label: &Label| self.place(*label).map_or(Dim::ONE, |i| self.x.size(i));
        let shape: Shape = labels.iter().map(size).collect();
        self.x.permute(order).reshape(shape)
    }
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Label::Letter(letter) => write!(f, "letter {letter}"),
            Label::Rest(i) => write!(f, "axis {} of the ellipsis", -(*i as isize) - 1),
        }
    }
}
