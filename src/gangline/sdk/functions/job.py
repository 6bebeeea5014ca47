"""A Python function as a job: every replica runs its source, and its log brings the result back.

All that a caller may get wrong is an error before anything is submitted: the message names the
argument, what is wrong with it, and what would be right.
"""

import difflib
import inspect
import operator
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from gangline.api.names import (
    validate_dns_subdomain,
    validate_env_name,
    validate_job_name,
)
from gangline.api.quantity import QuantityError, parse_quantity
from gangline.api.resource_list import CPU, GPU, MEMORY
from gangline.api.resources import PYTORCH_JOBS
from gangline.api.schema.field_error import FieldError
from gangline.sdk.functions.literals import NoLiteral, write_literal
from gangline.sdk.functions.program import container_command
from gangline.sdk.functions.source import UnsupportedFunction, complete_source

MAX_SOURCE = 100_000
"""Limit in bytes: every kernel accepts a command argument of this length."""
LEAST_MEMORY = 1 << 20
"""Less is a number whose unit was forgotten."""
MAX_DEFAULT_NAME = 40
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""That of ``generateName``: no suffix is a word."""


class InvalidOption(ValueError):
    """An argument of ``run`` is wrong; the message names it and what would be right."""


class InvalidArguments(TypeError):
    """``run`` has no such argument, or the arguments do not fit the function."""


@dataclass(frozen=True, slots=True)
class FunctionJobOptions:
    """Image, resources and policies of the replicas of a function."""

    image: str
    workers: int = 1
    gpus: int = 0
    cpu: str | float = ""
    memory: str | float = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    retry: int = 0
    queue: str = ""


class FunctionOptions(TypedDict, total=False):
    """The fields of ``FunctionJobOptions`` but the image, as keyword arguments."""

    workers: int
    gpus: int
    cpu: str | float
    memory: str | float
    environment: Mapping[str, str]
    retry: int
    queue: str


def prepare_function_job(
    function: Callable[..., object],
    image: object,
    name: object,
    arguments: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Check the arguments of ``run``, and return the job.

    Raises:
        UnsupportedFunction: the function or an argument cannot be sent.
        InvalidArguments: there is no such option, or the arguments do not fit the function.
        InvalidOption: the name, the image or an option is wrong.
    """
    try:
        shape = read_options(function, image, options)
        own_name = check_name(name or default_name(function), shape.workers)
        return build_function_job(own_name, function, {} if arguments is None else arguments, shape)
    except (UnsupportedFunction, InvalidArguments, InvalidOption) as error:
        raise error.with_traceback(None) from None  # the message says all, in notebooks too


def read_options(
    function: Callable[..., object], image: object, options: Mapping[str, Any]
) -> FunctionJobOptions:
    """Check the keyword arguments of ``run``.

    Raises:
        InvalidArguments: there is no such argument.
        InvalidOption: a value is wrong.
    """
    names = [option.name for option in fields(FunctionJobOptions)]
    for name in options:
        if name not in names:
            raise InvalidArguments(_unknown_option(name, names, function))
    if not isinstance(image, str) or not image or image.split() != [image]:
        raise _wrong("image", image, "is not a reference of an image", "write 'python:3.12'")
    given = FunctionJobOptions(image=image, **options)
    return FunctionJobOptions(
        image=image,
        workers=_count("workers", given.workers, 1),
        gpus=_count("gpus", given.gpus, 0),
        cpu=_quantity("cpu", given.cpu, CPU),
        memory=_quantity("memory", given.memory, MEMORY),
        environment=_environment(given.environment),
        retry=_count("retry", given.retry, 0),
        queue=_queue(given.queue),
    )


def _unknown_option(name: str, names: list[str], function: Callable[..., object]) -> str:
    called = getattr(function, "__name__", "the function")
    if near := difflib.get_close_matches(name, names, 1):
        return f"run() has no argument {name!r}: did you mean {near[0]!r}?"
    return f"run() has no argument {name!r}: give arguments={{{name!r}: ...}} if it is for {called}"


def _count(name: str, value: object, least: int) -> int:
    remedy = f"give a whole number of at least {least}"
    if isinstance(value, bool):
        raise _wrong(name, value, "is not a number", remedy)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise _wrong(name, value, "is not a whole number", remedy) from None
    if number < least:
        raise _wrong(name, number, "is too small", remedy)
    return number


def _quantity(name: str, value: object, resource: str) -> str:
    if value is None or value == "":
        return ""
    try:
        quantity = parse_quantity(value)  # type: ignore[arg-type]
    except QuantityError as error:
        raise InvalidOption(f"{name}: {error}") from None
    example = {CPU: "'500m' or 2", MEMORY: "'4Gi'"}[resource]
    if quantity.nano <= 0:
        raise _wrong(name, value, "is not positive", f"give an amount such as {example}")
    if resource == MEMORY and quantity.value < LEAST_MEMORY:
        problem = f"is only {quantity.value} bytes"
        raise _wrong(name, value, problem, f"give a number with a unit, such as {example}")
    return str(quantity)


