"""Which containers can start from a fork server, and from which one."""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from gangline.forkserver import PLACEHOLDER
from gangline.local.kubelet.runtime.interface import ContainerPlan, WarmEnvironment

_INTERPRETER = re.compile(r"python(3(\.\d+)?)?")
_OPTIONS = frozenset({"-u", "-B", "-O", "-OO", "-s"})
"""Options of the interpreter that have no value, and under which a server can be started."""
_PROGRAM_OPTIONS = ("-m", "-c")
_FIXED_PREFIXES = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LANG", "LC_", "COVERAGE_", "SETUPTOOLS_")
_FIXED_NAMES = frozenset({"PATH", "HOME", "TZ", "TZDIR"})
_MAX_BYTES = 1 << 20
"""Length of command and environment. The kernel refuses a longer one, with an error of its own."""
_MAX_TEXT_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class ServerKey:
    """What an interpreter reads before its first import: all programs of a server share it."""

    interpreter: tuple[str, ...]
    """The name of the interpreter, and its options."""

    modules: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    """Its environment, sorted."""


def default_key(environment: WarmEnvironment) -> ServerKey | None:
    """The key of ``python`` or ``python3`` without options; None if the environment has none."""
    path = environment.variables.get("PATH", "")
    for name in ("python", "python3"):
        if shutil.which(name, path=path):
            return _key((name,), environment, environment.variables)
    return None


def server_key(plan: ContainerPlan) -> ServerKey | None:
    """The key of the server from which a container can be forked; None if it must start cold."""
    environment = plan.warm
    if environment is None or plan.root is not None or plan.tty or plan.stdin:
        return None
    interpreter = _interpreter(plan, environment)
    if interpreter is None or not _is_short(plan):
        return None
    return _key(interpreter, environment, plan.env)


def _key(
    interpreter: tuple[str, ...], environment: WarmEnvironment, variables: Mapping[str, str]
) -> ServerKey:
    own = {name: value for name, value in environment.variables.items() if not _is_fixed(name)}
    own |= {name: value for name, value in variables.items() if _is_fixed(name)}
    return ServerKey(interpreter, environment.modules, tuple(sorted(own.items())))


def _is_fixed(name: str) -> bool:
    return name in _FIXED_NAMES or name.startswith(_FIXED_PREFIXES)


def _interpreter(plan: ContainerPlan, environment: WarmEnvironment) -> tuple[str, ...] | None:
    """The interpreter of the environment and its options, if the command is one with a program."""
    command, *rest = plan.argv
    if not _INTERPRETER.fullmatch(os.path.basename(command)):
        return None
    path = environment.variables.get("PATH", "")
    own = shutil.which(os.path.basename(command), path=path)
    if own is None or ("/" in command and command != own):
        return None
    if plan.env.get("PATH", "") != path:
        return None
    options = []
    while rest and rest[0] in _OPTIONS:
        options.append(rest.pop(0))
    if not rest or (rest[0] in _PROGRAM_OPTIONS and len(rest) == 1):
        return None
    if rest[0].startswith("-") and rest[0] not in _PROGRAM_OPTIONS:
        return None
    return (command, *options)


def _is_short(plan: ContainerPlan) -> bool:
    texts = [*plan.argv, *(f"{name}={value}" for name, value in plan.env.items())]
    sizes = [len(os.fsencode(text)) + 1 for text in texts]
    longest_program = len(PLACEHOLDER) - len(plan.workdir) - 1
    return (
        sum(sizes) < _MAX_BYTES
        and max(sizes) < _MAX_TEXT_BYTES
        and all(len(text) < longest_program for text in plan.argv)
    )
