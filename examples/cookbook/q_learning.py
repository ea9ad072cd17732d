"""Q-learning: a network learns the way through a maze from tries.

    python examples/cookbook/q_learning.py

With a memory of past moves and a slowly following target network. Source: Mnih et al.: Human-level
control through deep reinforcement learning, 2015.
"""

import copy
from typing import Any

import numpy as np

import wengert as wg
from wengert import nn, optim

Array = np.ndarray[Any, Any]
Place = tuple[int, int]                       # row and column

MAZE = [
    "S..#....",
    ".#.#.##.",
    ".#...#..",
    ".####.#.",
    "......#G",
]
MOVES = [(0, 1), (1, 0), (0, -1), (-1, 0)]
ROWS, COLUMNS = len(MAZE), len(MAZE[0])
GOAL = (4, 7)


def move(place: Place, action: int) -> tuple[Place, float, bool]:
    """The next place (walls and borders stop), the reward, and whether the way ends there."""
    row, column = place[0] + MOVES[action][0], place[1] + MOVES[action][1]
    inside = 0 <= row < ROWS and 0 <= column < COLUMNS
    after = (row, column) if inside and MAZE[row][column] != "#" else place
    return after, float(after == GOAL), after == GOAL


def number(place: Place) -> int:
    """A place as a row of the table of places."""
    return place[0] * COLUMNS + place[1]


def walk(values: Array) -> int:
    """The number of moves to the goal by the best values, at most 100."""
    place = (0, 0)
    for moves in range(100):
        if place == GOAL:
            return moves
        place, _, _ = move(place, int(np.argmax(values[number(place)])))
    return 100


def main(episodes: int = 150, batch: int = 64, discount: float = 0.95) -> tuple[int, int]:
    """Train; gives the number of moves to the goal before and after (the best are 15)."""
    wg.random.seed(0)
    rng = np.random.default_rng(0)
    places = wg.eye(ROWS * COLUMNS)
    network = nn.Sequential(nn.Linear(ROWS * COLUMNS, 64), nn.ReLU(), nn.Linear(64, 4))
    target = copy.deepcopy(network).requires_grad_(False)
    optimizer = optim.Adam(network.parameters(), lr=2e-3)

    @wg.compile
    def step(before: Array, action: Array, reward: Array, after: Array, ended: Array) -> wg.Tensor:
        value = wg.take_along_axis(network(places[before]), action[:, None], axis=1)[:, 0]
        best = target(places[after]).max(axis=1)
        loss: wg.Tensor = ((value - (reward + discount * (1 - ended) * best)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with wg.no_grad():
            for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
                slow += 0.02 * (fast - slow)
        return loss

    values = wg.compile(lambda: network(places))
    start = walk(values().numpy())
    memory: list[tuple[int, int, float, int, float]] = []
    for episode in range(episodes):
        place, ended, moves = (0, 0), False, 0
        chance = max(0.1, 1 - episode / 75)
        while not ended and moves < 200:
            table = values().numpy()
            greedy = int(np.argmax(table[number(place)]))
            action = int(rng.integers(4)) if rng.random() < chance else greedy
            after, reward, ended = move(place, action)
            memory.append((number(place), action, reward, number(after), float(ended)))
            place, moves = after, moves + 1
            if len(memory) >= batch and moves % 2 == 0:
                chosen = rng.integers(len(memory), size=batch)
                a, b, c, d, e = zip(*(memory[i] for i in chosen), strict=True)
                real = [np.asarray(v, np.float32) for v in (c, e)]
                step(np.asarray(a), np.asarray(b), real[0], np.asarray(d), real[1])
        if episode % 25 == 0:
            print(f"episode {episode:4}: {moves} moves while trying")
    found = walk(values().numpy())
    print(f"the way takes {found} moves")
    return start, found


if __name__ == "__main__":
    main()
