"""Files that a job lacks although they were there where it was submitted.

A client that submits a command with names of its own files stores them as annotations of the job,
with the command line that would have sent them along. When a replica fails because such a file is
missing, that command line is the remedy.
"""

from collections.abc import Mapping
from pathlib import PurePath

import msgspec

from gangline.kube.errors import ApiError
from gangline.sdk.client import JobClient

FILES_ANNOTATION = "gangline.dev/local-files"
"""The files that the command names, as a JSON list."""
RESUBMISSION_ANNOTATION = "gangline.dev/submit-with-files"
"""The command line that submits the job with its files."""
CAUSES = frozenset(("FileMissing", "CommandNotFound"))


async def find_resubmission(jobs: JobClient, name: str, namespace: str, failure: str) -> str:
    """Return the command line that submits a job with the file that it lacks, as a sentence.

    Args:
        jobs: reads the job.
        name: the job.
        namespace: its namespace.
        failure: the message of the failure, with the name of the missing file.

    Returns:
        Empty if the missing file is not one of the submission.
    """
    try:
        annotations = (await jobs.manifest(name, namespace))["metadata"].get("annotations") or {}
    except ApiError:
        return ""
    return resubmission_sentence(annotations, failure)


def resubmission_sentence(annotations: Mapping[str, str], failure: str) -> str:
    """Return the remedy for a message with the name of a missing file; see find_resubmission."""
    try:
        files = msgspec.json.decode(annotations.get(FILES_ANNOTATION, "[]"), type=list[str])
    except msgspec.DecodeError:
        return ""
    missing = next((file for file in files if PurePath(file).name in failure), "")
    command = annotations.get(RESUBMISSION_ANNOTATION, "")
    if not missing or not command:
        return ""
    return f"{missing} is on the machine of the submission. This command sends it along: {command}"
