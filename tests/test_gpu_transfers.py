"""Transfers to and from a GPU: in pieces through memory of a fixed length, in order with everything
else, whatever breaks them off. Skipped where there is no adapter."""

import subprocess
import sys
import threading

import numpy as np
import pytest

import wengert as wg

# The lengths at which transfers go another way: copied with the commands, one piece, several,
# more than all pieces hold.
SMALL, PIECE, RING = 1 << 18, 1 << 20, 9 << 20
EDGES = [0, 1, 3, 4, 5, *(edge + k for edge in (SMALL, PIECE, 2 * PIECE) for k in (-1, 0, 1)),
         RING + 7]


def noise(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, n, dtype="uint8")


@pytest.mark.parametrize("n", EDGES)
def test_every_length_arrives_and_returns(n, gpu):
    host = noise(n)
    x = wg.asarray(host, device=gpu)
    host_copy, host[...] = host.copy(), 0  # What was given may be written at once.
    np.testing.assert_array_equal(x.numpy(), host_copy)
    np.testing.assert_array_equal((x + 1).numpy(), host_copy + np.uint8(1))


def test_layouts_of_large_arrays(gpu):
    host = wg.asarray(np.arange(3 << 19, dtype="float32").reshape(3, 1 << 9, 1 << 10))
    for view in (host.transpose((2, 0, 1)), host[1:], host[:, ::2, 1::3], host[::-1],
                 wg.broadcast_to(host[0, 0], (700, 1 << 10)), host[1, 5:, 9]):
        np.testing.assert_array_equal(view.to(gpu).numpy(), view.numpy())
        np.testing.assert_array_equal(view.to(gpu).T.numpy(), view.numpy().T)


def test_transfers_keep_their_place_among_ops(gpu):
    """Buffers return to the pool and are filled again while older work reads them."""
    sums, wanted, reads = [], [], []
    for k in range(24):
        n = [SMALL, PIECE + 8, 3 * PIECE, 100][k % 4] // 4
        host = np.full(n, float(k), "f")
        x = wg.asarray(host, device=gpu)
        sums.append((x * 2.0 + x).sum())
        wanted.append(3.0 * k * n)
        if k % 5 == 0:
            reads.append((k, x.numpy()))
        del x
    for got, want in zip(sums, wanted, strict=True):
        assert abs(got.item() - want) <= 1e-5 * want
    for k, read in reads:
        assert (read == k).all()


def test_thousands_of_uploads_wait_for_each_other(gpu):
    host = noise(SMALL - 100)
    kept = []
    for k in range(300):
        host[0] = k % 256
        kept.append(wg.asarray(host, device=gpu)[:5])
        if len(kept) > 8:
            kept.pop(0)
    for k, x in zip(range(292, 300), kept, strict=True):
        assert x.tolist() == [k % 256, *host[1:5].tolist()]


def test_threads_transfer_at_once(gpu):
    failures = []

    def work(seed):
        try:
            # A read that fills its ring ends a submission between uploads of other threads.
            for n in 6 * (PIECE * 3 + seed, 100, SMALL + seed, RING):
                host = noise(n, seed)
                x = wg.asarray(host, device=gpu)
                np.testing.assert_array_equal((x + 1).numpy(), host + np.uint8(1))
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_what_is_counted_and_refused(gpu):
    wg.synchronize(gpu)
    before = wg.memory_stats(gpu)
    host, more = noise(RING), noise(5 * RING)
    x = wg.asarray(host, device=gpu)
    x.numpy()
    held = wg.memory_stats(gpu)["live_bytes"] - before["live_bytes"]
    assert RING <= held <= RING * 9 // 8
    wg.set_memory_limit(wg.memory_stats(gpu)["live_bytes"] + SMALL, gpu)
    try:
        with pytest.raises(MemoryError, match="limit"):
            wg.asarray(more, device=gpu)
        np.testing.assert_array_equal(x.numpy(), host)
    finally:
        wg.set_memory_limit(None, gpu)
    np.testing.assert_array_equal(wg.asarray(more, device=gpu).numpy(), more)


def child(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_transfers_take_no_second_copy(gpu):
    """A software adapter's memory is the host's: the array on the device, or the one that was read,
    is all that a transfer may add, and a little."""
    if wg.device_info(gpu)["kind"] != "software":
        pytest.skip("the memory of other adapters is not seen in the process")
    out = child("""
import numpy as np, wengert as wg
N = 96 << 20
def status(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))
def added(work):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = status("VmRSS")
    result = work()
    wg.synchronize("gpu")
    return status("VmHWM") - before, result
host = wg.asarray(np.ones(N, "uint8"))
host.to("gpu")[:2].tolist()
wg.asarray(np.ones(3 << 20, "uint8")).to("gpu").numpy()
up, x = added(lambda: host.to("gpu"))
down, y = added(lambda: x.to("cpu"))
print((up - N) >> 20, (down - N) >> 20, y[-3:].tolist())
""")  # fmt: skip
    up, down, *tail = out.split(maxsplit=2)
    assert int(up) <= 24 and int(down) <= 24, out
    assert tail == ["[1, 1, 1]\n"]


INTERRUPTED = """
import signal, numpy as np, wengert as wg
class Stop(Exception): pass
def stop(*_): raise Stop
signal.signal(signal.SIGALRM, stop)
host = np.random.default_rng(0).integers(0, 256, 12 << 20, dtype="uint8")
x = wg.asarray(host, device="gpu")
y = wg.asarray(np.arange(300, dtype="f"), device="gpu")
a = wg.asarray(np.ones((128, 128), "f"), device="gpu")
seen = 0
for k in range(8):
    work = (lambda: x.numpy()) if k % 2 else (lambda: wg.asarray(host, device="gpu"))
    for _ in range(3):
        a = wg.tanh(a @ a)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001 * (k + 1))
        try:
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:  # also one that came when the work was done
        seen += 1
    assert (y + 1).tolist()[-1] == 300.0
assert (x.numpy() == host).all()
assert (wg.asarray(host, device="gpu").numpy() == host).all()
print(seen)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs alarms")
def test_transfers_that_are_broken_off_leave_everything(gpu):
    assert int(child(INTERRUPTED)) > 0


LOST = """
import threading, numpy as np, wengert as wg
from wengert import _core
host = np.ones(64 << 20, "uint8")
x = wg.asarray(host, device="gpu")
timer = threading.Timer({delay}, lambda: _core._lose_device("gpu", "somebody pulled it out"))
timer.start()
try:
    while True:
        {work}
except wg.DeviceError as error:
    assert "somebody pulled it out" in str(error), error
try:
    x.numpy()
except wg.DeviceError:
    print((wg.ones(2) + 1).tolist())
"""


@pytest.mark.parametrize("work", ["x.numpy()", "wg.asarray(host, device='gpu')"])
@pytest.mark.parametrize("delay", [0.0, 0.03])
def test_a_device_that_is_lost_during_a_transfer(delay, work, gpu):
    assert child(LOST.format(delay=delay, work=work)) == "[2.0, 2.0]\n"
