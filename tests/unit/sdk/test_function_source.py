"""What a function uses travels with it, or is named before the job is submitted."""

import collections
import json
import math
import math as maths
import pickle
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

from gangline.sdk.functions.job import render_command
from gangline.sdk.functions.program import NoResult, is_report, read_failures, read_results
from gangline.sdk.functions.source import UnsupportedFunction
from gangline.sdk.logs import LogLine
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
        [sys.executable, *render_command(function, arguments)[1:]],
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
    assert [line for line in done.stdout.splitlines() if not is_report(line)] == [
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
        render_command(function, {})
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


VALUES: list[Any] = [
    *(math.inf, -math.inf, math.nan, -0.0, 1 + 2j, complex(math.nan, -math.inf)),
    *(2**64, -(10**5000), True, None, "\ud800\0\n'\"é", b"\xff\0", bytearray(b"a"), range(3)),
    *((), (1,), [(2, [])], set(), {1, "a"}, frozenset({(3,)}), {}),
    {1: "integer", None: b"", (1, 2): {"nested": {True: 0.1}}},
]


def identity(values: Any) -> Any:
    return values


def test_arguments_arrive_unchanged() -> None:
    """Pickles are compared: NaN is not equal to itself, and 1 is equal to True."""
    back = read_results(outcome(identity, values=VALUES).stdout.splitlines())[3]
    assert list(map(pickle.dumps, back)) == list(map(pickle.dumps, VALUES))


class Rate(float):
    pass


def test_argument_that_would_change_is_refused_with_its_place() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value, place in (
        ({"a": [(0, Rate(1))]}, r"values\['a'\]\[0\]\[1\] is of the type .*Rate.*float\(\)"),
        ({(0, Path()): 1}, r"the key .* of values\[1\] is of the type .*Path"),
        ({Path()}, "an element of values is of the type"),
        (collections.OrderedDict(a=1), r"values is of the type .*OrderedDict.*dict\(\)"),
        (len, "call it in the function"),
        (endless, "contains itself"),
    ):
        with pytest.raises(UnsupportedFunction, match=place):
            render_command(identity, {"values": value})


INFINITE, SET = math.inf, {1, 2}


def uses_constants() -> object:
    return INFINITE, SET


def test_constants_without_a_form_in_json_travel() -> None:
    assert read_results(outcome(uses_constants).stdout.splitlines())[3] == (INFINITE, SET)


def third(numbers: list[int]) -> int:
    # The line below fails.
    return numbers[2]


def reads_third(numbers: list[int]) -> int:
    return third(numbers)


def test_failure_shows_the_frames_of_the_caller() -> None:
    done = outcome(reads_third, numbers=[1])
    assert done.returncode == 1
    lines = [LogLine("t", "worker-1", line) for line in done.stderr.splitlines()]
    (failure,) = read_failures(lines)
    assert (failure.rank, failure.type) == (3, "IndexError")
    assert failure.message == "list index out of range"
    line = third.__code__.co_firstlineno + 2
    assert f'File "{__file__}", line {line}, in third\n    return num' in failure.traceback
    assert failure.traceback.count("File ") == 2, failure.traceback
    assert failure.traceback == "\n".join(line.text for line in lines if not is_report(line.text))


def exits(code: str | int) -> None:
    sys.exit(code)


def test_exit_of_a_function_is_a_failure_unless_its_code_is_zero() -> None:
    failed, ended = outcome(exits, code="no data"), outcome(exits, code=0)
    assert (failed.returncode, ended.returncode) == (1, 0)
    assert "SystemExit: no data" in failed.stderr
    assert ended.stderr == ""


def test_result_of_a_second_attempt_counts() -> None:
    first, second = (outcome(is_even, number=each).stdout.splitlines() for each in (1, 2))
    assert read_results([*first, *second]) == {3: True}


def test_function_without_a_result_prints_nothing() -> None:
    assert json.loads(outcome(print_nothing).stdout or "[]") == []


def print_nothing() -> None:
    pass
