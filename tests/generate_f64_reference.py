"""Writes src/scalar/reference_f64.txt: binary64 arguments of every mathematical function with the
exact value, computed by mpmath to 400 bits.

Each line reads `name argument... nearest rest`: bits in hexadecimal, and the exact value less the
nearest binary64 in thousandths of its last place. Run it as

    python tests/generate_f64_reference.py [samples per function] [file]

after `pip install mpmath`; the numbers are the same every time.
"""

import random
import struct
import sys
from pathlib import Path

import mpmath
from mpmath import mp, mpf

mp.prec = 400
BRANCHES = [0.29, 0.35, 0.4, 0.41421356237309503, 0.5, 0.55, 0.70710678, 1.0, 1.4142135, 2.0, 4.0]


def bits(x: float) -> str:
    return f"{struct.unpack('<Q', struct.pack('<d', x))[0]:016x}"


def of_bits(n: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", n))[0]


def nearest(v: mpf) -> tuple[float, int]:
    """The nearest binary64 and the rest in thousandths of its ULP."""
    exponent = max(int(mpmath.floor(mpmath.log(abs(v), 2))), -1022) - 52 if v else -1074
    scaled = v * mpf(2) ** -exponent
    whole = mpmath.nint(scaled)
    return float(whole * mpf(2) ** exponent), int(mpmath.nint((scaled - whole) * 1000))


def reciprocal(x: mpf) -> mpf:
    return 1 / x


def erfinv(x: mpf) -> mpf:
    """The inverse of erf, by Newton's method on erfc."""
    a = abs(x)
    guess = mpmath.sqrt(-mpmath.log(1 - a * a)) * mpf("0.9")
    if a < 1 / mpf(2) ** 30:
        guess = a * mpmath.sqrt(mp.pi) / 2
    for _ in range(200):
        error = (mpmath.erfc(guess) - (1 - a)) if a > 0.5 else (a - mpmath.erf(guess))
        step = error * mpmath.sqrt(mp.pi) / 2 * mpmath.exp(guess * guess)
        guess += step
        if abs(step) < abs(guess) * mpf(2) ** -200:
            break
    return guess if x > 0 else -guess


def softplus(x: mpf) -> mpf:
    return mpmath.log1p(mpmath.exp(x))


def gelu(x: mpf) -> mpf:
    return x * mpmath.erfc(-x / mpmath.sqrt(mpf(2))) / 2


def gelu_slope(x: mpf) -> mpf:
    density = mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mp.pi)
    return mpmath.erfc(-x / mpmath.sqrt(mpf(2))) / 2 + x * density


def gelu_tanh(x: mpf) -> mpf:
    u = mpmath.sqrt(2 / mp.pi) * (x + mpf(44715) / 1000000 * x**3)
    return x / (1 + mpmath.exp(-2 * u))


def gelu_tanh_slope(x: mpf) -> mpf:
    c = 2 * mpmath.sqrt(2 / mp.pi)
    s = 1 / (1 + mpmath.exp(-c * (x + mpf(44715) / 1000000 * x**3)))
    return s + x * s * (1 - s) * c * (1 + 3 * mpf(44715) / 1000000 * x**2)


def silu_slope(x: mpf) -> mpf:
    s = 1 / (1 + mpmath.exp(-x))
    return s + x * s * (1 - s)


def uniform(low: float, high: float):
    return lambda r: r.uniform(low, high)


def powers(low: float, high: float):
    """Either sign, with logarithms spread evenly between those of two numbers."""
    return lambda r: r.choice((-1, 1)) * 2 ** r.uniform(mpmath.log(low, 2), mpmath.log(high, 2))


def any_bits(r: random.Random) -> float:
    while True:
        x = of_bits(r.getrandbits(64))
        if mpmath.isfinite(x):
            return x


def branches(r: random.Random) -> float:
    center = r.choice(BRANCHES)
    return r.choice((-1, 1)) * center * (1 + r.uniform(-1, 1) * 2.0 ** r.randint(-50, -3))


TINY = powers(5e-324, 1e-3)
UNIT = [uniform(-1, 1), branches, TINY]
WHOLE = [any_bits, branches, uniform(-10, 10), TINY]
LARGE = [uniform(-750, 750), uniform(-40, 40), *UNIT]
ANGLES = [
    uniform(-10, 10),
    powers(1, 1e9),
    lambda r: float(r.randint(1, 6 * 10**8) * mp.pi / 2),
    lambda r: float(r.randint(1, 1000) * mp.pi / 2),
    TINY,
]
ACTIVATION = [uniform(-40, 40), branches, uniform(-3, 3), TINY]
POSITIVE = [lambda r: abs(any_bits(r)), lambda r: abs(branches(r)), uniform(0, 10)]


def near_one(r):
    return 1 + 2.0 ** r.uniform(-52, 3)


