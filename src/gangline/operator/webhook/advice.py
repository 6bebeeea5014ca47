"""Warnings about jobs: valid fields that are probably not intended."""

from collections.abc import Mapping
from typing import Any

from gangline.api.advice import manifest_warnings
from gangline.api.fielderror import FieldError
from gangline.api.shape import unknown_field_errors
from gangline.api.validation import validate_manifest


def list_warnings(manifest: Mapping[str, Any]) -> list[FieldError]:
    """List the warnings about a manifest, including stored fields that no component reads."""
    return [*manifest_warnings(manifest), *unknown_field_errors(validate_manifest(manifest))]
