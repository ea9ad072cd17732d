"""Random numbers: counter-based, so that key and shape determine them on every device.

With `key=None` a function draws from the global generator, which `seed` sets; that is state like
any other. `key(seed)` and `split(key, n)` make keys for those who want no state.
"""

from wengert._core.random import *
from wengert._core.random import __all__ as __all__

TYPE_CHECKING = False

if not TYPE_CHECKING:

    def __getattr__(name):
        from wengert._words import unknown

        raise AttributeError(unknown('random', name))
