"""What a job's author is warned of: no mistake, and yet hardly meant."""

from collections.abc import Mapping
from typing import Any

from gangline.api.fielderror import FieldError
from gangline.api.validation import validate_manifest


def advise(manifest: Mapping[str, Any]) -> list[FieldError]:
    """List what the operator will not look at: fields that are not known to it."""
    known = validate_manifest(manifest, strict=False)
    return [each for each in validate_manifest(manifest) if each not in known]
