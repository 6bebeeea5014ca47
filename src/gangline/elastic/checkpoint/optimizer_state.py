"""Reads and restores the state of optimizers without changing the training.

PyTorch's ``get_state_dict`` initialises an optimizer that has not stepped yet by a step with zero
gradients. Afterwards Adam counts one step too many, SGD has a momentum buffer that contains weight
decay, and Rprop has lost its step size: training differs from training without checkpoints. Here
such a step is made by a copy of the optimizer, and the optimizer itself remains as it was.
"""

import contextlib
import copy
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.optim.optimizer as optim_module
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from gangline.elastic.checkpoint.errors import UnsavableError

NOT_INITIALISABLE: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.LBFGS,
    torch.optim.SparseAdam,
)
"""Optimizers that cannot step with dense gradients of zero. Their state is saved as one value."""
_STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class _Initialised(defaultdict[Any, Any]):
    """An empty state that PyTorch takes for an initialised one."""

    def __bool__(self) -> bool:
        return True


def unwrap_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """Return the optimizer within wrappers such as those of accelerate and ``ElasticTrainer``.

    Raises:
        TypeError: it is not an optimizer.
    """
    while hasattr(inner := getattr(optimizer, "optimizer", None), "param_groups"):
        optimizer = inner
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not a torch.optim.Optimizer")
    return optimizer


def unwrap_optimizers(optimizers: Any) -> tuple[torch.optim.Optimizer, ...]:
    """Return the optimizers of PyTorch for one optimizer or several.

    Raises:
        TypeError: one of them is not an optimizer.
    """
    if isinstance(optimizers, Iterable):
        return tuple(map(unwrap_optimizer, optimizers))
    return (unwrap_optimizer(optimizers),)


def read_optimizer_state(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Any]:
    """Return the state by names of parameters; an optimizer that has not stepped has none."""
    return _state_of(model, [_readable(one) for one in optimizers])


def optimizer_state_template(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Any]:
    """Return a state with all names, shapes and types that exist after the first step.

    Values are those of the optimizers where they have stepped, else meaningless.

    Raises:
        UnsavableError: an optimizer cannot step with gradients of zero.
    """
    return _state_of(model, [one if one.state else _stepped_copy(one) for one in optimizers])


def load_optimizer_state(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    state_dict: Mapping[str, Any],
) -> None:
    """Restore a state; parameters without a saved state get none."""
    if state_dict["state"]:
        with _no_initialisation(optimizers):
            set_optimizer_state_dict(
                model,
                list(optimizers),
                dict(state_dict),
                options=StateDictOptions(strict=False),
            )
        return
    # PyTorch would not find the groups of several optimizers in a state without parameters.
    saved = {name: group for group in state_dict["param_groups"] for name in group["params"]}
    named = iter(read_optimizer_state(model, optimizers)["param_groups"])
    for optimizer in optimizers:
        optimizer.state.clear()
        for group in optimizer.param_groups:
            names = next(named)["params"]
            found: dict[str, Any] = next((saved[name] for name in names if name in saved), {})
            group.update(
                {key: copy.deepcopy(value) for key, value in found.items() if key != "params"}
            )


def _state_of(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Any]:
    if not optimizers:  # an error in PyTorch
        return {"state": {}, "param_groups": []}
    return get_optimizer_state_dict(model, optimizers)


def _readable(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    if optimizer.state:
        return optimizer
    empty = _shallow_copy(optimizer)
    empty.state = _Initialised(dict)
    return empty


def _shallow_copy(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return a copy with a state and groups of its own for the same parameters.

    It has no hooks, and none of the methods that schedulers replace on the instance: these would
    step the original.
    """
    copied: torch.optim.Optimizer = object.__new__(type(optimizer))
    copied.__dict__.update(optimizer.__dict__)
    copied.__dict__.pop("step", None)
    for name in _STEP_HOOKS:
        setattr(copied, name, OrderedDict())
    copied.state = defaultdict(dict)
    copied.param_groups = [dict(group) for group in optimizer.param_groups]
    return copied


def _stepped_copy(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return a copy that has made one step with gradients and a learning rate of zero."""
    stepped = _shallow_copy(optimizer)
    parameters = [one for group in stepped.param_groups for one in group["params"]]
    gradients = [one.grad for one in parameters]
    try:
        for group in stepped.param_groups:
            if "lr" in group:
                rate = group["lr"]
                group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
        for one in parameters:
            one.grad = torch.zeros_like(one) if one.requires_grad else None
        with _suspended_global_hooks():
            stepped.step()
    except (RuntimeError, TypeError) as error:
        name = type(optimizer).__name__
        raise UnsavableError(
            f"{name} cannot step with gradients of zero ({error}), so its state is not known "
            "before its first step; save it as SingleValueState(optimizer)"
        ) from error
    finally:
        for one, gradient in zip(parameters, gradients, strict=True):
            one.grad = gradient
    for group, original in zip(stepped.param_groups, optimizer.param_groups, strict=True):
        if "lr" in original:
            group["lr"] = original["lr"]
    return stepped


@contextlib.contextmanager
def _suspended_global_hooks() -> Iterator[None]:
    """Suspend the hooks that are called for every optimizer."""
    tables: tuple[dict[int, Any], ...] = (
        optim_module._global_optimizer_pre_hooks,
        optim_module._global_optimizer_post_hooks,
    )
    saved = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, entries in zip(tables, saved, strict=True):
            table.update(entries)


@contextlib.contextmanager
def _no_initialisation(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """Prevent PyTorch from initialising optimizers before it replaces their state."""
    for one in optimizers:
        if not one.state:
            one.state = _Initialised(dict)
    try:
        yield
    finally:
        for one in optimizers:
            if isinstance(one.state, _Initialised):
                one.state = defaultdict(dict, one.state)
