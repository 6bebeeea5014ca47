"""The working folder of jobs from flags.

On an embedded cluster of this machine, the pods of ``submit KIND`` run in the folder from which the
command was typed: a ``hostPath`` volume at the folder's own path. It is neither copied nor
read-only, as these pods read and write the files of this machine anyway, with the same user's
rights; what a script writes there is still there after the job, as with ``torchrun``. The mount is
needed where containers have folders of their own (``/tmp``) or an image folder.

Everywhere else, and for code that is fetched (``--sync-mode``), the default is Arena's ``/root``.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from gangline.cli.params.target import ClusterTarget
from gangline.cli.submit.flags import Mount

DEFAULT_FOLDER = "/root"
WORKING_VOLUME = "working-folder"


class WorkingFolder(NamedTuple):
    """Where the command of a job runs."""

    path: str
    """Absolute path in the pods."""
    is_local: bool = False
    """True if it is the folder of this machine with the same path, which the pods mount."""


def choose_working_folder(
    given: str, target: ClusterTarget, *, code_is_fetched: bool = False
) -> WorkingFolder:
    """Return the working folder of a job.

    Args:
        given: the value of ``--working-dir``; empty for the default.
        target: the cluster of the job.
        code_is_fetched: whether the pods fetch their code, to a subfolder of the working folder.

    Raises:
        BadParameter: a relative path, where it cannot be one of this machine.
    """
    is_relative = not given.startswith("/")
    if code_is_fetched or target.embedded_cluster() is None:
        if given and is_relative:
            raise _wrong(given, "write an absolute path of the container, such as /workspace")
        return WorkingFolder(given or DEFAULT_FOLDER)
    folder = os.path.normpath(os.path.join(present_folder(), given))
    if os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK):
        return WorkingFolder(folder, is_local=is_relative or _is_hidden(folder))
    if given and is_relative:
        raise _wrong(given, f"there is no folder {folder} that you may read")
    return WorkingFolder(given or DEFAULT_FOLDER)


def mount_folder(folder: str) -> Mount:
    """Return the volume of a folder of this machine and its mount at the same path."""
    source = {"path": os.path.realpath(folder), "type": "Directory"}
    return {"name": WORKING_VOLUME, "hostPath": source}, {
        "name": WORKING_VOLUME,
        "mountPath": folder,
    }


def mounts_working_folder(role: Mapping[str, Any]) -> bool:
    """True if the pods of a role share a folder of this machine as their working folder."""
    volumes = role["template"]["spec"].get("volumes") or []
    return any(volume["name"] == WORKING_VOLUME for volume in volumes)


def present_folder() -> str:
    """Return the current folder as the shell names it: with symbolic links.

    Raises:
        UsageError: it was deleted.
    """
    try:
        present = os.getcwd()
    except FileNotFoundError:
        problem = "the current folder was deleted; change to another one, or give --working-dir"
        raise click.UsageError(problem) from None
    named = os.environ.get("PWD", "")
    try:
        return named if os.path.isabs(named) and os.path.samefile(named, present) else present
    except OSError:
        return present


def _is_hidden(folder: str) -> bool:
    """True if containers have a folder of their own in place of one that this folder lies in."""
    from gangline.local.kubelet.runtime.paths import is_within, private_folders

    return any(is_within(folder, private) for private in private_folders())


def _wrong(given: str, problem: str) -> click.BadParameter:
    return click.BadParameter(f"{given!r}: {problem}", param_hint="--working-dir")
