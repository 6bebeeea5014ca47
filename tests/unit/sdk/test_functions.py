"""Functions that can be sent as source, and functions that cannot."""

import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace

import pytest

import gangline.sdk
from gangline.api.names import validate_job_name
from gangline.api.validation.validate import validate_manifest
from gangline.local.kubelet.configuration import expand_references
from gangline.sdk.functions.job import (
    FunctionJobOptions,
    InvalidOption,
    build_function_job,
    default_name,
    prepare_function_job,
    render_command,
)
from gangline.sdk.functions.source import UnsupportedFunction


def train(epochs: int, rate: float = 0.1) -> None:
    print(f"epochs {epochs}, rate {rate}")


def test_a_function_is_called_elsewhere_with_its_arguments() -> None:
    command = render_command(train, {"epochs": 3, "rate": 0.5})
    done = subprocess.run(
        [sys.executable, *command[1:]], capture_output=True, text=True, check=True
    )
    assert done.stdout == "epochs 3, rate 0.5\n"


def test_a_function_within_another_travels_if_it_needs_nothing_around_it() -> None:
    def inner() -> None:
        print("inner")

    command = render_command(inner, {})
    done = subprocess.run(
        [sys.executable, *command[1:]], capture_output=True, text=True, check=True
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
        (train, {"epochs": object()}, "epochs is of the type object"),
        (train, {"epochs": "x" * 200_000}, "too large"),
    ],
    ids=["lambda", "closure", "built in", "object", "large"],
)
def test_unsupported_functions_are_reported(
    function: Callable[..., object], arguments: dict[str, object], fragment: str
) -> None:
    with pytest.raises(UnsupportedFunction, match=fragment):
        render_command(function, arguments)


def test_a_function_becomes_a_job_without_mistakes() -> None:
    shape = FunctionJobOptions(
        "i:1", workers=3, gpus=1, environment={"A": "b"}, retry=2, queue="team"
    )
    job = build_function_job("digits", train, {"epochs": 1}, shape)
    assert validate_manifest(job) == []
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert (replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == (1, 2)
    assert job["spec"]["runPolicy"]["schedulingPolicy"] == {"queue": "team"}
    one = build_function_job("one", train, {"epochs": 1}, FunctionJobOptions("i"))
    assert set(one["spec"]["pytorchReplicaSpecs"]) == {"Master"}


def logged(function: Callable[..., object]) -> Callable[..., object]:
    @wraps(function)
    def call(*arguments: object, **named: object) -> object:
        return function(*arguments, **named)

    return call


@pytest.mark.parametrize("function", [train, logged(train)], ids=["plain", "decorated"])
@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ({}, "missing a required argument: 'epochs'"),
        ({"epochs": 1, "rte": 2}, "unexpected keyword argument 'rte'"),
        ([3], "must be a mapping"),
        ({1: 3}, "must be a mapping"),
    ],
)
def test_arguments_that_do_not_fit_the_function_are_refused(
    function: Callable[..., object], arguments: dict[str, object], fragment: str
) -> None:
    with pytest.raises(TypeError, match=f"train.*{fragment}"):
        render_command(function, arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"workers": count}, "workers: ") for count in (0, -3, True, 2.0, "2", None)),
        *(({name: -1}, f"{name}: -1 is too small") for name in ("gpus", "retry")),
        *(({"gpus": count}, "gpus: ") for count in (False, 0.5, "1")),
        *(({"cpu": amount}, "cpu: ") for amount in ("two", "-1", 0, float("nan"), True, "1 Gi")),
        *(({"memory": amount}, "memory: ") for amount in ("4GB", "-4Gi", float("inf"), [4])),
        ({"memory": 4}, "memory: 4 is only 4 bytes; give a number with a unit, such as '4Gi'"),
        ({"memory": "100m"}, "memory: "),
        *(({"name": name}, "name: ") for name in ("Digits", "a_b", "-a", "a.b", "x" * 60, "1a", 7)),
        *(({"image": image}, "image: ") for image in ("", " ", "python 3", None)),
        ({"environment": ["A=b"]}, "environment: .* is not a mapping"),
        ({"environment": {"SEED": 8}}, r"environment\['SEED'\]: 8 is not a text; give '8'"),
        ({"environment": {"A=B": "c"}}, r"environment\['A=B'\]: "),
        ({"environment": {1: "c"}}, r"environment\[1\]: "),
        ({"queue": "Team A"}, "queue: "),
    ],
)
def test_wrong_option_is_refused_by_name(options: dict[str, object], message: str) -> None:
    given = {"image": "i", "name": "", **options}
    image, name = given.pop("image"), given.pop("name")
    with pytest.raises(InvalidOption, match=f"^{message}"):
        prepare_function_job(train, image, name, {"epochs": 1}, given)


def test_unknown_option_is_refused_with_the_likely_one() -> None:
    for option, remedy in (("worker", "mean 'workers'"), ("epochs", r"arguments=\{'epochs': ")):
        with pytest.raises(TypeError, match=f"no argument '{option}': .*{remedy}"):
            prepare_function_job(train, "i", "", {"epochs": 1}, {option: 2})


def test_numbers_are_amounts_and_texts_are_not_expanded() -> None:
    environment = {"A": "$(HOME) $$"}
    options = {"cpu": 0.5, "memory": "1.5Gi", "environment": environment}
    job = prepare_function_job(train, "i", "", {"epochs": "$(HOME) $$"}, options)
    assert validate_manifest(job) == []
    replicas = job["spec"]["pytorchReplicaSpecs"]
    container = replicas["Master"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "1536Mi"}
    assert expand_references(container["env"][0]["value"], {"HOME": "/root"}) == "$(HOME) $$"
    command = [expand_references(part, {"HOME": "/root"}) for part in container["command"]]
    assert command == render_command(train, {"epochs": "$(HOME) $$"})


def test_default_name_is_valid_for_any_function() -> None:
    long = "a_very_long_name_of_a_function_that_trains_a_model"
    functions = [SimpleNamespace(__name__=name) for name in ("train", "_1", "größe", "_", long)]
    names = [default_name(function) for function in functions]  # type: ignore[arg-type]
    assert names[:4] == ["train", "job-1", "gr-e", "job"]
    for name in names:
        assert validate_job_name(f"{name}-abcde", {"Worker": 5000}) is None


def test_the_clients_are_named_by_the_package() -> None:
    assert gangline.sdk.Client.__name__ == "Client"
    with pytest.raises(AttributeError):
        gangline.sdk.Nothing  # noqa: B018
