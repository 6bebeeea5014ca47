"""Where the common status of a job is in its stored status.

For most kinds the two are the same. A kind whose clients would misread our conditions stores the
common status in a field of its own (``JobKindInfo.status_field``).
"""

from typing import Any

import msgspec

from gangline.api.jobs.kubeflow import JobStatus
from gangline.operator.model.job import JobKindInfo, Manifest

_STATUS = msgspec.json.Decoder(JobStatus)
_COMMON_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(JobStatus))


def decode_status(kind: JobKindInfo, stored: msgspec.Raw) -> JobStatus:
    """Return the common status.

    Raises:
        msgspec.DecodeError: it cannot be decoded.
    """
    if not kind.status_field:
        return _STATUS.decode(stored)
    fields = msgspec.json.decode(stored, type=dict[str, msgspec.Raw])
    return _STATUS.decode(fields.get(kind.status_field, b"{}"))


def kind_fields(kind: JobKindInfo, stored: msgspec.Raw) -> Manifest:
    """Return the fields of a stored status that only its kind has."""
    status: Manifest = msgspec.json.decode(stored)
    if not kind.status_field:
        return _own(status)
    return {**status, kind.status_field: _own(status.get(kind.status_field) or {})}


def encode_status(kind: JobKindInfo, status: JobStatus, fields: Manifest) -> Any:
    """Return the status to store."""
    if not kind.status_field:
        return {**fields, **msgspec.to_builtins(status)} if fields else status
    common = msgspec.to_builtins(status)
    return {**fields, kind.status_field: {**fields.get(kind.status_field, {}), **common}}


def _own(status: Manifest) -> Manifest:
    return {name: value for name, value in status.items() if name not in _COMMON_FIELDS}
