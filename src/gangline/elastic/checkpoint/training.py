"""``TrainingState``: everything that training needs to continue, as one value of a state.

    state = {"training": TrainingState(model, optimizer, scheduler=scheduler, sampler=sampler)}

Model and optimizer are saved under the names of parameters, as PyTorch's distributed checkpoints
require it, so that they reshard. Random states belong to a rank; a rank that did not exist when the
checkpoint was saved retains its own.
"""

import io
import random
from collections.abc import Iterable
from typing import Any, Protocol

import numpy
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from gangline.elastic.checkpoint.format.safe_unpickle import safe_unpickle
from gangline.elastic.checkpoint.format.torch_framing import check_loadable, pickle_value
from gangline.elastic.checkpoint.optimizer_state import (
    NOT_INITIALISABLE,
    load_optimizer_state,
    optimizer_state_template,
    read_optimizer_state,
    unwrap_optimizers,
)


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
