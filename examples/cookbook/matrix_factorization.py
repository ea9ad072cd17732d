"""Recommendation: guess the ratings that people would give from those that they gave.

    python examples/cookbook/matrix_factorization.py

Each person and each film has a vector and a bias; a rating is their product.
Source: Koren, Bell, Volinsky: Matrix factorization techniques for recommender systems, 2009.
"""

import wengert as wg
from wengert import Tensor, nn, optim


class Ratings(nn.Module):
    """Predicted ratings of films by people, both given as indices."""

    def __init__(self, people: int, films: int, width: int = 4) -> None:
        self.people, self.films = nn.Embedding(people, width), nn.Embedding(films, width)
        self.people_bias, self.films_bias = nn.Embedding(people, 1), nn.Embedding(films, 1)
        with wg.no_grad():
            for table in (self.people, self.films, self.people_bias, self.films_bias):
                table.weight *= 0.1

    def forward(self, person: Tensor, film: Tensor) -> Tensor:
        product = (self.people(person) * self.films(film)).sum(axis=-1)
        return product + (self.people_bias(person) + self.films_bias(film))[..., 0]


def main(
    steps: int = 1500, people: int = 200, films: int = 100, batch: int = 512
) -> tuple[float, float]:
    """Train; gives the root mean squared error of unseen ratings before and after."""
    wg.random.seed(0)
    taste, kind = wg.random.normal((people, 3)), wg.random.normal((films, 3))
    person, film = wg.meshgrid(wg.arange(people), wg.arange(films), indexing="ij")
    order = wg.random.permutation(people * films)
    person, film = person.flatten()[order], film.flatten()[order]
    rating = (taste @ kind.T).flatten()[order] + 0.1 * wg.random.normal((people * films,))
    known = people * films // 2
    model = Ratings(people, films)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)

    @wg.compile
    def step(rows: Tensor) -> Tensor:
        loss = ((model(person[rows], film[rows]) - rating[rows]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def error() -> float:
        with wg.no_grad():
            off = model(person[known:], film[known:]) - rating[known:]
        return float((off**2).mean().sqrt())

    before = error()
    for i in range(steps):
        loss = step(wg.random.integers(0, known, (batch,)))
        if i % 300 == 0:
            print(f"step {i:4}: loss {loss:.3f}, unseen ratings off by {error():.3f}")
    print(f"unseen ratings off by {error():.3f} (noise alone: 0.1)")
    return before, error()


if __name__ == "__main__":
    main()
