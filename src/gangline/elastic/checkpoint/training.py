"""``TrainingState``: everything that training needs to continue, as one value of a state.

    state = {"training": TrainingState(model, optimizer, scheduler=scheduler, sampler=sampler)}

Model and optimizer are saved under the names of parameters, as PyTorch's distributed checkpoints
require it, so that they reshard. Random states belong to a rank; a rank that did not exist when the
checkpoint was saved retains its own.

PyTorch's ``get_state_dict`` initialises an optimizer that has not stepped by a step with zero
gradients. Afterwards Adam counts one step too many, SGD has a momentum buffer with weight decay,
and Rprop has lost its step size. Here a copy of the optimizer makes that step.
"""

import contextlib
import copy
import io
import random
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy
import torch
import torch.distributed as dist
import torch.optim.optimizer as optim_module
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from gangline.elastic.checkpoint.errors import UnsavableError
from gangline.elastic.checkpoint.format.torch_framing import (
    check_loadable,
    pickle_value,
    safe_unpickle,
)

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
    """Return the state by names of parameters; an optimizer that has not stepped has none.

    Raises:
        UnsavableError: an optimizer has a parameter that the model does not have.
    """
    _check_parameters(model, optimizers)
    return _state_of(model, [_readable(one) for one in optimizers])


def optimizer_state_template(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Any]:
    """Return a state with all names, shapes and types that exist after the first step.

    Values are those of the optimizers where they have stepped, else meaningless.

    Raises:
        UnsavableError: an optimizer cannot step with gradients of zero, or has a parameter that
            the model does not have.
    """
    _check_parameters(model, optimizers)
    return _state_of(model, [_template_of(one) for one in optimizers])


def load_optimizer_state(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    state_dict: Mapping[str, Any],
) -> None:
    """Restore a state; parameters without a saved state get none."""
    _check_parameters(model, optimizers)
    # A parameter without a gradient has no state: PyTorch before 2.7 reads one all the same.
    state: dict[str, Any] = defaultdict(dict)
    state.update({name: values for name, values in state_dict["state"].items() if values})
    saved_groups: list[dict[str, Any]] = state_dict["param_groups"]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if len(groups) == len(saved_groups):  # empty groups have no names, only positions
        for group, saved_group in zip(groups, saved_groups, strict=True):
            if not group["params"] and not saved_group["params"]:
                _update_group(group, saved_group)
    if state:
        named = [group for group in saved_groups if group["params"]]
        with _no_initialisation(optimizers), _hidden_empty_groups(optimizers):
            set_optimizer_state_dict(
                model,
                list(optimizers),
                {"state": state, "param_groups": named},
                options=StateDictOptions(strict=False),
            )
        for optimizer in optimizers:
            for parameter in [one for one, values in optimizer.state.items() if not values]:
                del optimizer.state[parameter]
        return
    # PyTorch would not find the groups of several optimizers in a state without parameters.
    saved = {name: group for group in saved_groups for name in group["params"]}
    current = iter(read_optimizer_state(model, optimizers)["param_groups"])
    for optimizer in optimizers:
        optimizer.state.clear()
        for group in optimizer.param_groups:
            names = next(current)["params"]
            _update_group(group, next((saved[name] for name in names if name in saved), {}))


def _update_group(group: dict[str, Any], saved: Mapping[str, Any]) -> None:
    group.update({key: copy.deepcopy(value) for key, value in saved.items() if key != "params"})


