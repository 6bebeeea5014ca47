"""The version in which a job was written, for kinds with several versions.

All versions of a kind have one definition and no conversion webhook. The API server stores an
object in one version and changes only its ``apiVersion`` when it is read in another. So
``apiVersion`` of a stored job does not show in which version its user wrote it. These do, the first
that is present:

1. an annotation, which the operator writes when it first observes the job;
2. the oldest entry of ``managedFields``: its writer created the job;
3. the version of the request, or of storage.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from gangline.api.jobs.kind import JobKind
from gangline.api.meta.json_objects import subobject
from gangline.api.meta.objects import Wire

VERSION_ANNOTATION = "gangline.dev/api-version"
"""On a job of a kind with several versions: the ``apiVersion`` in which it was written."""

_LATEST = datetime.max.replace(tzinfo=UTC)


class FieldsEntry(Wire):
    """Who wrote fields of an object: one entry of ``managedFields``, without the fields."""

    api_version: str = ""
    time: datetime | None = None
    subresource: str = ""


def original_api_version(
    kind: JobKind,
    api_version: str,
    annotations: Mapping[str, str],
    managed_fields: Sequence[FieldsEntry],
) -> str:
    """Return the ``apiVersion`` in which a job was written.

    Args:
        kind: the kind of the job.
        api_version: the version in which it was read or is sent.
        annotations: its annotations.
        managed_fields: the entries of its ``managedFields``.
    """
    if not kind.other_versions:
        return api_version
    if (stored := annotations.get(VERSION_ANNOTATION)) in kind.api_versions:
        return stored
    entries = [entry for entry in managed_fields if entry.api_version in kind.api_versions]
    # Times have a resolution of one second; a subresource is never written first.
    oldest = min(entries, key=_age, default=None)
    return oldest.api_version if oldest else api_version


def original_version_of(kind: JobKind, manifest: Mapping[str, Any]) -> str:
    """Return ``original_api_version`` of plain data; malformed metadata counts as absent."""
    metadata = subobject(manifest, "metadata")
    try:
        entries = msgspec.convert(metadata.get("managedFields") or [], list[FieldsEntry])
    except msgspec.ValidationError:
        entries = []
    written = str(manifest.get("apiVersion", ""))
    return original_api_version(kind, written, subobject(metadata, "annotations"), entries)


def _age(entry: FieldsEntry) -> tuple[datetime, bool]:
    return entry.time or _LATEST, bool(entry.subresource)
