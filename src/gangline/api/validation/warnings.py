"""Warnings: settings in a job manifest that are valid but probably not intended.

They are no errors, so no job is refused because of them; the upstream operators accept all of them
silently. The webhook returns them as warnings, which ``kubectl`` prints; the command line prints
them too.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gangline.api.job_resources import JOB_KINDS
from gangline.api.schema.check import check_schema
from gangline.api.schema.field_error import FieldError
from gangline.api.validation.jobs import rules_of

_KINDS = {(kind.resource.api_version, kind.resource.kind): kind for kind in JOB_KINDS}


def manifest_warnings(manifest: Mapping[str, Any]) -> list[FieldError]:
    """Return the warnings for a manifest of a training job; none for objects of other kinds.

    Fields of the wrong type are skipped: ``validate_manifest`` reports them.
    """
    version, name = manifest.get("apiVersion"), manifest.get("kind")
    kind = (
        _KINDS.get((version, name)) if isinstance(version, str) and isinstance(name, str) else None
    )
    if kind is None:
        return []
    type_ = kind.resource.type
    try:
        job = msgspec.convert(check_schema(manifest, type_).valid, type_)
    except msgspec.ValidationError:
        return []
    return list(rules_of(kind).list_warnings(job))
