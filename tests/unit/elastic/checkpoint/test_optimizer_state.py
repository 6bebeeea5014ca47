"""Checkpoints do not change the training: bit for bit as plain PyTorch without them."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.optim.lr_scheduler import StepLR

from gangline.elastic.checkpoint.checkpointer import load_objects, optional_paths
from gangline.elastic.checkpoint.errors import UnsavableError
from gangline.elastic.checkpoint.restore.dcp_reader import load_state
from gangline.elastic.checkpoint.restore.dcp_writer import FlashWriter
from gangline.elastic.checkpoint.restore.source import StorageSource
from gangline.elastic.checkpoint.storage.target import open_target
from gangline.elastic.checkpoint.training import TrainingState

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
STEPS = 8
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5, weight_decay=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam-amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "Adam-capturable": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "Adam-fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01, t0=5),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.05, max_iter=3),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "SGD-momentum": lambda p: torch.optim.SGD(
        p, lr=0.01, momentum=0.9, dampening=0.5, weight_decay=0.1
    ),
    "SGD-fused": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
}


class Net(nn.Module):
    """A network with a parameter that never gets a gradient and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.frozen = nn.Linear(6, 3).requires_grad_(False)
        self.unused = nn.Parameter(torch.randn(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(inputs) + self.frozen(inputs)
        return result


class Training:
    """A training that continues from any step: its data depend on the step alone."""

    def __init__(self, create: Callable[[Any], torch.optim.Optimizer]) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = create([one for one in self.model.parameters() if one.requires_grad])
        self.scheduler = StepLR(self.optimizer, 4, 0.5)

    @property
    def state(self) -> dict[str, Any]:
        return {"training": TrainingState(self.model, self.optimizer, scheduler=self.scheduler)}

    def run(self, steps: range) -> None:
        for step in steps:
            inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))

            def closure(inputs: torch.Tensor = inputs) -> torch.Tensor:
                self.optimizer.zero_grad()
                loss: torch.Tensor = self.model(inputs).square().mean()
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            self.optimizer.step(closure)  # type: ignore[arg-type]
            self.scheduler.step()

    def result(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def save(training: Training, folder: Path, step: int) -> None:
    states = {key: value.state_dict() for key, value in training.state.items()}
    dcp_save(states, storage_writer=FlashWriter(folder, step), no_dist=True)


def load(training: Training, folder: Path, step: int) -> None:
    state = training.state
    template = {key: value.state_template() for key, value in state.items()}
    source = StorageSource(open_target(str(folder)), step)
    load_objects(state, load_state(source, template, optional_paths(state)))


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


@pytest.fixture(params=OPTIMIZERS)
def create(request: pytest.FixtureRequest) -> Callable[[Any], torch.optim.Optimizer]:
    return OPTIMIZERS[request.param]


def test_templates_change_nothing(create: Callable[[Any], torch.optim.Optimizer]) -> None:
    plain, prepared = Training(create), Training(create)
    groups = copy.deepcopy(prepared.optimizer.state_dict()["param_groups"])
    for value in prepared.state.values():
        value.state_template()
        value.state_dict()
    assert prepared.optimizer.state_dict()["param_groups"] == groups
    assert all(one.grad is None for one in prepared.model.parameters())
    plain.run(range(STEPS))
    prepared.run(range(STEPS))
    assert_equal(plain.result(), prepared.result())


@pytest.mark.parametrize("saved_after", [0, 5])
def test_a_restored_training_equals_an_uninterrupted_one(
    create: Callable[[Any], torch.optim.Optimizer], saved_after: int, tmp_path: Path
) -> None:
    plain, interrupted, resumed = Training(create), Training(create), Training(create)
    interrupted.run(range(saved_after))
    save(interrupted, tmp_path, saved_after)
    load(resumed, tmp_path, saved_after)
    plain.run(range(STEPS))
    resumed.run(range(saved_after, STEPS))
    assert_equal(plain.result(), resumed.result())


def test_two_optimizers(tmp_path: Path) -> None:
    def train(interrupt: int | None) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

        def optimizers() -> list[torch.optim.Optimizer]:
            return [
                torch.optim.Adam(model[0].parameters(), lr=0.01),
                torch.optim.SGD(model[1].parameters(), lr=0.1, momentum=0.9),
            ]

        used = optimizers()
        for step in range(10):
            if step == interrupt:
                states = {"training": TrainingState(model, used).state_dict()}
                dcp_save(states, storage_writer=FlashWriter(tmp_path, step), no_dist=True)
                used = optimizers()
                for group in used[0].param_groups:
                    group["lr"] = 0.5
                state = {"training": TrainingState(model, used)}
                template = {"training": state["training"].state_template()}
                source = StorageSource(open_target(str(tmp_path)), step)
                load_objects(state, load_state(source, template, optional_paths(state)))
            inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
            model(inputs).square().mean().backward()
            for one in used:
                one.step()
                one.zero_grad()
        return {name: value.clone() for name, value in model.state_dict().items()}

    plain = train(None)
    assert_equal(plain, train(0))
    assert_equal(plain, train(4))


def test_an_optimizer_without_a_first_step_is_named() -> None:
    class Picky(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            raise RuntimeError("needs a loss")

    model = nn.Linear(2, 2)
    with pytest.raises(UnsavableError, match=r"Picky .*needs a loss.*SingleValueState"):
        TrainingState(model, Picky(model.parameters(), lr=0.1)).state_template()


class ScheduleFree(torch.optim.SGD):
    """Steps only in training mode, as the optimizers of schedulefree; the mode reads all states."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.05, momentum=0.9)
        for group in self.param_groups:
            group["train_mode"] = False

    def train(self) -> None:
        for group in self.param_groups:
            group["train_mode"] = True
            for one in group["params"]:
                self.state[one].get("z")

    def step(self, closure: Any = None) -> Any:
        if not self.param_groups[0]["train_mode"]:
            raise Exception("Optimizer was not in train mode")
        return super().step(closure)


class OtherParameters(torch.optim.Adam):
    """Has groups without parameters before, between and after the others."""

    def __init__(self, parameters: Any) -> None:
        first, *rest = parameters
        empty = [{"params": [], "lr": lr} for lr in (0.1, 0.2, 0.3)]
        groups = [empty[0], {"params": [first], "lr": 0.02}, empty[1], {"params": rest}, empty[2]]
        super().__init__(groups, lr=0.01, betas=(0.8, 0.9))


@pytest.mark.parametrize("saved_after", [0, 3])
@pytest.mark.parametrize("touched", ["none", "all", "first"])
@pytest.mark.parametrize(
    "create",
    [OPTIMIZERS["AdamW"], OPTIMIZERS["SGD-momentum"], ScheduleFree, OtherParameters],
    ids=["AdamW", "SGD-momentum", "schedule-free", "empty-groups"],
)
def test_empty_states_and_groups_lose_nothing(
    create: Callable[[Any], torch.optim.Optimizer], touched: str, saved_after: int, tmp_path: Path
) -> None:
    def prepare() -> Training:
        training = Training(create)
        parameters = list(training.model.body.parameters())
        for one in {"none": [], "all": parameters, "first": parameters[:1]}[touched]:
            assert training.optimizer.state[one] == {}
        return training

    def run(training: Training, steps: range) -> None:
        getattr(training.optimizer, "train", lambda: None)()
        training.run(steps)

    plain, interrupted, resumed = Training(create), prepare(), prepare()
    for group in resumed.optimizer.param_groups:
        group["lr"] = 0.7  # to be replaced by the saved one
    run(interrupted, range(saved_after))
    save(interrupted, tmp_path, saved_after)
    load(resumed, tmp_path, saved_after)
    run(plain, range(saved_after))
    assert_same_optimizers(plain.optimizer, resumed.optimizer)
    run(plain, range(saved_after, 6))
    run(resumed, range(saved_after, 6))
    assert_equal(plain.result(), resumed.result())
    assert_same_optimizers(plain.optimizer, resumed.optimizer)


def assert_same_optimizers(left: torch.optim.Optimizer, right: torch.optim.Optimizer) -> None:
    wanted, got = left.state_dict(), right.state_dict()
    assert wanted["param_groups"] == got["param_groups"]
    states = [{key: one for key, one in both["state"].items() if one} for both in (wanted, got)]
    assert states[0].keys() == states[1].keys()
    for key, values in states[0].items():
        assert_equal(values, states[1][key])


def test_a_state_of_only_some_parameters_is_replaced_by_a_fuller_one(tmp_path: Path) -> None:
    create = OPTIMIZERS["Adam"]
    plain, resumed = Training(create), Training(create)
    plain.run(range(3))
    save(plain, tmp_path, 3)
    resumed.model.get_parameter("body.0.weight").grad = torch.ones(8, 6)
    resumed.optimizer.step()
    load(resumed, tmp_path, 3)
    assert_same_optimizers(plain.optimizer, resumed.optimizer)


def test_what_the_model_does_not_have_is_named() -> None:
    model, temperature = nn.Linear(2, 2), nn.Parameter(torch.ones(7))
    groups: list[dict[str, Any]] = [{"params": model.parameters()}, {"params": [temperature]}]
    stranger = torch.optim.Adam(groups)
    with pytest.raises(UnsavableError, match=r"group 1 of Adam .*\(7,\).* Linear does not have"):
        TrainingState(model, stranger).state_dict()
    own = torch.optim.SGD(model.parameters())
    own.state["rounds"] = 3  # type: ignore[index]
    with pytest.raises(UnsavableError, match=r"SGD has the state 'rounds'.*SingleValueState"):
        TrainingState(model, own).state_template()


def test_wrapped_optimizers_are_unwrapped() -> None:
    class Wrapper:
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer
            self.param_groups = optimizer.param_groups

    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    state: Any = TrainingState(model, Wrapper(Wrapper(optimizer)))  # type: ignore[arg-type]
    assert state.optimizers == [optimizer]
    with pytest.raises(TypeError, match="Linear is not a"):
        TrainingState(model, model)  # type: ignore[arg-type]
