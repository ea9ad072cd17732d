"""The machine, as a table of figures describes it: no names of hosts, no paths."""

import importlib.metadata
import os
import platform
import re
import time
from pathlib import Path

SETS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile",
        "asimd", "sve")


def described():
    """The processor, its caches and its memory."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""

    def field(name):
        found = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
        return found[1] if found else ""

    flags = (field("flags") or field("Features")).split()
    return {
        "processor": field("model name") or platform.processor() or platform.machine(),
        "family": field("cpu family"), "model": field("model"),
        "instruction sets": [name for name in SETS if name in flags],
        "cores": os.cpu_count(), "caches": caches(), "memory, GiB": memory(),
        "system": platform.system(), "python": platform.python_version(),
    }


def caches():
    """Bytes of the first core's caches of data, by level."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level, size = ((folder / name).read_text().strip()
                             for name in ("type", "level", "size"))
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1], 1)
        if kind != "Instruction":
            found[f"L{level}"] = int(size.rstrip("KMG")) * unit
    return found


def memory():
    info = Path("/proc/meminfo")
    found = re.search(r"MemTotal:\s*(\d+) kB", info.read_text()) if info.exists() else None
    return round(int(found[1]) / (1 << 20), 1) if found else None


def versions(packages):
    """Versions of what is installed; a package in a folder may have none."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "of a folder"
    return found


def load(seconds=0.1):
    """The share of the machine that others use while nothing of ours runs; None where unknown."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None

    def ticks():
        fields = [int(n) for n in stat.read_text().splitlines()[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    total, idle = ticks()
    time.sleep(seconds)
    later, still_idle = ticks()
    return 1 - (still_idle - idle) / max(later - total, 1)
