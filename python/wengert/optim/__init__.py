"""Optimizers, schedules of the learning rate, averages of weights, and gradient clipping.

An optimizer updates parameters in place, under `no_grad`; parameters without a gradient and
frozen ones are left alone. Names, defaults and formulas are PyTorch's.
"""

from wengert import _core
from wengert.optim.adaptive import Adadelta, Adagrad, RMSprop
from wengert.optim.averages import EMA, SWA
from wengert.optim.clipping import clip_grad_norm, clip_grad_value
from wengert.optim.descent import ASGD, SGD, Lion, Rprop
from wengert.optim.lbfgs import LBFGS
from wengert.optim.moments import LAMB, Adam, Adamax, AdamW, NAdam, RAdam, SparseAdam
from wengert.optim.optimizer import Optimizer
from wengert.optim.scaling import GradScaler
from wengert.optim.schedules import (
    ChainedSchedule,
    CosineSchedule,
    CyclicSchedule,
    ExponentialSchedule,
    LambdaSchedule,
    LinearSchedule,
    MultiStepSchedule,
    OneCycleSchedule,
    PlateauSchedule,
    PolynomialSchedule,
    Schedule,
    SequentialSchedule,
    StepSchedule,
    WarmRestartSchedule,
)

# Steps as functions of values: new parameters from old ones, with a gradient of their own.
adam, sgd, sgd_momentum = _core.optim.adam, _core.optim.sgd, _core.optim.sgd_momentum

__all__ = [
    "ASGD",
    "EMA",
    "LAMB",
    "LBFGS",
    "SGD",
    "SWA",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ChainedSchedule",
    "CosineSchedule",
    "CyclicSchedule",
    "ExponentialSchedule",
    "GradScaler",
    "LambdaSchedule",
    "LinearSchedule",
    "Lion",
    "MultiStepSchedule",
    "NAdam",
    "OneCycleSchedule",
    "Optimizer",
    "PlateauSchedule",
    "PolynomialSchedule",
    "RAdam",
    "RMSprop",
    "Rprop",
    "Schedule",
    "SequentialSchedule",
    "SparseAdam",
    "StepSchedule",
    "WarmRestartSchedule",
    "adam",
    "clip_grad_norm",
    "clip_grad_value",
    "sgd",
    "sgd_momentum",
]

TYPE_CHECKING = False

if not TYPE_CHECKING:

    def __getattr__(name):
        from wengert._words import unknown

        raise AttributeError(unknown('optim', name))
