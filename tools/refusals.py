"""What `wengert.webgpu.export` refuses: each case is tried, and the page says what it answers."""

import re

import wengert as wg
from wengert import webgpu

BEGIN, END = "<!-- refused in exports, by tools/generate.py -->", "<!-- end -->"


def updated(x):
    x += 1
    return x


def accumulated():
    w = wg.ones(3, requires_grad=True)

    def f(x):
        (w * x).sum().backward()
        return x

    return f


def printed(x):
    wg.print("{}", x)
    return x


# What is written, and a function that does it.
CASES = {
    "`x.astype(wg.float64)`": lambda: lambda x: x.astype(wg.float64).exp().astype(wg.float32),
    "`wg.while_loop`": lambda: lambda x: wg.while_loop(lambda x: x.sum() < 9, lambda x: x * 2, x),
    "`wg.print`": lambda: printed,
    "`x += 1` of an argument": lambda: updated,
    "`loss.backward()` without `zero_grad()`": accumulated,
}


def answers():
    """What is refused, and with which words."""
    for written, make in CASES.items():
        try:
            webgpu.export(make(), wg.ones(3))
        except wg.DeviceError as error:
            text = str(error).splitlines()[0].split("what the function does: ")[-1]
            yield written, re.sub(r" \([^()]*\.py:\d+\)", "", text).split("; exp:")[0]
        else:
            raise AssertionError(f"{written} is not refused")


def refused(page):
    """The page with the table of now."""
    rows = [f"| {written} | {text} |" for written, text in answers()]
    table = "\n".join([BEGIN, "| written | what the error says |", "|---|---|", *rows, END])
    head, rest = page.split(BEGIN)
    return head + table + rest.split(END, 1)[1]
