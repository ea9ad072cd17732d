"""What a running capture depends on: the modules called and the optimizers stepped in it."""

from __future__ import annotations

from typing import Any

active: list[Any] | None = None
"""The objects touched so far, while a function is captured."""
