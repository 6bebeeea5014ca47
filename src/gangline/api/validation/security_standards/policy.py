"""Levels and versions of Pod Security, from the labels of a namespace."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

from gangline.api.meta.objects import StatusCause

PREFIX = "pod-security.kubernetes.io/"
_VERSION = re.compile(r"v1\.(0|[1-9][0-9]{0,9})")


class Level(IntEnum):
    """Ordered from the most permissive to the strictest."""

    PRIVILEGED = 0
    BASELINE = 1
    RESTRICTED = 2


@dataclass(frozen=True, slots=True)
class LevelVersion:
    """A level as it was in a version of Kubernetes."""

    level: Level = Level.PRIVILEGED
    minor: int | None = None
    """Minor version of Kubernetes 1; None for the latest."""

    def __str__(self) -> str:
        version = "latest" if self.minor is None else f"v1.{self.minor}"
        return f"{self.level.name.lower()}:{version}"

    def is_at_least(self, minor: int) -> bool:
        """True if the rules that came with a minor version apply."""
        return self.minor is None or self.minor >= minor


@dataclass(frozen=True, slots=True)
class PodSecurityPolicy:
    """What a namespace demands of its pods."""

    enforce: LevelVersion = LevelVersion()
    audit: LevelVersion = LevelVersion()
    warn: LevelVersion = LevelVersion()

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> tuple[Self, list[StatusCause]]:
        """Return the policy of a namespace, and the errors in its labels.

        With an error ``enforce`` is restricted, ``audit`` and ``warn`` are privileged. Without
        labels for ``warn``, users are warned of what is enforced: of templates of refused pods.
        """
        errors: list[StatusCause] = []
        enforce = _read(labels, "enforce", Level.RESTRICTED, errors)
        audit = _read(labels, "audit", Level.PRIVILEGED, errors)
        warn = _read(labels, "warn", Level.PRIVILEGED, errors)
        refused = f"metadata.labels[{PREFIX}enforce]"
        valid = f"{PREFIX}enforce" in labels and all(each.field != refused for each in errors)
        if valid and f"{PREFIX}warn" not in labels and enforce.level > warn.level:
            given = f"{PREFIX}warn-version" in labels
            warn = replace(warn, level=enforce.level) if given else enforce
        return cls(enforce, audit, warn), errors


def _read(
    labels: Mapping[str, str], mode: str, fallback: Level, errors: list[StatusCause]
) -> LevelVersion:
    level, minor = Level.PRIVILEGED, None
    name = f"{PREFIX}{mode}"
    if (text := labels.get(name)) is not None:
        try:
            level = Level[text.upper()] if text == text.lower() else fallback
            valid = text == text.lower()
        except KeyError:
            level, valid = fallback, False
        if not valid:
            errors.append(_invalid(name, text, "must be one of privileged, baseline, restricted"))
    name = f"{PREFIX}{mode}-version"
    if (text := labels.get(name)) is not None and text != "latest":
        if found := _VERSION.fullmatch(text):
            minor = int(found[1])
        else:
            errors.append(_invalid(name, text, 'must be "latest" or "v1.x"'))
    return LevelVersion(level, minor)


def _invalid(label: str, value: str, why: str) -> StatusCause:
    message = f'Invalid value: "{value}": {why}'
    return StatusCause("FieldValueInvalid", message, f"metadata.labels[{label}]")
