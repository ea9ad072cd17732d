"""Word vectors by skip-gram with negative sampling: words that stand in like company come close.

    python examples/cookbook/word_vectors.py

The text is made by a grammar, so that everybody knows which words are of a kind. Source: Mikolov
et al.: Distributed representations of words and phrases and their compositionality, 2013.
"""

import wengert as wg
from wengert import Tensor, nn, optim

KINDS = {
    "animal": ["cat", "dog", "horse", "cow", "bird"],
    "verb": ["sees", "hears", "follows", "finds", "leaves"],
    "colour": ["red", "green", "blue", "white", "black"],
    "thing": ["house", "tree", "stone", "boat", "road"],
}
WORDS = [word for words in KINDS.values() for word in words]
EACH = 5


def sentences(n: int) -> Tensor:
    """Word numbers (n, 5): an animal of a colour does something to a thing of a colour."""
    order = wg.tensor([2, 0, 1, 2, 3])
    return order * EACH + wg.random.integers(0, EACH, (n, 5))


def pairs(text: Tensor) -> tuple[Tensor, Tensor]:
    """Each word with each neighbour."""
    left, right = text[:, :-1].flatten(), text[:, 1:].flatten()
    return wg.concat([left, right]), wg.concat([right, left])


def agreement(vectors: Tensor) -> float:
    """The share of words whose nearest other word is of the same kind."""
    unit = vectors / wg.vector_norm(vectors, axis=1, keepdims=True)
    near = unit @ unit.T - 2 * wg.eye(len(WORDS))
    same = near.argmax(axis=1) // EACH == wg.arange(len(WORDS)) // EACH
    return float(same.astype(wg.float32).mean())


def main(
    steps: int = 600, batch: int = 200, negatives: int = 5, width: int = 16
) -> tuple[float, float]:
    """Train; gives the agreement of neighbours before and after."""
    wg.random.seed(0)
    words, company = nn.Embedding(len(WORDS), width), nn.Embedding(len(WORDS), width)
    optimizer = optim.Adam([*words.parameters(), *company.parameters()], lr=1e-2)

    @wg.compile
    def step(word: Tensor, near: Tensor) -> Tensor:
        other = wg.random.integers(0, len(WORDS), (word.shape[0], negatives))
        vector = words(word)
        good = (vector * company(near)).sum(axis=1)
        bad = (vector[:, None] * company(other)).sum(axis=2)
        loss = (nn.softplus(-good) + nn.softplus(bad).sum(axis=1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    before = agreement(words.weight.detach())
    for i in range(steps):
        loss = step(*pairs(sentences(batch // 8)))
        if i % 150 == 0:
            print(f"step {i:4}: loss {loss:.3f}")
    after = agreement(words.weight.detach())
    print(f"nearest words of the same kind: {before:.0%} → {after:.0%}")
    return before, after


if __name__ == "__main__":
    main()
