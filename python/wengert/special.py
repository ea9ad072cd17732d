"""Special functions, by SciPy's names: parameters first, the argument last.

Functions of the whole package that SciPy has here too (`erf`, `expm1`, `logsumexp` …) are here
under the same names. The gamma function and what is made of it, and Bessel functions, are not here
yet.
"""

from wengert._core import cbrt, erf, erfc, erfinv, exp2, expm1, log1p, logsumexp
from wengert._core import sigmoid as expit
from wengert._core.nn import log_softmax, softmax
from wengert._core.special import entr, logit, ndtr, sinc, xlog1py, xlogy

__all__ = [
    "cbrt", "entr", "erf", "erfc", "erfinv", "exp2", "expit", "expm1", "log1p", "log_softmax",
    "logit", "logsumexp", "ndtr", "sinc", "softmax", "xlog1py", "xlogy",
]  # fmt: skip

TYPE_CHECKING = False

if not TYPE_CHECKING:

    def __getattr__(name):
        from wengert._words import unknown

        raise AttributeError(unknown("special", name))
