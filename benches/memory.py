"""What plans save, as a table: `python benches/memory.py`, from the root of the repository.

For each known model (those of `tests/test_snapshots.py`, and training steps large enough for
memory to matter): the bytes of all results if each had memory of its own, the peak that its plan
needs, and what is left of it with checkpoints, and with a budget of 70 % (or, where that is not
granted, the least that a search by halves found): predicted, and as the counters saw it.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benches")]

import numpy as np  # noqa: E402
from test_snapshots import MODELS  # noqa: E402

import wengert as wg  # noqa: E402
from wengert import nn, optim  # noqa: E402

BUDGET = 0.7


def array(*shape):
    values = np.random.default_rng(0).standard_normal(shape)
    return wg.asarray(values.astype("float32"))


def training(blocks, head, x, checkpointed):
    """A step of a model of blocks, each of which may be checkpointed."""
    parameters = [p for m in (*blocks, head) for p in m.parameters()]
    optimizer = optim.AdamW(parameters, lr=0.01)

    def step(x):
        optimizer.zero_grad()
        y = x
        for block in blocks:
            y = wg.checkpoint(block)(y) if checkpointed else block(y)
        loss = (head(y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return wg.compile(step), (x,)


class Block(nn.Module):
    def __init__(self, width, heads):
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiHeadAttention(width, heads)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x):
        x = x + self.attention(self.first(x), is_causal=True)
        return x + self.wide(self.second(x))


def deep(checkpointed=False):
    wg.random.seed(0)
    layers = [
        (nn.Linear(128, 128), nn.Tanh(), nn.Dropout(0.5), nn.Linear(128, 128), nn.Tanh())
        for _ in range(8)
    ]
    blocks = [nn.Sequential(*layer) for layer in layers]
    return training(blocks, nn.Linear(128, 16), array(512, 128), checkpointed)


def transformer(checkpointed=False):
    wg.random.seed(0)
    blocks = [Block(64, 4) for _ in range(4)]
    return training(blocks, nn.Linear(64, 128), array(8, 64, 64), checkpointed)


LARGE = {"deep_mlp_step": deep, "transformer_step": transformer}


def bits(tree):
    leaves, _ = wg.pytree.flatten(tree)
    return [x.detach().numpy().tobytes() for x in leaves if isinstance(x, wg.Tensor)]


def run(make, budget=None):
    """The plan; what the counters saw of a call; its bits. None where the budget is refused."""
    f, args = make()
    with wg.config(memory_budget=budget):
        try:
            plan = f.plan(*args)
        except MemoryError:
            return None
        first = bits(f(*args))
        before = wg.memory_stats()["live_bytes"]
        wg.reset_peak_memory()
        second = f(*args)
        used = wg.memory_stats()["peak_bytes"] - before
        return plan, used, first + bits(second)


def within(make, peak):
    """The run with the wanted budget, or with the least that is granted."""
    low, high = int(BUDGET * peak), peak
    found = run(make, low)
    while found is None:
        if high - low <= max(peak // 50, 64):
            return run(make, high)
        middle = (low + high) // 2
        if run(make, middle) is None:
            low = middle
        else:
            high = middle
    return found


def spelled(count):
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def row(name, make):
    plan, used, wanted = run(make)
    peak = plan.peak_bytes
    checkpointed = spelled(run(lambda: make(True))[0].peak_bytes) if name in LARGE else ""
    small, less, found = within(make, peak)
    cells = [
        name,
        spelled(plan.naive_bytes),
        spelled(peak),
        f"{plan.naive_bytes / max(peak, 1):.1f}",
        spelled(used),
        checkpointed,
        f"{spelled(small.peak_bytes)} ({small.peak_bytes / max(peak, 1):.0%})",
        spelled(less),
        str(small.recomputed[0]) if small.recomputed else "0",
        "yes" if found == wanted else "NO",
    ]
    return f"| {' | '.join(cells)} |"


HEAD = [
    "model", "each by itself", "planned peak", "ratio", "observed", "checkpointed", "with a budget",
    "observed", "nodes again", "same bits",
]  # fmt: skip


def main():
    print(f"| {' | '.join(HEAD)} |")
    print(f"|---|{'---:|' * (len(HEAD) - 1)}")
    for name, make in {**MODELS, **LARGE}.items():
        with wg.enable_grad() if "step" in name else wg.no_grad():
            print(row(name, make), flush=True)


if __name__ == "__main__":
    main()
