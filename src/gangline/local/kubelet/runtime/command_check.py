"""Checks that a container's command exists and is executable, and that its working folder can be
entered, before anything is started.

A container engine refuses such a container with a clear message; the shell in our chain of commands
would only return 127. If the check is not certain, the container passes.
"""

import os
import stat
from pathlib import Path

from gangline.local.kubelet.runtime.interface import (
    EXIT_NOT_EXECUTABLE,
    EXIT_NOT_FOUND,
    EXIT_START_FAILED,
    REASON_CANNOT_RUN,
    ContainerPlan,
    ContainerStartError,
)
from gangline.local.kubelet.runtime.paths import is_within, private_folders, resolve_inside

_LAUNCHERS = (b"unshare: failed to execute ", b"enter: failed to execute ", b"env: ")


def check_command(
    plan: ContainerPlan, shared: tuple[Path, ...] = (), *, bare: bool = False
) -> None:
    """Raise if the command certainly does not exist or is not executable.

    ``bare`` means that the container sees the machine's own files. Raises ContainerStartError: no
    such file, it is not executable, or the kernel cannot pass a text.
    """
    variables = (text for variable in plan.env.items() for text in variable)
    texts = [*plan.argv, *variables, plan.workdir, *(mount.target for mount in plan.mounts)]
    if any("\0" in text for text in texts):
        cause = (
            "the command, a variable, the working folder or a mount path contains a NUL character"
        )
        raise _cannot_run(plan.argv[0].replace("\0", "\\0"), cause, EXIT_START_FAILED)
    check_workdir(plan, shared, bare=bare)
    command, path = plan.argv[0], plan.env.get("PATH", "")
    if "/" in command:
        candidates = [os.path.normpath(os.path.join(plan.workdir, command))]
    else:
        candidates = [os.path.join(folder, command) for folder in path.split(":") if folder]
    places = [_host_path(plan, shared, candidate, bare) for candidate in candidates]
    present = [place for place in places if os.path.lexists(place) and not os.path.isdir(place)]
    if not present:
        cause = f"executable file not found in $PATH ({path})"
        if "/" in command:
            cause = "no such file or directory"
        raise _cannot_run(command, cause, EXIT_NOT_FOUND)
    if all(os.path.isfile(place) and not os.access(place, os.X_OK) for place in present):
        raise _cannot_run(command, "permission denied (not executable)", EXIT_NOT_EXECUTABLE)


def parse_launch_failure(command: str, code: int, errors: bytes) -> ContainerStartError | None:
    """Return the failure if a container's only output is an error of its launcher, else None."""
    if code not in (EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND) or errors.count(b"\n") != 1:
        return None
    if not errors.startswith(_LAUNCHERS):
        return None
    cause = errors.decode(errors="replace").strip().rpartition(": ")[2]
    return _cannot_run(command, cause.lower(), code)


def _host_path(plan: ContainerPlan, shared: tuple[Path, ...], path: str, bare: bool) -> str:
    """The path on this machine of the container's ``path``."""
    enclosing = [mount for mount in plan.mounts if is_within(path, mount.target.rstrip("/") or "/")]
    if enclosing and not bare:
        mount = max(enclosing, key=lambda mount: len(mount.target))
        return os.path.normpath(mount.source / os.path.relpath(path, mount.target))
    if plan.root is not None:
        return str(plan.root) + resolve_inside(str(plan.root), path)
    seen = bare or any(is_within(path, str(folder)) for folder in shared)
    if not seen and any(is_within(path, folder) for folder in private_folders()):
        return os.devnull + path
    return path


def check_workdir(
    plan: ContainerPlan, shared: tuple[Path, ...] = (), *, bare: bool = False
) -> None:
    """Raise if the working folder certainly cannot be entered; a missing one is created.

    Raises ContainerStartError: it is no folder, or this user may not enter it.
    """
    place = _host_path(plan, shared, plan.workdir, bare)
    if place.startswith(f"{os.devnull}/"):
        return  # in a folder that is the container's own
    try:
        if not stat.S_ISDIR(os.stat(place).st_mode):
            cause = "not a directory"
        elif not os.access(place, os.X_OK):
            cause = "permission denied"
        else:
            return
    except FileNotFoundError:
        return
    except OSError as error:
        cause = (error.strerror or "").lower()
    text = f'unable to start container process: chdir to workingDir "{plan.workdir}": {cause}'
    raise ContainerStartError(text, REASON_CANNOT_RUN, EXIT_START_FAILED)


def _cannot_run(command: str, cause: str, code: int) -> ContainerStartError:
    message = f'unable to start container process: exec: "{command}": {cause}'
    return ContainerStartError(message, REASON_CANNOT_RUN, code)
