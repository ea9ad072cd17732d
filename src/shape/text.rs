//! Sizes as text, and back.

use std::fmt;

use super::dim::Dim;
use super::poly::{Atom, Poly, Symbol};
use super::table::{PolyId, atom, find, poly};

/// The most levels of parentheses in a text.
const DEEPEST: usize = 300;

/// The most terms of a product in a text.
const MOST_TERMS: usize = 1024;

/// Whether a declared symbol may have this name: an identifier with no other meaning in a size.
pub fn is_name(text: &str) -> bool {
    let starts = |c: char| c.is_alphabetic() || c == '_';
    text.starts_with(starts)
        && text.chars().all(|c| c.is_alphanumeric() || c == '_')
        && !matches!(text, "min" | "max")
        && number_of(text).is_none()
}

/// The number of a symbol `s0`, `s1`, ….
fn number_of(text: &str) -> Option<u32> {
    let digits = text.strip_prefix('s')?;
    digits.chars().all(|c| c.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some(n) => write!(f, "{n}"),
            // A message must not fail because a size has been freed.
            None => f.write_str(&find(self.id()).map_or("?".into(), |poly| sum(&poly))),
        }
    }
}

/// A polynomial as text. The order of terms and factors does not depend on what was interned first.
fn sum(poly: &Poly) -> String {
    let mut terms: Vec<(usize, String, i64)> = poly
        .terms()
        .iter()
        .map(|(monomial, n)| {
            let alone = monomial.len() == 1 && n.abs() == 1;
            let mut factors: Vec<String> =
                monomial.iter().map(|&id| factor(&atom(id), alone)).collect();
            factors.sort();
            (monomial.len(), factors.join("*"), *n)
        })
        .collect();
    terms.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    // A positive term goes first, because a leading minus would read as a negative number.
    if let Some(first) = terms.iter().position(|(_, _, n)| *n > 0) {
        let term = terms.remove(first);
        terms.insert(0, term);
    }
    let mut text = String::new();
    for (i, (_, product, n)) in terms.iter().enumerate() {
        text.push_str(match (i, *n < 0) {
            (0, true) => "-",
            (0, false) => "",
            (_, true) => " - ",
            (_, false) => " + ",
        });
        match (n.unsigned_abs(), product.as_str()) {
            (n, "") => text.push_str(&n.to_string()),
            (1, product) => text.push_str(product),
            (n, product) => text.push_str(&format!("{n}*{product}")),
        }
    }
    if text.is_empty() { "0".into() } else { text }
}

/// An atom as text; a quotient beside other factors has parentheses.
fn factor(atom: &Atom, alone: bool) -> String {
    let text = |id: PolyId| sum(&poly(id));
    let operand = |id: PolyId| {
        let inner = poly(id);
        let is_plain = inner.bare().is_some() || inner.constant().is_some_and(|n| n >= 0);
        if is_plain { sum(&inner) } else { format!("({})", sum(&inner)) }
    };
    let pair = |name: &str, a: PolyId, b: PolyId| {
        let mut both = [text(a), text(b)];
        both.sort();
        format!("{name}({}, {})", both[0], both[1])
    };
    let enclosed = |text: String| if alone { text } else { format!("({text})") };
    match *atom {
        Atom::Symbol(Symbol::Numbered(i)) => format!("s{i}"),
        Atom::Symbol(Symbol::Named(ref name)) => name.to_string(),
        Atom::Floor(a, b) => enclosed(format!("{}//{}", operand(a), operand(b))),
        Atom::Rem(a, b) => format!("({} % {})", operand(a), operand(b)),
        Atom::Min(a, b) => pair("min", a, b),
        Atom::Max(a, b) => pair("max", a, b),
    }
}

impl Dim {
    /// A size from its text; `None` where the text is not a size.
    pub fn parse(text: &str) -> Option<Dim> {
        let mut reader = Reader { rest: text.trim_start(), depth: 0 };
        let poly = reader.sum()?;
        reader.rest.is_empty().then(|| Dim::of(poly))
    }
}

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl Reader<'_> {
    fn takes(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn sum(&mut self) -> Option<Poly> {
        let mut total = self.product()?;
        loop {
            if self.takes("+") {
                total = total.plus(&self.product()?);
            } else if self.takes("-") {
                total = total.minus(&self.product()?);
            } else {
                return Some(total);
            }
        }
    }

    fn product(&mut self) -> Option<Poly> {
        let mut total = self.factor()?;
        loop {
            if self.takes("*") {
                total = total.times(&self.factor()?);
            } else if self.takes("//") {
                total = total.floor(&self.factor()?);
            } else if self.takes("%") {
                total = total.rem(&self.factor()?);
            } else {
                return Some(total);
            }
            // A product of sums has as many terms as the product of their counts.
            if total.terms().len() > MOST_TERMS {
                return None;
            }
        }
    }

    fn factor(&mut self) -> Option<Poly> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let factor = self.inner();
        self.depth -= 1;
        factor
    }

    fn inner(&mut self) -> Option<Poly> {
        if self.takes("-") {
            return Some(self.factor()?.scaled(-1));
        }
        if self.takes("(") {
            let inner = self.sum()?;
            return self.takes(")").then_some(inner);
        }
        let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest.trim_start();
        if let Ok(n) = word.parse::<i64>() {
            return Some(n.into());
        }
        if matches!(word, "min" | "max") {
            let a = self.takes("(").then(|| self.sum()).flatten()?;
            let b = self.takes(",").then(|| self.sum()).flatten()?;
            return self.takes(")").then(|| a.extreme(&b, word == "max"));
        }
        match number_of(word) {
            Some(i) => Some(Poly::symbol(Symbol::Numbered(i))),
            None => is_name(word).then(|| Poly::symbol(Symbol::Named(word.into()))),
        }
    }
}