def pair(*kinds):
    return lambda r: tuple(kind(r) for kind in kinds)


def close(r: random.Random) -> tuple[float, float]:
    a = r.uniform(-30, 30)
    return a, a + r.uniform(-5, 5)


FUNCTIONS = {
    "acos": (mpmath.acos, UNIT),
    "acosh": (mpmath.acosh, [near_one, lambda r: abs(any_bits(r)), uniform(1, 100)]),
    "asin": (mpmath.asin, UNIT),
    "asinh": (mpmath.asinh, WHOLE),
    "atan": (mpmath.atan, WHOLE),
    "atan2": (mpmath.atan2, [pair(any_bits, any_bits), pair(branches, branches)]),
    "atanh": (mpmath.atanh, UNIT),
    "cbrt": (lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), WHOLE),
    "cos": (mpmath.cos, ANGLES),
    "cosh": (mpmath.cosh, LARGE),
    "erf": (mpmath.erf, [uniform(-6.5, 6.5), *UNIT]),
    "erfc": (mpmath.erfc, [uniform(-6.5, 27.3), *UNIT]),
    "erfinv": (erfinv, [*UNIT, lambda r: 1 - 2.0 ** r.uniform(-53, -1)]),
    "exp": (mpmath.exp, LARGE),
    "exp2": (lambda x: mpf(2) ** x, [uniform(-1080, 1030), *UNIT]),
    "expm1": (mpmath.expm1, LARGE),
    "gelu": (gelu, [uniform(-39, 39), *ACTIVATION]),
    "gelu_slope": (gelu_slope, [uniform(-39, 39), *ACTIVATION]),
    "gelu_tanh": (gelu_tanh, [uniform(-22, 22), *ACTIVATION]),
    "gelu_tanh_slope": (gelu_tanh_slope, [uniform(-22, 22), *ACTIVATION]),
    "hypot": (mpmath.hypot, [pair(any_bits, any_bits), pair(branches, branches)]),
    "log": (mpmath.log, POSITIVE),
    "log10": (mpmath.log10, POSITIVE),
    "log1p": (mpmath.log1p, [lambda r: abs(any_bits(r)), branches, uniform(-1, 10), TINY]),
    "log2": (lambda x: mpmath.log(x, 2), POSITIVE),
    "log_sigmoid": (lambda x: -softplus(-x), [uniform(-40, 40), uniform(-750, 750), *UNIT]),
    "logaddexp": (
        lambda a, b: a + softplus(b - a),
        [pair(uniform(-700, 700), uniform(-700, 700)), close],
    ),
    "pow": (
        lambda x, y: x**y,
        [
            pair(lambda r: abs(any_bits(r)), uniform(-1, 1)),
            pair(uniform(0, 20), uniform(-200, 200)),
            pair(near_one, uniform(-800, 800)),
            pair(uniform(-9, 9), lambda r: float(r.randint(-20, 20))),
        ],
    ),
    "rsqrt": (lambda x: 1 / mpmath.sqrt(x), POSITIVE),
    "sigmoid": (lambda x: 1 / (1 + mpmath.exp(-x)), [uniform(-40, 40), uniform(-750, 750), *UNIT]),
    "silu": (lambda x: x / (1 + mpmath.exp(-x)), [uniform(-755, 755), *ACTIVATION]),
    "silu_slope": (silu_slope, [uniform(-755, 755), *ACTIVATION]),
    "sin": (mpmath.sin, ANGLES),
    "sinh": (mpmath.sinh, LARGE),
    "softplus": (softplus, [uniform(-40, 40), uniform(-750, 750), *UNIT]),
    "tan": (mpmath.tan, ANGLES),
    "tanh": (mpmath.tanh, [uniform(-20, 20), *UNIT]),
}


def lines(name: str, count: int):
    function, kinds = FUNCTIONS[name]
    r = random.Random(name)
    written = 0
    while written < count:
        arguments = kinds[written % len(kinds)](r)
        arguments = arguments if isinstance(arguments, tuple) else (arguments,)
        arguments = tuple(float(x) for x in arguments)
        try:
            value = function(*map(mpf, arguments))
        except (ValueError, ZeroDivisionError, OverflowError, TypeError):
            continue
        # Outside the domain, zero and beyond the range: the tests of special values cover these.
        if isinstance(value, mpmath.mpc) or not mpmath.isfinite(value):
            continue
        if abs(value) >= mpf(2) ** 1024 or abs(value) < mpf(2) ** -1074:
            continue
        result, rest = nearest(value)
        written += 1
        yield f"{name} {' '.join(map(bits, arguments))} {bits(result)} {rest}"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    default = Path(__file__).parent.parent / "src/scalar/reference_f64.txt"
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else default
    text = "\n".join(line for name in FUNCTIONS for line in lines(name, count))
    path.write_text(text + "\n")


if __name__ == "__main__":
    main()
