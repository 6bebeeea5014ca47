"""Functions that can be sent as source, and functions that cannot."""

import subprocess
import sys
from collections.abc import Callable

import pytest

import gangline.sdk
from gangline.api.validation.validate import validate_manifest
from gangline.sdk.functions.job import (
    FunctionJobOptions,
    UnsupportedFunction,
    build_function_job,
    render_script,
)


def train(epochs: int, rate: float = 0.1) -> None:
    print(f"epochs {epochs}, rate {rate}")


def test_a_function_is_called_elsewhere_with_its_arguments() -> None:
    script = render_script(train, {"epochs": 3, "rate": 0.5})
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "epochs 3, rate 0.5\n"


def test_a_function_within_another_travels_if_it_needs_nothing_around_it() -> None:
    def inner() -> None:
        print("inner")

    script = render_script(inner, {})
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "inner\n"


def closure() -> Callable[[], None]:
    secret = 3

    def uses_what_is_around() -> None:
        print(secret)

    return uses_what_is_around


@pytest.mark.parametrize(
    ("function", "arguments", "fragment"),
    [
        (lambda: None, {}, "define it with 'def'"),
        (closure(), {}, "secret"),
        (print, {}, "cannot be read"),
        (train, {"epochs": object()}, "plain data"),
        (train, {"epochs": "x" * 200_000}, "too large"),
    ],
    ids=["lambda", "closure", "built in", "object", "large"],
)
def test_unsupported_functions_are_reported(
    function: Callable[..., object], arguments: dict[str, object], fragment: str
) -> None:
    with pytest.raises(UnsupportedFunction, match=fragment):
        render_script(function, arguments)


def test_a_function_becomes_a_job_without_mistakes() -> None:
    shape = FunctionJobOptions(
        "i:1", workers=3, gpus=1, environment={"A": "b"}, retry=2, queue="team"
    )
    job = build_function_job("digits", train, {"epochs": 1}, shape)
    assert validate_manifest(job) == []
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert (replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == (1, 2)
    assert job["spec"]["runPolicy"]["schedulingPolicy"] == {"queue": "team"}
    assert set(
        build_function_job("one", train, {}, FunctionJobOptions("i"))["spec"]["pytorchReplicaSpecs"]
    ) == {"Master"}


def test_the_clients_are_named_by_the_package() -> None:
    assert gangline.sdk.Client.__name__ == "Client"
    with pytest.raises(AttributeError):
        gangline.sdk.Nothing  # noqa: B018
