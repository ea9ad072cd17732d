"""Shared by all tests: a deterministic start, and the switch between sampled and full matrices."""

import os
import sys
import zlib

import hypothesis
import numpy as np
import pytest

# Nothing is written to the folders of whoever runs the tests.
os.environ["WENGERT_CACHE"] = "off"

FULL = os.environ.get("WENGERT_TEST_FULL") == "1"

hypothesis.settings.register_profile(
    "wengert",
    max_examples=200 if FULL else 40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("wengert")


# Every elementwise op of eager code waits for others, however small its result.
if os.environ.get("WENGERT_TEST_PENDING") == "1":
    from wengert import _core

    _core._pend_from(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown():
    """What raised last is not kept alive: tests of memory count what is."""
    result = yield
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    return result


@pytest.fixture(autouse=True)
def values_of_its_own(request, monkeypatch):
    """What a test draws from its module's generators is what it draws when it runs alone."""
    module = request.module
    for name, held in list(vars(module).items()) if module else ():
        if isinstance(held, np.random.Generator):
            seed = zlib.crc32(f"{request.node.nodeid} {name}".encode())
            monkeypatch.setattr(module, name, np.random.default_rng(seed))


@pytest.fixture(scope="session")
def full():
    """Whether the whole matrix is wanted instead of a sample of it."""
    return FULL


@pytest.fixture(scope="session")
def gpu():
    """The first GPU."""
    import wengert as wg

    from support import missing, wanted_gpu

    wanted_gpu()
    if not any(device.type == "gpu" for device in wg.devices()):
        missing("no adapter; tools/adapter.sh says how to get one")
    return wg.device("gpu")


@pytest.fixture(scope="module")
def adapter():
    """An adapter in a process of its own, driven by wgpu-py."""
    import adapter as adapters

    from support import missing, wanted_gpu

    wanted_gpu()
    found = adapters.start()
    if isinstance(found, str):
        missing(found)
    yield found
    found.close()
