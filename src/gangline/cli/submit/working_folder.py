"""The working folder of jobs from flags.

On an embedded cluster of this machine, the pods of ``submit KIND`` run in the folder from which the
command was typed: a ``hostPath`` volume at the folder's own path. It is neither copied nor
read-only, as these pods read and write the files of this machine anyway, with the same user's
rights; what a script writes there is still there after the job, as with ``torchrun``. The mount is
needed where containers have folders of their own (``/tmp``) or an image folder.

Everywhere else, and for code that is fetched (``--sync-mode``), the default is Arena's ``/root``.

Where pods do not see the files of this machine, a warning names those of the command.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click
import msgspec

from gangline.cli.params.target import ClusterTarget
from gangline.cli.submit.code_sync import CODE_FOLDER
from gangline.cli.submit.flags import Manifest, Mount

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


def mounts_working_folder(job: Mapping[str, Any]) -> bool:
    """True if pods of a job share a folder of this machine as their working folder."""
    from gangline.sdk.manifests import iterate_roles

    templates = [role["template"] for _, role in iterate_roles(job)]
    for change in job["spec"].get("runtimePatches", ()):
        jobs = change["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        templates += [entry["template"]["spec"]["template"] for entry in jobs]
    volumes = [volume for pod in templates for volume in pod.get("spec", {}).get("volumes", ())]
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


def note_local_files(
    job: Manifest, arguments: Sequence[str], words: int, target: ClusterTarget
) -> None:
    """Annotate a job with the files that its command names, and with how to send them.

    Nothing is noted if its pods share the folder of the files, or if no file is below the current
    folder.

    Args:
        job: its manifest, which is changed.
        arguments: the command line behind ``gangline``.
        words: how many words at its end are the command of the job.
        target: the cluster of the job.
    """
    from gangline.sdk.missing_files import FILES_ANNOTATION, RESUBMISSION_ANNOTATION

    command, here = " ".join(arguments[-words:]), present_folder()
    files = _named_files(command, here)
    if not files or mounts_working_folder(job):
        return
    options = [*arguments[:-words]]
    if options[-1] == "--":
        options.pop()
    folder = shlex.quote(f"{CODE_FOLDER}/{os.path.basename(os.path.realpath(here))}")
    inside = f"cd {folder} && {command.replace(f'{here}/', '')}"
    again = ["gangline", *options, "--sync-mode", "local", inside]
    places = {
        "-n": target.namespace,
        "--kubeconfig": target.kubeconfig,
        "--context": target.context,
    }
    chosen = [
        part for flag, value in places.items() if value in arguments for part in (flag, value)
    ]
    delete = ["gangline", "delete", job["metadata"]["name"], *chosen]
    job["metadata"].setdefault("annotations", {}).update(
        {
            FILES_ANNOTATION: msgspec.json.encode(files).decode(),
            RESUBMISSION_ANNOTATION: f"{shlex.join(delete)} && {shlex.join(again)}",
        }
    )


def _named_files(command: str, here: str) -> list[str]:
    """Return the words of a command that are files below a folder."""
    try:
        words = shlex.split(command)
    except ValueError:
        return []  # a quote that does not end: the shell of the pod reports it
    paths = [os.path.normpath(os.path.join(here, word)) for word in words]
    return [path for path in paths if path.startswith(f"{here}/") and os.path.isfile(path)]
