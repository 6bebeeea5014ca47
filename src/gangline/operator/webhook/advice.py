"""What a job's author is warned of: no mistake, and yet hardly meant."""

from collections.abc import Mapping
from typing import Any

from gangline.api.advice import advise_manifest
from gangline.api.fielderror import FieldError
from gangline.api.shape import unknown_fields
from gangline.api.validation import validate_manifest


def advise(manifest: Mapping[str, Any]) -> list[FieldError]:
    """List what is worth a warning, also fields that are stored and that nobody reads."""
    return [*advise_manifest(manifest), *unknown_fields(validate_manifest(manifest))]
