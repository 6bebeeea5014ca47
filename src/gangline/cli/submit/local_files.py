"""Files of this machine that the command of a job names, where its pods do not see them."""

import os
import shlex
from collections.abc import Sequence

import msgspec

from gangline.cli.params.target import ClusterTarget
from gangline.cli.submit.code_sync import CODE_FOLDER
from gangline.cli.submit.flags import Manifest
from gangline.cli.submit.working_folder import mounts_working_folder, present_folder


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
    from gangline.sdk.manifests import iterate_roles
    from gangline.sdk.missing_files import FILES_ANNOTATION, RESUBMISSION_ANNOTATION

    command, here = " ".join(arguments[-words:]), present_folder()
    files = _named_files(command, here)
    if not files or any(mounts_working_folder(role) for _, role in iterate_roles(job)):
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
