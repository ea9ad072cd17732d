"""Writes tests/optim_reference.json: where PyTorch's optimizers are after 50 steps, and the rates
that its schedules set.

Two parameters in float64 go down ½ Σ c p² + Σ sin p + 0.1 · Σ p · Σ q; the second is in a group
of its own, whose learning rate is half the first's; after 25 steps all rates are halved. A case is
an optimizer, its options, and what both parameters are at the end. Of schedules there are PyTorch's
class and options, ours, and 40 rates from 0.1 on. Run it as

    python tests/generate_optim_reference.py

with PyTorch installed; the numbers are the same every time.
"""

import json
from pathlib import Path

import torch

START = [[0.5, -1.0, 0.3], [2.0, -0.7]]
CURVES = [[1.0, 3.0, 10.0], [0.5, 2.0]]
BETAS = {"lr": 0.05, "betas": (0.9, 0.99)}
CASES = [
    ("SGD", {"lr": 0.02}),
    ("SGD", {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.02, "momentum": 0.9, "nesterov": True}),
    ("SGD", {"lr": 0.02, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.002, "maximize": True}),
    ("ASGD", {"lr": 0.05, "lambd": 0.1, "alpha": 0.6, "t0": 10.0, "weight_decay": 0.1}),
    ("ASGD", {}),
    ("Rprop", {"lr": 0.05}),
    ("Rprop", {"lr": 0.01, "etas": (0.4, 1.3), "step_sizes": (1e-3, 0.2), "maximize": True}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 2.0, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.1}),
    ("RMSprop", {}),
    ("RMSprop", {"lr": 0.05, "alpha": 0.9, "momentum": 0.5, "centered": True, "eps": 1e-3}),
    ("RMSprop", {"lr": 0.05, "alpha": 0.9, "weight_decay": 0.1, "momentum": 0.5}),
    ("Adam", {}),
    ("Adam", {**BETAS, "weight_decay": 0.1}),
    ("Adam", {**BETAS, "amsgrad": True, "weight_decay": 0.1}),
    ("Adam", {**BETAS, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "maximize": True, "amsgrad": True}),
    ("AdamW", {**BETAS}),
    ("AdamW", {**BETAS, "amsgrad": True, "weight_decay": 0.2}),
    ("Adamax", {**BETAS, "weight_decay": 0.1}),
    ("Adamax", {}),
    ("NAdam", {**BETAS, "weight_decay": 0.1, "momentum_decay": 0.1}),
    ("NAdam", {**BETAS, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {**BETAS, "weight_decay": 0.1}),
    ("RAdam", {"lr": 0.01}),
    ("RAdam", {**BETAS, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("LBFGS", {"lr": 0.1, "max_iter": 2, "history_size": 3}),
    ("LBFGS", {"lr": 0.5, "max_iter": 2, "line_search_fn": "strong_wolfe"}),
]
CYCLE = {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 3}
METRICS = [((7 * k * k + 3 * k) % 17) / 17 for k in range(40)]
SCHEDULES = [
    ("MultiStepLR", "MultiStepSchedule", {"milestones": [3, 7, 7, 20]}, {}),
    ("LinearLR", "LinearSchedule", {}, {}),
    ("LinearLR", "LinearSchedule", {"start_factor": 0.1, "end_factor": 0.5}, {"total_iters": 9}),
    ("ExponentialLR", "ExponentialSchedule", {"gamma": 0.9}, {}),
    ("PolynomialLR", "PolynomialSchedule", {"power": 2.0}, {"total_iters": 9}),
    ("CyclicLR", "CyclicSchedule", CYCLE, {"cycle_momentum": False}),
    ("CyclicLR", "CyclicSchedule", {**CYCLE, "step_size_down": 5, "mode": "triangular2"},
     {"cycle_momentum": False}),
    ("CyclicLR", "CyclicSchedule", {**CYCLE, "mode": "exp_range", "gamma": 0.95},
     {"cycle_momentum": False}),
    ("OneCycleLR", "OneCycleSchedule", {"max_lr": 1.0, "total_steps": 40},
     {"cycle_momentum": False}),
    ("OneCycleLR", "OneCycleSchedule",
     {"max_lr": 1.0, "total_steps": 40, "pct_start": 0.4, "three_phase": True},
     {"cycle_momentum": False, "anneal_strategy": "linear"}),
    ("CosineAnnealingWarmRestarts", "WarmRestartSchedule", {}, {"T_0": 3, "T_mult": 2}),
    ("CosineAnnealingWarmRestarts", "WarmRestartSchedule", {}, {"T_0": 6, "eta_min": 0.01}),
    ("ReduceLROnPlateau", "PlateauSchedule", {"factor": 0.5, "patience": 2}, {}),
    ("ReduceLROnPlateau", "PlateauSchedule",
     {"mode": "max", "factor": 0.7, "patience": 2, "threshold": 0.1, "cooldown": 2,
      "min_lr": 0.02}, {}),
    ("ReduceLROnPlateau", "PlateauSchedule",
     {"factor": 0.5, "patience": 1, "threshold": 0.1, "threshold_mode": "abs"}, {}),
]  # fmt: skip
OURS = {"total_iters": "total_steps", "T_0": "period", "T_mult": "growth", "eta_min": "min_lr",
        "anneal_strategy": "anneal"}  # fmt: skip


def rates(name, options):
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    schedule, found = getattr(torch.optim.lr_scheduler, name)(optimizer, **options), []
    for metric in METRICS:
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step(*[metric] if name == "ReduceLROnPlateau" else [])
    return found


def run(name, options):
    p, q = params = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in START]
    c, d = [torch.tensor(x, dtype=torch.float64) for x in CURVES]
    groups = params
    if name != "LBFGS":
        rate = getattr(torch.optim, name)([p], **options).param_groups[0]["lr"]
        groups = [{"params": [p]}, {"params": [q], "lr": rate / 2}]
    optimizer = getattr(torch.optim, name)(groups, **options)

    def loss():
        optimizer.zero_grad()
        bowl = 0.5 * ((c * p * p).sum() + (d * q * q).sum())
        value = bowl + p.sin().sum() + q.sin().sum() + 0.1 * p.sum() * q.sum()
        value.backward()
        return value

    for step in range(50):
        if step == 25:
            for group in optimizer.param_groups:
                group["lr"] /= 2
        optimizer.step(loss)
    return [x.tolist() for x in params]


def main():
    found = [{"name": n, "options": o, "end": run(n, o)} for n, o in CASES]
    cases = ",\n".join(json.dumps(case) for case in found)
    found = [
        {"name": ours, "rates": rates(theirs, same | other),
         "options": same | {OURS[k]: v for k, v in other.items() if k in OURS}}
        for theirs, ours, same, other in SCHEDULES
    ]  # fmt: skip
    schedules = ",\n".join(json.dumps(case) for case in found)
    head = json.dumps({"torch": torch.__version__, "start": START, "curves": CURVES,
                       "metrics": METRICS})[1:-1]  # fmt: skip
    path = Path(__file__).with_name("optim_reference.json")
    lists = f'"cases": [\n{cases}\n], "schedules": [\n{schedules}\n]'
    path.write_text(f"{{{head}, {lists}}}\n")


if __name__ == "__main__":
    main()
