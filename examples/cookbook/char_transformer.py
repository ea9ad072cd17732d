"""A transformer learns to write like this project's README, one character after the other.

    python examples/cookbook/char_transformer.py

Writing keeps the keys and values of what was written (`nn.KVCache`), so that each new character
costs one position, in a compiled step that serves every length.
"""

from pathlib import Path

import wengert as wg
from wengert import Tensor, nn, optim

TEXT = (Path(__file__).parent.parent.parent / "README.md").read_text()
LETTERS = sorted(set(TEXT))


class Block(nn.Module):
    """Attention to what came before, then two linear layers; both are added to the input."""

    def __init__(self, width: int, heads: int) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiHeadAttention(width, heads)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, cache: nn.KVCache | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), is_causal=True, cache=cache)
        added: Tensor = self.layers(self.norm2(x))
        return x + added


class Writer(nn.Module):
    """Logits (n, t, letters) of the next letter, for letters (n, t)."""

    def __init__(
        self, width: int = 64, heads: int = 4, blocks: int = 2, longest: int = 128
    ) -> None:
        self.letters = nn.Embedding(len(LETTERS), width)
        self.places = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(LETTERS))

    def forward(
        self, x: Tensor, start: Tensor | int = 0, caches: list[nn.KVCache] | None = None
    ) -> Tensor:
        places = self.places(start + wg.arange(x.shape[1]))
        x = self.letters(x) + places
        for i, block in enumerate(self.blocks):
            x = block(x, caches[i] if caches else None)
        return self.head(self.norm(x))


def write(model: Writer, beginning: str, n: int = 80, temperature: float = 0.7) -> str:
    """`n` characters that follow `beginning`."""
    caches = [block.attention.new_cache(1, 128) for block in model.blocks]

    @wg.compile
    def step(letters: Tensor, start: Tensor) -> Tensor:
        logits = model(letters, start, caches)[:, -1]
        return wg.random.categorical(logits / temperature)

    text = beginning
    letters = wg.tensor([[LETTERS.index(c) for c in beginning]])
    start = wg.tensor(0)
    with wg.no_grad():
        for _ in range(n):
            drawn = step(letters, start)
            start = start + letters.shape[1]
            letters = drawn[:, None]
            text += LETTERS[drawn.item()]
    return text


def main(steps: int = 1500, batch: int = 16, length: int = 64) -> tuple[float, float]:
    """Train; gives the loss before and after, in nats per character."""
    wg.random.seed(0)
    text = wg.tensor([LETTERS.index(c) for c in TEXT])
    model = Writer()
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    schedule = optim.CosineSchedule(optimizer, steps, warmup_steps=steps // 10)

    @wg.compile
    def step(starts: Tensor) -> Tensor:
        window = text[starts[:, None] + wg.arange(length + 1)]
        logits = model(window[:, :-1])
        loss = nn.cross_entropy(logits.reshape(-1, len(LETTERS)), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
        return loss

    losses = []
    for i in range(steps):
        losses.append(step(wg.random.integers(0, len(TEXT) - length - 1, (batch,))).item())
        schedule.step()
        if i % 300 == 0:
            print(f"step {i:5}: {losses[-1]:.3f} nats per character")
    model.eval()
    print(write(model, "The core is"))
    return losses[0], sum(losses[-10:]) / 10


if __name__ == "__main__":
    main()
