"""`WENGERT_CACHE`: compiled shaders on disk, whatever the folder and its files are."""

import json
import os
import stat
import subprocess
import sys
import time

import pytest

import wengert as wg

WORK = """
import json, os, sys, time
import wengert as wg
x = wg.asarray([[1.0, 2.0], [3.0, 4.0]], device="gpu")
y = (wg.exp(x) @ x).sum(axis=0)
bits = y.tolist()
def counts():
    return wg.device_info("gpu")["shader_cache"]
end = time.monotonic() + 20
while time.monotonic() < end:
    now = counts()
    if now.get("read", 0) + now.get("written", 0) + now.get("failed", 0) >= int(sys.argv[1]):
        break
    time.sleep(0.02)
print(json.dumps([bits, counts()]))
"""


def start(folder, shaders, **kwargs):
    env = {**os.environ, "WENGERT_CACHE": str(folder)}
    return subprocess.Popen([sys.executable, "-c", WORK, str(shaders)], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs)


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    bits, counts = json.loads(out)
    return bits, counts


def run(folder, shaders=3, **kwargs):
    return finish(start(folder, shaders, **kwargs))


@pytest.fixture
def folder(gpu, tmp_path):
    if "pipeline_cache" not in wg.device_info(gpu)["features"]:
        pytest.skip("this adapter's driver gives no compiled shaders")
    return tmp_path / "a" / "cache"


def files(folder):
    return sorted(folder.glob("*.shader"))


def test_a_second_process_reads_what_the_first_wrote(folder):
    want, first = run(folder)
    count = first["written"]
    assert count >= 3 and first["read"] == first["failed"] == first["ignored"] == 0
    assert first["place"] == str(folder) and len(files(folder)) == count
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    got, second = run(folder, count)
    assert got == want and second["read"] == count
    assert second["ignored"] == second["failed"] == 0


def flipped(data):
    return data[:60] + bytes([data[60] ^ 4]) + data[61:]


DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "head alone": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "a bit": lambda path: path.write_bytes(flipped(path.read_bytes())),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "huge": lambda path: os.truncate(path, (8 << 20) + 1),
    "nonsense": lambda path: path.write_bytes(os.urandom(1000)),
    "writable by others": lambda path: path.chmod(0o666),
}


def test_damaged_files_are_ignored_and_replaced(folder):
    want, first = run(folder)
    count = first["written"]
    good = {path.name: path.read_bytes() for path in files(folder)}
    for name, damage in DAMAGE.items():
        for path in files(folder):
            damage(path)
        got, counts = run(folder, count)
        assert got == want and counts["read"] == 0 and counts["ignored"] == count, name
        assert counts["written"] == count, name
        assert {path.name for path in files(folder)} == set(good), name
    got, counts = run(folder, count)
    assert got == want and counts["read"] == count
    # The file of another text is none of this one's.
    one, other = files(folder)[:2]
    one.write_bytes(other.read_bytes())
    assert run(folder, count)[1]["ignored"] == 1


def test_pipes_links_and_folders_in_the_place_of_files(folder):
    want, first = run(folder)
    count, places = first["written"], files(folder)
    target = folder / "elsewhere"
    places[0].rename(target)
    places[0].symlink_to(target)
    places[1].unlink()
    os.mkfifo(places[1])
    places[2].unlink()
    places[2].mkdir()
    got, counts = run(folder, count)
    assert got == want and counts["ignored"] == 3 and counts["failed"] == 1


def test_two_processes_share_a_folder(folder):
    both = [start(folder, 3) for _ in range(2)]
    results = [finish(process) for process in both]
    assert results[0][0] == results[1][0] and all(r[1]["failed"] == 0 for r in results)
    count = len(files(folder))
    assert run(folder, count)[1]["read"] == count and not list(folder.glob("*part"))


def test_folders_that_cannot_be_written(folder, tmp_path):
    want, _ = run(folder)
    (tmp_path / "file").write_text("")
    got, counts = run(tmp_path / "file")
    assert got == want and counts["written"] == 0 and counts["failed"] >= 3
    got, counts = run("/proc/nowhere")
    assert got == want and counts["written"] == 0 and counts["failed"] >= 3


def test_a_full_disk(folder):
    import resource

    want, _ = run("off", 0)
    got, counts = run(folder, preexec_fn=lambda: resource.setrlimit(
        resource.RLIMIT_FSIZE, (40, 40)))
    assert got == want and counts["written"] == 0 and counts["failed"] >= 3
    assert not list(folder.iterdir())


def test_the_oldest_files_go_and_other_files_stay(folder):
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    for i in range(20):
        path = folder / f"{i:032x}.shader"
        path.touch()
        os.truncate(path, 5 << 20)
        os.utime(path, (time.time() - 1000 + i,) * 2)
    _, counts = run(folder)
    left = files(folder)
    assert sum(path.stat().st_size for path in left) <= 64 << 20
    names = {path.name for path in left}
    assert f"{0:032x}.shader" not in names and f"{19:032x}.shader" in names
    assert (folder / "notes.txt").read_text() == "mine" and counts["failed"] == 0


def test_off(gpu):
    assert run("off", 0)[1] == {"place": "off"}
    assert wg.device_info(gpu)["shader_cache"]["place"] in ("off", "not opened yet")
