"""Warnings about jobs: valid fields that are probably not intended."""

from collections.abc import Mapping
from typing import Any

from gangline.api.advice import advise_manifest
from gangline.api.fielderror import FieldError
from gangline.api.shape import unknown_fields
from gangline.api.validation import validate_manifest


def advise(manifest: Mapping[str, Any]) -> list[FieldError]:
    """List the warnings about a manifest, including stored fields that no component reads."""
    return [*advise_manifest(manifest), *unknown_fields(validate_manifest(manifest))]
