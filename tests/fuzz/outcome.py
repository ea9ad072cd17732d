"""What may come of a statement: a result, or a documented exception. Anything else is a finding."""

import re
import traceback
from pathlib import Path

import wengert as wg

from ways import Differs

DOCUMENTED = (wg.Error, TypeError, ValueError, IndexError, OverflowError, MemoryError)
ELSEWHERE = (OSError, EOFError, StopIteration, RecursionError, NotImplementedError)
"""What the system, an iterator, a structure that is too deep and an abstract method raise."""
CONSEQUENCE = re.compile(r"name '[a-z]\w*\d' is not defined")
"""A value that an earlier statement was to make."""


def refuses(error):
    """Whether an exception is a documented refusal, with words."""
    if isinstance(error, NameError) and CONSEQUENCE.search(str(error)):
        return True
    if isinstance(error, AttributeError):
        return not ours(error) or last(error).name in ("__getattr__", "__get__")
    if getattr(error, "code", "") == "internal" or isinstance(error, wg.InternalError):
        return False
    if isinstance(error, ELSEWHERE):
        return True
    if isinstance(error, AssertionError):
        return last(error).filename == wg.testing.__file__
    if type(error) is MemoryError:
        return True
    return isinstance(error, DOCUMENTED) and bool(str(error).strip())


def ours(error):
    """Whether an exception was raised inside the package's Python."""
    frame = last(error)
    return frame is not None and Path(wg.__file__).parent in Path(frame.filename).parents


def last(error):
    """The frame that raised an exception."""
    return next(reversed(traceback.extract_tb(error.__traceback__)), None)


def place(error):
    """The innermost line of the package that an exception passed."""
    home = Path(wg.__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if home in Path(frame.filename).parents:
            return f"{Path(frame.filename).relative_to(home)}:{frame.name}"
    return ""


def kind(error):
    """What a finding is called: findings of one kind are one."""
    words = re.sub(r"\d+", "N", str(error).splitlines()[0] if str(error) else "")[:90]
    if isinstance(error, AttributeError):
        words = f"no {error.name}"
    if isinstance(error, Differs):
        words = words.split(" gives ")[0]
    return f"{type(error).__name__}: {words} {place(error)}".strip()