def _environment(variables: object) -> dict[str, str]:
    if not isinstance(variables, Mapping):
        raise _wrong("environment", variables, "is not a mapping", "give {'NAME': 'value'}")
    for name, value in variables.items():
        place = f"environment[{name!r}]"
        if not isinstance(name, str):
            raise _wrong(place, name, "is not a text", "give the name of a variable as a text")
        if problem := validate_env_name(name):
            raise _wrong(place, name, *problem)
        if not isinstance(value, str):
            raise _wrong(place, value, "is not a text", f"give {str(value)!r}")
        if "\0" in value:
            raise _wrong(place, value, "has a zero character", "remove it")
    return dict(variables)


def _queue(name: object) -> str:
    if not isinstance(name, str):
        raise _wrong("queue", name, "is not a text", "give the name of a queue")
    if name and (problem := validate_dns_subdomain(name)):
        raise _wrong("queue", name, *problem)
    return name


def _wrong(name: str, value: object, problem: str, remedy: str) -> InvalidOption:
    return InvalidOption(str(FieldError(name, value, problem, remedy)))


def default_name(function: Callable[..., object]) -> str:
    """Return the name of a function as that of a job."""
    words = re.sub(r"[^a-z0-9]+", "-", getattr(function, "__name__", "").lower())
    name = words[:MAX_DEFAULT_NAME].strip("-")
    return name if name[:1].isalpha() else f"job-{name}".strip("-")


def with_suffix(name: str) -> str:
    """Return a name with a random suffix, for a job of a function that has a job already."""
    return f"{name}-{''.join(random.choices(_SUFFIX_ALPHABET, k=5))}"


def check_name(name: object, workers: int) -> str:
    """Return the name of a job.

    Raises:
        InvalidOption: it cannot be that of a job with so many workers.
    """
    if not isinstance(name, str):
        raise _wrong("name", name, "is not a text", "give the name of the job")
    roles = {"Master": 1, "Worker": workers - 1}
    if problem := validate_job_name(name, roles):
        raise _wrong("name", name, *problem)
    return name


def build_function_job(
    name: str,
    function: Callable[..., object],
    arguments: Mapping[str, Any],
    shape: FunctionJobOptions,
) -> dict[str, Any]:
    """Return a PyTorchJob that calls a function in each of its pods, one of them the master.

    Raises:
        UnsupportedFunction: the function cannot be sent as source (``complete_source``).
        InvalidArguments: the arguments do not fit the function.
    """
    amounts: dict[str, Any] = {"cpu": shape.cpu, "memory": shape.memory, GPU: shape.gpus}
    amounts = {key: value for key, value in amounts.items() if value}
    command = render_command(function, arguments)
    container: dict[str, Any] = {
        "name": "pytorch",
        "image": shape.image,
        "command": list(map(_unexpanded, command)),
        "env": [
            {"name": key, "value": _unexpanded(value)} for key, value in shape.environment.items()
        ],
    }
    if amounts:
        container["resources"] = {"requests": amounts, "limits": dict(amounts)}
    replica = {
        "restartPolicy": "OnFailure" if shape.retry else "Never",
        "template": {"spec": {"containers": [container]}},
    }
    replicas = {"Master": {"replicas": 1, **replica}}
    if shape.workers > 1:
        replicas["Worker"] = {"replicas": shape.workers - 1, **replica}
    policy: dict[str, Any] = {"cleanPodPolicy": "None", "backoffLimit": shape.retry}
    if shape.queue:
        policy["schedulingPolicy"] = {"queue": shape.queue}
    return {
        "apiVersion": PYTORCH_JOBS.api_version,
        "kind": PYTORCH_JOBS.kind,
        "metadata": {"name": name},
        "spec": {"runPolicy": policy, "pytorchReplicaSpecs": replicas},
    }


def _unexpanded(text: str) -> str:
    """Return a text of a container that arrives as it is: kubelets replace ``$(NAME)`` in it."""
    return text.replace("$", "$$")


def render_command(function: Callable[..., object], arguments: Mapping[str, Any]) -> list[str]:
    """Return a command that defines a function, calls it, and reports its result.

    Raises:
        UnsupportedFunction: see ``complete_source``; or the source is too large, or an argument is
            not plain data.
        InvalidArguments: the arguments do not fit the function.
    """
    source = complete_source(function)
    called = function.__name__
    _check_signature(function, arguments)
    try:
        written = {key: write_literal(value, key) for key, value in arguments.items()}
    except NoLiteral as error:
        raise UnsupportedFunction(f"argument of {called}: {error}") from None
    command = container_command(source, called, written)
    if any(len(part.encode(errors="surrogatepass")) > MAX_SOURCE for part in command):
        raise UnsupportedFunction(
            f"{called} and its arguments are too large to be sent: more than {MAX_SOURCE} bytes; "
            "add code to the image, and read data from a volume"
        )
    return command


def _check_signature(function: Callable[..., object], arguments: object) -> None:
    called = function.__name__
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise InvalidArguments(
            f"arguments of {called} must be a mapping of names to values: {{'name': 1}}"
        )
    signature = inspect.signature(function, follow_wrapped=False)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if kinds == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        # A decorator that passes everything on: what it wraps names the arguments.
        signature = inspect.signature(function)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise InvalidArguments(
            f"{called}{signature}: {error}; give arguments={{'name': value}}"
        ) from None
