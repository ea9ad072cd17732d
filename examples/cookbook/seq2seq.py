"""A sequence-to-sequence network with attention learns to write numbers backwards.

    python examples/cookbook/seq2seq.py

A GRU reads the digits, another one writes them, looking at what was read through attention.
Source: Bahdanau, Cho, Bengio: Neural machine translation by jointly learning to align and
translate, 2014 (here with scaled dot products).
"""

import wengert as wg
from wengert import Tensor, nn, optim

START, SYMBOLS, LENGTH = 10, 11, 8


class Translator(nn.Module):
    """Reads symbols (n, t); gives logits (n, t, symbols) for what is written."""

    def __init__(self, width: int = 64) -> None:
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.writer = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(2 * width, SYMBOLS)

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        """`written` are the symbols before each one that is to be written."""
        read, state = self.reader(self.embedding(source))
        states, _ = self.writer(self.embedding(written), state)
        seen = nn.scaled_dot_product_attention(states, read, read)
        return self.head(wg.concat([states, seen], axis=2))


def pairs(n: int) -> tuple[Tensor, Tensor]:
    """Random digits (n, LENGTH) and the same backwards."""
    source = wg.random.integers(0, 10, (n, LENGTH))
    return source, source.flip(axis=1)


def behind_start(target: Tensor) -> Tensor:
    """The target moved on by one, with START in front: what the writer sees."""
    start = wg.full((target.shape[0], 1), START, dtype=target.dtype)
    return wg.concat([start, target[:, :-1]], axis=1)


def translate(model: Translator, source: Tensor) -> Tensor:
    """Write greedily, one symbol after the other."""
    written = wg.full((source.shape[0], 1), START, dtype=source.dtype)
    with wg.no_grad():
        for _ in range(LENGTH):
            following = model(source, written)[:, -1:].argmax(axis=2)
            written = wg.concat([written, following], axis=1)
    return written[:, 1:]


def main(steps: int = 800, batch: int = 64) -> tuple[float, float]:
    """Train; gives the share of new numbers written right, before and after."""
    wg.random.seed(0)
    model = Translator()
    optimizer = optim.Adam(model.parameters(), lr=5e-3)

    @wg.compile
    def step(source: Tensor, target: Tensor) -> Tensor:
        logits = model(source, behind_start(target))
        loss = nn.cross_entropy(logits.reshape(-1, SYMBOLS), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def right() -> float:
        source, target = pairs(200)
        correct = (translate(model, source) == target).all(axis=1)
        return float(correct.astype(wg.float32).mean())

    before = right()
    for i in range(steps):
        loss = step(*pairs(batch))
        if i % 100 == 0:
            print(f"step {i:4}: loss {loss:.3f}")
    source, _ = pairs(1)
    print(source.tolist()[0], "→", translate(model, source).tolist()[0])
    after = right()
    print(f"{after:.1%} of new numbers are right in every digit")
    return before, after


if __name__ == "__main__":
    main()
