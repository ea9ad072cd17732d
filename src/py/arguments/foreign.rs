//! Arguments by the names that other libraries give them: those that mean a parameter of ours are
//! taken, for every function alike; for others the error says what to write.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::Signature;
use crate::ops::table;

/// A name elsewhere, and what it may be called here: the first that a function has.
const RENAMED: &[(&str, &[&str])] = &[
    ("dim", &["axis", "axes"]),
    ("dims", &["axes", "axis"]),
    ("axis", &["axes"]),
    ("axes", &["axis"]),
    ("dim1", &["axis1"]),
    ("dim2", &["axis2"]),
    ("start_dim", &["start"]),
    ("end_dim", &["end"]),
    ("keepdim", &["keepdims"]),
    ("keep_dims", &["keepdims"]),
    ("input", &["x", "a"]),
    ("a", &["x"]),
    ("other", &["b"]),
    ("x1", &["a"]),
    ("x2", &["b"]),
    ("tensors", &["arrays"]),
];

/// Names of which PyTorch's functions alone make use, so that their reader expects PyTorch's
/// result.
const OF_TORCH: &[&str] = &["dim", "keepdim"];

/// Names elsewhere that stand for no parameter as they are, and what to write.
const REMEDIES: &[(&str, &str)] = &[
    ("unbiased", "correction=1 where it is True, correction=0 where it is False"),
    ("ddof", "correction="),
    ("a_min", "min="),
    ("a_max", "max="),
    ("clip_value_min", "min="),
    ("clip_value_max", "max="),
    ("loc", "mean="),
    ("scale", "std="),
    ("size", "shape="),
    ("minval", "low="),
    ("maxval", "high="),
    ("stddev", "std="),
    ("steps", "num="),
    ("end", "stop="),
    ("shifts", "shift="),
    ("num_classes", "classes="),
    ("num_groups", "groups="),
    ("normalized_shape", "axis="),
    ("attn_mask", "mask="),
    ("src", "values="),
    ("source", "values="),
    ("start_axis", "start="),
    ("out", "y = f(x): nothing is written to an argument"),
    ("inplace", "x = f(x): nothing is written to an argument"),
    ("rounding_mode", "floor_divide(a, b), or trunc(a / b)"),
    ("alpha", "the factor itself: a + alpha * b"),
    ("dtype", ".astype(dtype) of the result"),
];

impl Signature {
    /// The parameter that an argument of another name means, among arguments of such names.
    #[cold]
    pub(super) fn foreign(&self, name: &str, keywords: &[String]) -> PyResult<usize> {
        let renamed = RENAMED.iter().find(|(foreign, _)| *foreign == name);
        let ours = renamed.map_or(&[][..], |(_, ours)| ours);
        let Some(i) = ours.iter().find_map(|own| self.params.iter().position(|p| p.name == *own))
        else {
            return Err(PyTypeError::new_err(self.unexpected(name, keywords)));
        };
        if let Some(unlike) = self.unlike
            && OF_TORCH.contains(&name)
            && !unlike.unless.is_some_and(|given| keywords.iter().any(|k| k == given))
        {
            let message = format!("{}: argument '{name}' is refused: {}", self.name, unlike.text);
            return Err(PyTypeError::new_err(message));
        }
        Ok(i)
    }

    /// A parameter that has an argument already, and is given another by a name.
    #[cold]
    pub(super) fn twice(&self, i: usize, name: &str) -> String {
        let own = self.params[i].name;
        let mut text = format!("{}: argument '{own}' given twice", self.name);
        if own != name {
            text += &format!(", also as '{name}'");
        }
        text
    }

    /// An argument by a name that means no parameter.
    fn unexpected(&self, name: &str, keywords: &[String]) -> String {
        let takes: Vec<&str> = self.params.iter().map(|p| p.name).collect();
        let mut text = format!(
            "{}: unexpected keyword argument '{name}'; it takes {}",
            self.name,
            takes.join(", ")
        );
        // NumPy's reductions call the method of what is no array of theirs, with `out`.
        if keywords.iter().any(|k| k == "out") {
            let entry = table().iter().find(|entry| entry.name() == self.name);
            let space = entry.map_or("", |entry| entry.namespace());
            let dot = if space.is_empty() { "" } else { "." };
            text += &format!(
                "; NumPy's functions take arrays: use wg.{space}{dot}{}(x), or hand them x.numpy()",
                self.name
            );
        } else if let Some((_, remedy)) = REMEDIES.iter().find(|(foreign, _)| *foreign == name) {
            // A remedy that is an argument is one of this function's.
            let own = remedy.split_once('=').map(|(own, _)| own);
            if own.is_none_or(|own| own.contains(' ') || takes.contains(&own)) {
                text += &format!("; write {remedy}");
            }
        }
        text
    }
}
