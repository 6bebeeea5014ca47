"""Dictionaries and lists get the structure that they had when they were saved, as by torch.load."""

import copy
import io
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import pytest
import torch

from gangline.elastic.checkpoint import Checkpointer
from gangline.elastic.checkpoint.errors import CheckpointError
from gangline.elastic.checkpoint.restore.dcp_reader import load_state
from gangline.elastic.checkpoint.restore.source import StorageSource
from gangline.elastic.checkpoint.training import TrainingState
from unit.elastic.checkpoint.checkpoint_states import equal

W, V = torch.arange(6.0).reshape(2, 3), torch.ones(4, dtype=torch.bfloat16)
FORMS: dict[str, list[Any]] = {
    "counts": [{}, {"en": 10, "de": 5}, {"fr": 1}, {"en": {"a": {}}}, {"en": {"a": {"b": None}}}],
    "lists": [[], [{"a": 1}], [{"b": 2}, {}, [{"c": W}]], [1, 2], [W], [W, V, W], [[], {"x": []}]],
    "numbers": [
        {},
        {1: 2, (3, 4): "x"},
        {0: {"m": W}, 7: {"m": V, "n": 1}},
        {-1: {5: [W, {2: V}]}},
    ],
    "kinds": [None, W, {"a": W}, {"a": 1}, [W], 5, (1, 2), {"a": {"b": V}, "c": "d"}],
    "types": [Counter(), Counter(a=2), Counter({3: 4})],
    "ordered": [OrderedDict(), OrderedDict(b=1, a=W), OrderedDict([(2, "x"), (1, "y")])],
}


def saved_by_torch(state: Any) -> Any:
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


def assert_same(left: Any, right: Any) -> None:
    if isinstance(left, dict):
        assert list(left) == list(right), (left, right)
        for key, value in left.items():
            assert_same(value, right[key])
    elif isinstance(left, list | tuple):
        assert type(left) is type(right), (left, right)
        assert len(left) == len(right), (left, right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    else:
        assert left == right


@pytest.mark.parametrize("name", FORMS)
def test_any_form_replaces_any_other(rig: Any, name: str) -> None:
    for step, form in enumerate(FORMS[name]):
        saved = {"object": {"form": form, "always": 1}}
        rig.save(saved, step)
        rig.persist(step)
        wanted = saved_by_torch(saved)
        source = StorageSource(rig.target, step)
        for other in FORMS[name]:
            into = {"object": {"form": copy.deepcopy(other), "always": 0}}
            load_state(source, into)
            assert_same(into, wanted)
        assert equal(load_state(source, None), wanted)


def test_a_loaded_container_retains_its_class(rig: Any) -> None:
    rig.save(
        {"object": {"seen": defaultdict(int, {"a": 1}), "by number": defaultdict(int, {1: 2})}}, 1
    )
    rig.persist(1)
    into: Any = {"object": {"seen": defaultdict(int), "by number": defaultdict(int)}}
    seen = into["object"]["seen"]
    load_state(StorageSource(rig.target, 1), into)
    assert into == {"object": {"seen": {"a": 1}, "by number": {1: 2}}}
    assert into["object"]["seen"] is seen
    assert into["object"]["by number"]["new"] == 0


class Counts:
    def __init__(self) -> None:
        self.tokens: Any = {}

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tokens = state["tokens"]


def test_objects_of_a_training_grow_and_shrink(tmp_path: Any) -> None:
    def create() -> tuple[Counts, Counts, dict[str, Any]]:
        model = torch.nn.Linear(2, 1)
        training = TrainingState(model, torch.optim.SGD(model.parameters(), 0.1), counts=Counts())
        alone = Counts()
        return training.others["counts"], alone, {"training": training, "alone": alone}  # type: ignore[return-value]

    forms = [{}, {"en": 10, "de": 5}, [{"a": 1}, {"b": W}], {}, {3: {"w": W}}]
    for step, form in enumerate(forms):
        inside, alone, state = create()
        with Checkpointer(tmp_path) as checkpointer:
            loaded = checkpointer.load(state)
            assert (loaded.step if loaded else None) == (step - 1 if step else None)
            if step:
                assert_same([inside.tokens, alone.tokens], [forms[step - 1]] * 2)
            inside.tokens, alone.tokens = copy.deepcopy(form), copy.deepcopy(form)
            assert checkpointer.save(step, state, "storage")
            assert checkpointer.wait()


def test_a_tensor_that_the_checkpoint_lacks_is_an_error_that_names_the_remedy(
    tmp_path: Any,
) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"weights": {"a": W}}, "storage")
        assert checkpointer.wait()
        with pytest.raises(CheckpointError, match=r"weights.b.*SingleValueState"):
            checkpointer.load({"weights": {"a": W.clone(), "b": W.clone()}})
