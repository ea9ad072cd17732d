"""Data for training: datasets, samplers, batches made ahead by threads or processes, progress.

docs/data.md shows how they go together.
"""

from __future__ import annotations

from wengert.data._workers import WorkerInfo, get_worker_info
from wengert.data.datasets import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from wengert.data.loader import DataLoader, collate
from wengert.data.progress import progress
from wengert.data.samplers import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "IterableDataset",
    "RandomSampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "collate",
    "get_worker_info",
    "progress",
    "random_split",
]
