"""Group C: matrix products."""

from case import normal, row


def product(F, s, a, b):
    return a @ b


def operands(s):
    return normal(s.m, s.k), normal(s.k, s.n, seed=1)


def flops(s):
    return 2 * s.m * s.k * s.n


def size(m, k, n):
    return {"m": m, "k": k, "n": n}


SMALL = size(5, 17, 9)
EVEN = size(6, 6, 6)


def traffic(s):
    return 4 * (s.m * s.k + s.k * s.n + s.m * s.n)


for n in (64, 128, 256, 512, 1024, 2048, 4096):
    row(f"C1_{n}", f"{n}² @ {n}²", product, operands, size(n, n, n), SMALL, flops=flops,
        bytes=traffic, tolerance=5e-3)
row("C2", "32 of 128×64 @ 64×128", product,
    lambda s: (normal(s.batch, s.m, s.k), normal(s.batch, s.k, s.n, seed=1)),
    {"batch": 32, **size(128, 64, 128)}, {"batch": 3, **SMALL},
    flops=lambda s: s.batch * flops(s), bytes=lambda s: s.batch * traffic(s))
row("C3", "1×4096 @ 4096²", product, operands, size(1, 4096, 4096), size(1, 17, 9), flops=flops,
    bytes=traffic, tolerance=5e-3)
row("C4", "8×4096 @ 4096²", product, operands, size(8, 4096, 4096), SMALL, flops=flops,
    bytes=traffic, tolerance=5e-3)
row("C5", "1024² @ 1024².T", lambda F, s, a, b: a @ F.transpose(b, (1, 0)), operands,
    size(1024, 1024, 1024), EVEN, flops=flops, bytes=traffic, tolerance=5e-3)
row("C6", "1024².T @ 1024²", lambda F, s, a, b: F.transpose(a, (1, 0)) @ b, operands,
    size(1024, 1024, 1024), EVEN, flops=flops, bytes=traffic, tolerance=5e-3)
for n in (1024, 2048, 4096):
    row(f"C7_{n}", f"{n}² @ {n}² of bfloat16", product, operands, size(n, n, n), SMALL,
        flops=flops, bytes=lambda s: traffic(s) // 2, tolerance=3e-2, dtype="bfloat16")