@contextlib.contextmanager
def _hidden_empty_groups(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """Hide groups without parameters: PyTorch loads one of them at most, and loses its options."""
    before = [list(one.param_groups) for one in optimizers]
    for one, groups in zip(optimizers, before, strict=True):
        one.param_groups = [group for group in groups if group["params"]]
    try:
        yield
    finally:
        for one, groups in zip(optimizers, before, strict=True):
            loaded = iter(one.param_groups)
            one.param_groups = [next(loaded) if group["params"] else group for group in groups]


def _check_parameters(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Check that states can be saved by the names of the model's parameters.

    Raises:
        UnsavableError: an optimizer has a parameter or a state that has no such name.
    """
    model_parameters = set(map(id, model.parameters()))
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        for number, group in enumerate(optimizer.param_groups):
            for one in group["params"]:
                if id(one) not in model_parameters:
                    raise UnsavableError(
                        f"parameter group {number} of {kind} has a parameter of shape "
                        f"{tuple(one.shape)} that the model {type(model).__name__} does not have: "
                        "pass a module that contains all of them, such as torch.nn.ModuleList([…])"
                    )
        if alien := [key for key in optimizer.state if not isinstance(key, torch.Tensor)]:
            raise UnsavableError(
                f"{kind} has the state {alien[0]!r}, which belongs to no parameter: save it with "
                "TrainingState(model, [], optimizer=SingleValueState(optimizer))"
            )


def _state_of(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Any]:
    if not optimizers:  # an error in PyTorch
        return {"state": {}, "param_groups": []}
    return get_optimizer_state_dict(model, optimizers)


def _has_state(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a parameter has a state; reading ``optimizer.state[p]`` adds an empty one."""
    return any(optimizer.state.values())


def _template_of(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    if parameters and all(optimizer.state.get(one) for one in parameters if one.requires_grad):
        return optimizer
    stepped = _stepped_copy(optimizer)
    stepped.state.update({one: values for one, values in optimizer.state.items() if values})
    return stepped


def _readable(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    if _has_state(optimizer):
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
        if callable(begin := getattr(stepped, "train", None)):
            begin()  # schedule-free optimizers; without a state it changes no parameter
        with _suspended_global_hooks():
            stepped.step()
    except Exception as error:
        name = type(optimizer).__name__
        raise UnsavableError(
            f"{name} cannot step with gradients of zero ({error}), so its state is not known "
            "before its first step; save it with "
            "TrainingState(model, [], optimizer=SingleValueState(optimizer))"
        ) from error
    finally:
        for one, gradient in zip(parameters, gradients, strict=True):
            one.grad = gradient
    for group, original in zip(stepped.param_groups, optimizer.param_groups, strict=True):
        group.update(original)
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


class Stateful(Protocol):
    """An object with state, such as a scheduler, a sampler or a data loader."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Restore a state."""


class SingleValueState:
    """Saves the state of an object as a single value.

    Use it for states whose names change during training: a checkpoint is restored by the names in
    the current state, and those of a new object differ from those of a used one.
    """

    def __init__(self, keeper: Stateful) -> None:
        self.keeper = keeper

    def state_dict(self) -> dict[str, Any]:
        """Return the state.

        Raises:
            UnsavableError: it cannot be pickled, or would need code to load.
        """
        name, state = type(self.keeper).__name__, self.keeper.state_dict()
        data = pickle_value(name, state)
        check_loadable(name, state, data)
        return {"value": data}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state."""
        self.keeper.load_state_dict(safe_unpickle(io.BytesIO(state_dict["value"])))


class TrainingState:
    """Model, optimizer, random states and other stateful objects."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
        **others: Stateful,
    ) -> None:
        """Combine them; ``others`` are schedulers, samplers, data shards … under your names."""
        self.model, self.optimizer, self.others = model, optimizer, others
        self.optimizers = list[torch.optim.Optimizer]()
        for number, one in enumerate(unwrap_optimizers(optimizer)):
            if isinstance(one, NOT_INITIALISABLE):
                self.others[f"optimizer-{number}"] = SingleValueState(one)
            else:
                self.optimizers.append(one)

    def state_dict(self) -> dict[str, Any]:
        """Return the state; its tensors are the model's own, not copies.

        An optimizer that has not stepped has no state of parameters.
        """
        return self._state_dict(read_optimizer_state(self.model, self.optimizers))

    def state_template(self) -> dict[str, Any]:
        """Return what ``state_dict`` returns after the first step, to load into."""
        return self._state_dict(optimizer_state_template(self.model, self.optimizers))

    optional_values = ("optimizer", "state")
    """Values below this path are loaded as far as they were saved, parameter by parameter."""
    common_values = (("model",), ("optimizer",))
    """Values below these paths are the same on all ranks, or sharded."""

    def _state_dict(self, optimizer: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": get_model_state_dict(self.model),
            "optimizer": optimizer,
            "others": {name: other.state_dict() for name, other in self.others.items()},
            "random": {f"rank-{_rank()}": random_states()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state."""
        set_model_state_dict(self.model, state_dict["model"])
        load_optimizer_state(self.model, self.optimizers, state_dict["optimizer"])
        for name, other in self.others.items():
            other.load_state_dict(state_dict["others"][name])
        set_random_states(state_dict["random"][f"rank-{_rank()}"])


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def random_states() -> dict[str, Any]:
    """Return the random states of Python, NumPy, PyTorch and its GPUs."""
    name, keys, *rest = tuple(numpy.random.get_state(legacy=True))
    return {
        "python": random.getstate(),
        # A tensor rather than an array: PyTorch's planner does not save arrays.
        "numpy": {
            "name": name,
            "keys": torch.from_numpy(numpy.asarray(keys, "int64")),
            "rest": rest,
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Restore the result of ``random_states``."""
    random.setstate(states["python"])
    numpy_state = states["numpy"]
    numpy.random.set_state(
        (numpy_state["name"], numpy_state["keys"].numpy().astype("uint32"), *numpy_state["rest"])
    )
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
