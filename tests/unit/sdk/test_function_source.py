"""What a function uses travels with it, or is named before the job is submitted."""

import collections
import json
import math as maths
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from gangline.sdk.functions.job import NoResult, is_result, read_results, render_script
from gangline.sdk.functions.source import UnsupportedFunction
from unit.sdk import test_functions

FACTORS = (2, {"a": 3.5})
LOCK = threading.Lock()


def logged(function: Callable[[float], float]) -> Callable[[float], float]:
    @wraps(function)
    def call(*arguments: Any) -> float:
        print("called", function.__name__)
        return function(*arguments)

    return call


@dataclass
class Pair:
    left: float
    right: "float" = FACTORS[0]

    def total(self) -> float:
        return twice(self.left) / 2 + self.right


@contextmanager
def announced(text: str) -> Iterator[None]:
    print("begin", text)
    yield


@logged
def twice(number: float) -> float:
    return number * FACTORS[0]


def computes(number: float) -> dict[str, Any]:
    with announced("work"):
        counted = collections.Counter(name for name in ("x", "y", "x"))
        return {"pair": Pair(maths.floor(number)).total(), "count": dict(counted)}


def is_even(number: int) -> bool:
    return number == 0 or is_odd(number - 1)


def is_odd(number: int) -> bool:
    return number != 0 and is_even(number - 1)


def locks() -> None:
    with LOCK:
        pass


def misspells() -> None:
    undefined_name()  # type: ignore[name-defined]  # noqa: F821


def yields() -> Iterator[int]:
    yield 1


def uses_a_local_module() -> None:
    test_functions.train(1)


def returns_a_lock() -> Any:
    return threading.Lock()


def returns_much() -> bytes:
    print("partial", end="")
    return bytes(20_000)


def outcome(function: Callable[..., object], **arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run the program of a function in a folder without the caller's modules."""
    return subprocess.run(
        [sys.executable, "-c", render_script(function, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={"RANK": "3"},
    )


def test_functions_classes_constants_and_imports_travel() -> None:
    done = outcome(computes, number=2.5)
    assert done.returncode == 0, done.stderr
    assert read_results(done.stdout.splitlines()) == {3: {"pair": 4.0, "count": {"x": 2, "y": 1}}}
    assert [line for line in done.stdout.splitlines() if not is_result(line)] == [
        "begin work",
        "called twice",
    ]


def test_functions_that_call_each_other_travel() -> None:
    assert read_results(outcome(is_even, number=10).stdout.splitlines()) == {3: True}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (locks, "uses the global LOCK, a lock that cannot be sent: pass it as an argument"),
        (misspells, "misspells uses undefined_name, which is not defined"),
        (yields, "is a generator or a coroutine"),
        (uses_a_local_module, "the module unit.sdk.test_functions, which pods do not have"),
    ],
)
def test_what_cannot_travel_is_named(
    function: Callable[..., object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    with pytest.raises(UnsupportedFunction) as refused:
        render_script(function, {})
    assert message in str(refused.value)


def test_result_that_cannot_be_pickled_fails_with_its_type() -> None:
    done = outcome(returns_a_lock)
    assert done.returncode == 1
    assert "TypeError: the result is a lock that cannot be pickled" in done.stderr


def test_large_result_has_several_lines_and_a_missing_one_is_an_error() -> None:
    lines = outcome(returns_much).stdout.splitlines()
    assert len(lines) > 5
    assert lines[0].startswith("partial")
    assert read_results(lines) == {3: bytes(20_000)}
    with pytest.raises(NoResult, match="rank 3"):
        read_results(lines[:-1])


def test_result_of_a_second_attempt_counts() -> None:
    first, second = (outcome(is_even, number=each).stdout.splitlines() for each in (1, 2))
    assert read_results([*first, *second]) == {3: True}


def test_function_without_a_result_prints_nothing() -> None:
    assert json.loads(outcome(print_nothing).stdout or "[]") == []


def print_nothing() -> None:
    pass
