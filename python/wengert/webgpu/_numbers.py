"""Numbers in programs that sizes decide: arithmetic in float64, then the bits of a dtype."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

__all__ = ["FUNCTIONS", "bits_of", "float_of"]


def _divided(a: float, b: float) -> float:
    if b != 0:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)


def _power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:
        if a != 0:
            return math.nan
        return -math.inf if math.copysign(1, a) < 0 and b % 2 == 1 else math.inf


def _larger(a: float, b: float) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else max(a, b)


def _smaller(a: float, b: float) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else min(a, b)


FUNCTIONS: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divided,
    "pow": _power,
    "max": _larger,
    "min": _smaller,
    "sqrt": lambda a, _: math.sqrt(a) if a >= 0 else math.nan,
    "floor": lambda a, _: float(math.floor(a)) if math.isfinite(a) else a,
    "negative": lambda a, _: -a,
    "abs": lambda a, _: abs(a),
}
"""What numbers are calculated with, by the names in files."""


def float_of(bits: str) -> float:
    """A float64 from its bits in hexadecimal."""
    value: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return value


def bits_of(value: float, dtype: str) -> int:
    """The bits of a number in memory, in the way in which casts of float64 round."""
    if dtype == "float32":
        try:
            return int.from_bytes(struct.pack("<f", value), "little")
        except OverflowError:
            return 0x7F800000 if value > 0 else 0xFF800000
    if dtype == "float16":
        try:
            return int.from_bytes(struct.pack("<e", value), "little")
        except OverflowError:
            return 0x7C00 if value > 0 else 0xFC00
    if dtype == "bfloat16":
        return _bfloat16(value)
    if dtype == "bool":
        return int(value != 0)
    signed, width = not dtype.startswith("u"), int(dtype.lstrip("uint"))
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)
    whole = 0 if math.isnan(value) else high if value >= high else max(low, int(max(value, low)))
    return whole & (1 << width) - 1


def _bfloat16(value: float) -> int:
    """The nearest number of 8 bits, the even one of two, rounded once."""
    if math.isnan(value):
        return 0x7FC0
    sign = 0x8000 if math.copysign(1, value) < 0 else 0
    value = abs(value)
    if math.isinf(value):
        return sign | 0x7F80
    exponent = max(math.frexp(value)[1] - 1, -126) if value else -126
    steps = round(math.ldexp(value, 7 - exponent))  # an even one of two
    return sign | min((exponent + 126 << 7) + steps, 0x7F80)
