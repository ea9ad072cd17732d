"""Batches, their order, errors and ends; files."""

import threading

import numpy as np
import pytest

import wengert as wg
from wengert.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    collate,
    progress,
    random_split,
)

DATA = TensorDataset(np.arange(10), np.arange(20.0).reshape(10, 2))


def threads():
    return [t for t in threading.enumerate() if t.name == "wengert-data"]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_batches(prefetch):
    batches = list(DataLoader(DATA, 4, prefetch_factor=prefetch))
    assert [b[0].tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches[1][1].shape == (4, 2) and batches[1][1].tolist()[0] == [8.0, 9.0]
    short = DataLoader(DATA, 4, drop_last=True, prefetch_factor=prefetch)
    assert len(short) == 2 == len(list(short)) and len(DataLoader(DATA, 4)) == 3


def test_shuffling():
    def passes(**options):
        loader = DataLoader(DATA, 3, shuffle=True, **options)
        return [[i for batch in loader for i in batch[0].tolist()] for _ in range(2)]

    first, second = passes(seed=1)
    assert sorted(first) == sorted(second) == list(range(10)) and first != second
    assert passes(seed=1) == passes(seed=1, prefetch_factor=0) != passes(seed=2)
    wg.random.seed(5)
    one = passes()
    wg.random.seed(5)
    assert passes() == one


class Odd:
    """A dataset of dictionaries that fails at its third sample."""

    def __init__(self, error=None):
        self.error = error

    def __len__(self):
        return 5

    def __getitem__(self, i):
        if self.error is not None and i == 2:
            raise self.error
        return {"i": i, "x": np.full(2, i, np.float32), "name": str(i), "t": wg.tensor(i * 1.0)}


def test_collation():
    batch = next(iter(DataLoader(Odd(), 3)))
    assert batch["i"].tolist() == [0, 1, 2] and batch["x"].tolist()[2] == [2.0, 2.0]
    assert batch["name"] == ["0", "1", "2"] and batch["t"].shape == (3,)
    assert batch["x"].dtype == wg.float32
    assert next(iter(DataLoader(Odd(), 2, collate_fn=len))) == 2
    with pytest.raises(ValueError, match="sample 1"):
        collate([(1, 2), [1, 2]])


@pytest.mark.parametrize("prefetch", [0, 2])
def test_errors_arrive_in_order(prefetch):
    got = []
    with pytest.raises(KeyError, match="mine"):
        for batch in DataLoader(Odd(KeyError("mine")), prefetch_factor=prefetch):
            got.append(batch["i"].item())
    assert got == [0, 1] and not threads()
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(DataLoader(Odd(StopIteration()), prefetch_factor=prefetch))


def test_a_pass_left_early_ends_its_thread():
    batches = iter(DataLoader(Subset(DATA, [0, 1])))  # gathers take less than a thread
    next(batches)
    assert not threads()
    batches = iter(DataLoader(DATA, prefetch_factor=2))
    next(batches)
    assert len(threads()) == 1
    batches.close()
    assert not threads()


def test_samplers():
    assert list(SequentialSampler(DATA)) == list(range(10))
    for make in (
        lambda seed: RandomSampler(DATA, seed=seed),
        lambda seed: RandomSampler(DATA, num_samples=25, seed=seed),
        lambda seed: RandomSampler(DATA, replacement=True, num_samples=200, seed=seed),
        lambda seed: SubsetRandomSampler(list(range(10)), seed=seed),
        lambda seed: WeightedRandomSampler([1.0] * 10, 10, replacement=False, seed=seed),
        lambda seed: WeightedRandomSampler([1.0] * 10, 200, seed=seed),
    ):
        sampler, same = make(1), make(1)
        first, second = list(sampler), list(sampler)
        assert len(first) == len(sampler) and set(first) == set(range(10)) and first != second
        assert [list(same), list(same)] == [first, second] and list(make(2)) != first
        assert len(list(DataLoader(DATA, 4, sampler=make(1)))) == -(-len(first) // 4)
    rounds = list(RandomSampler(DATA, num_samples=25, seed=1))
    assert sorted(rounds[:10]) == sorted(rounds[10:20]) == list(range(10))
    batches = BatchSampler(SequentialSampler(DATA), 4, drop_last=True)
    assert list(batches) == [[0, 1, 2, 3], [4, 5, 6, 7]] and len(batches) == 2
    assert [b[0].tolist() for b in DataLoader(DATA, batch_sampler=batches)] == list(batches)


def test_weights_of_samples():
    weights = [0.0, 1.0, 3.0, 0.0, 4.0, 0.0]
    counts = np.bincount(list(WeightedRandomSampler(weights, 8000, seed=1)), minlength=6)
    # Counts of a binomial, within 4 standard deviations.
    for count, w in zip(counts, weights, strict=True):
        assert abs(count - 1000 * w) <= 4 * np.sqrt(1000 * w * (1 - w / 8))
    firsts = []
    for seed in range(300):
        order = list(WeightedRandomSampler(weights, 3, replacement=False, seed=seed))
        assert sorted(order) == [1, 2, 4]
        firsts.append(order[0])
    assert abs(firsts.count(4) - 150) < 4 * np.sqrt(75)
    for wrong in ([[1.0]], [0.0], [-1.0, 2.0], [float("inf")], [float("nan")]):
        with pytest.raises(wg.ArgumentError, match="WeightedRandomSampler"):
            WeightedRandomSampler(wrong, 1)
    with pytest.raises(ValueError, match="without replacement of 3"):
        WeightedRandomSampler(weights, 4, replacement=False)


def test_datasets_of_datasets():
    part = Subset(DATA, [7, 2, 5])
    assert len(part) == 3 and part[1][0].item() == 2
    (batch,) = DataLoader(part, 3)
    assert batch[0].tolist() == [7, 2, 5] and batch[1].tolist()[0] == [14.0, 15.0]
    both = ConcatDataset([part, range(3), []])
    assert len(both) == 6 and [both[i] for i in (3, 5, -1)] == [0, 2, 2]
    for wrong in (6, -7):
        with pytest.raises(IndexError, match=f"position {wrong} of 6"):
            both[wrong]
    with pytest.raises(ValueError, match="IterableDataset"):
        ConcatDataset([IterableDataset()])
    assert StackDataset(range(3), "abc")[1] == (1, "b") and len(StackDataset(a="xy")) == 2
    assert StackDataset(a=range(3), b="abc")[2] == {"a": 2, "b": "c"}
    for wrong in ((), ([1], [1, 2])):
        with pytest.raises(ValueError, match="StackDataset"):
            StackDataset(*wrong)


def test_random_split():
    wg.random.seed(1)
    for lengths, sizes in (([7, 3], [7, 3]), ([0.5, 0.25, 0.25], [6, 2, 2]), ([1.0], [10])):
        parts = random_split(DATA, lengths)
        assert [len(p) for p in parts] == sizes
        assert sorted(i for p in parts for i in p.indices) == list(range(10))
    one, two = (random_split(DATA, [4, 6], seed=s)[0].indices for s in (1, 2))
    assert one != two and random_split(DATA, [4, 6], generator=wg.random.key(1))[0].indices == one
    for wrong in ([7, 2], [0.5, 0.4], [11, -1], [1.5, -0.5]):
        with pytest.raises(ValueError, match="random_split: wanted"):
            random_split(DATA, wrong)


def test_refusals():
    for options, word in (
        ({"batch_size": 0}, "batch_size"),
        ({"num_workers": -1}, "num_workers"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor"),
        ({"shuffle": True, "sampler": [1]}, "sampler excludes shuffle"),
        ({"batch_sampler": [[1]], "drop_last": True}, "batch_sampler excludes"),
        ({"batch_size": None, "drop_last": True}, "drop_last"),
        ({"timeout": 1}, "timeout.* num_workers >= 1"),
        ({"persistent_workers": True}, "persistent_workers .* num_workers >= 1"),
        ({"num_workers": 1, "timeout": -1}, "timeout >= 0"),
        ({"seed": 1, "generator": wg.random.key(1)}, "seed or generator"),
        ({"generator": 3}, r"wg\.random\.key"),
    ):
        with pytest.raises(wg.ArgumentError, match=f"DataLoader: .*{word}"):
            DataLoader(DATA, **options)
    with pytest.raises(ValueError, match="IterableDataset excludes shuffle"):
        DataLoader(IterableDataset(), shuffle=True)
    with pytest.raises(NotImplementedError, match="__iter__"):
        list(DataLoader(IterableDataset()))
    with pytest.warns(UserWarning, match="pin_memory has no effect"):
        DataLoader(DATA, pin_memory=True)
    for wrong in ((), (wg.ones(2), wg.ones(3)), (wg.tensor(1.0),)):
        with pytest.raises(ValueError, match="length"):
            TensorDataset(*wrong)


def test_progress_with_and_without_tqdm(monkeypatch):
    assert list(progress(range(3), total=3)) == [0, 1, 2]
    monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", None)
    bar = progress(range(3), "text")
    bar.set_postfix(loss=1)
    assert list(bar) == [0, 1, 2]


def test_files(tmp_path):
    path = tmp_path / "t.safetensors"
    tensors = {
        "a": wg.arange(6.0).reshape(2, 3).T,
        "b": wg.tensor([True, False]),
        "c": wg.zeros((0, 3), dtype=wg.int8),
        "d": wg.tensor(1.5, dtype=wg.float64),
    }
    wg.save(tensors, path, metadata={"made": "here"})
    found = wg.load(path)
    assert set(found) == set(tensors)
    for name, t in tensors.items():
        assert found[name].dtype == t.dtype and found[name].tolist() == t.tolist()
    with pytest.raises(TypeError, match=r"(?s)\['x'\]: set.*\['y'\]\[1\]: type"):
        wg.save({"a": wg.ones(1), "x": {1}, "y": [2, int]}, path)
    assert set(wg.load(path)) == set(tensors), "a refused save leaves the file"
    assert [p.name for p in tmp_path.iterdir()] == ["t.safetensors"]
    with pytest.raises(OSError):
        wg.save(tensors, tmp_path / "none" / "t.safetensors")
    with pytest.raises(OSError):
        wg.load(tmp_path / "missing")
    path.write_bytes(b"not a file of tensors")
    with pytest.raises(ValueError):
        wg.load(path)
