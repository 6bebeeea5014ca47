"""``submit --like-history``: fills in what a manifest leaves out, from similar jobs of the past."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.target import ClusterTarget
from gangline.cli.render.output import print_status

if TYPE_CHECKING:
    from gangline.sdk.advice import BrainClient
    from gangline.sdk.kinds import JobKind

Manifest = dict[str, Any]


async def fill_from_history(
    manifests: Sequence[Manifest], target: ClusterTarget, brain_url: str = ""
) -> list[Manifest]:
    """Return the manifests with numbers that the history gives, and print each of these.

    Nothing that a manifest has is changed.

    Raises:
        CommandError: no Brain answers.
    """
    from gangline.sdk.advice import (
        BrainClient,
        BrainUnavailable,
        brain_token,
        find_brain,
    )
    from gangline.sdk.kinds import find_job_kind

    try:
        async with target.connect() as client:
            url = await find_brain(client, brain_url)
            namespace = target.namespace_of(client)
            async with BrainClient(url, await brain_token(client, url)) as brain:
                return [
                    await _filled(brain, kind, each, namespace)
                    if (kind := find_job_kind(each["apiVersion"], each["kind"]))
                    else each
                    for each in manifests
                ]
    except BrainUnavailable as error:
        hint = "Nothing was created. Without --like-history the job is submitted as it is."
        raise CommandError(str(error), hint=hint, code=ExitCode.UNREACHABLE) from error


async def _filled(
    brain: "BrainClient", kind: "JobKind", manifest: Manifest, namespace: str
) -> Manifest:
    from jsonpatch import JsonPatch

    from gangline.api.brain.job_advice import AdviceItem
    from gangline.sdk.advice import advised_patch

    metadata = {"namespace": namespace, **manifest["metadata"]}
    answer = await brain.advise({**manifest, "metadata": metadata})
    name = manifest["metadata"].get("name", "")
    filled = manifest
    for item in msgspec.convert(answer["items"], list[AdviceItem]):
        operations = advised_patch(kind, filled, [item])
        # An operation that replaces would change what the user wrote.
        if not operations or any(each["op"] != "add" for each in operations):
            continue
        filled = JsonPatch(operations).apply(filled)
        print_status(f"{name}: {item.sentence}")
    if filled is manifest:
        print_status(f"{name}: the history gives nothing that the job leaves out.")
    return filled
