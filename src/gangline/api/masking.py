"""Masks secrets in manifests and in lines of logs, before they are stored or shown to others.

A value is secret if its name says so (``HF_TOKEN``, ``--password``), or if it has the form of a
known kind of credential. Values of secret variables of a manifest are masked in its logs as well,
since programs print their environment. Invariant: names and the rest of the text stay readable.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

SECRET_NAMES: Final = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "KEY")
"""Parts of the names of variables whose values are secret."""
MASK: Final = "[masked]"
_MIN_VALUE = 6
"""Shorter values of variables, such as ``0`` or ``true``, are words of other lines too."""
_NAME = (
    r"[\w.-]*(?:token|secret|password|passwd|credentials?|(?:api|access|secret|private)[_-]?key)"
)
_ASSIGNED = re.compile(
    rf"(?i)(?<![\w.-])({_NAME}[\"']?\s*[:=]\s*|--?{_NAME}\s+)([\"']?)([^\s\"',;}}]{{4,}})"
)
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")
_AUTHORIZATION = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_CREDENTIALS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|sk-[\w-]{20,}|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_KEY_LINE = re.compile(r"^[A-Za-z0-9+/=]{40,}$")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_ABSENT = ("managedFields", "resourceVersion", "generation", "selfLink")


def has_secret_name(variable: str) -> bool:
    """Return whether the name of a variable says that its value is secret."""
    return any(part in variable.upper() for part in SECRET_NAMES)


def mask_line(line: str, values: Collection[str] = ()) -> str:
    """Return a line of text without secrets; ``values`` are masked wherever they are."""
    for value in values:
        line = line.replace(value, MASK)
    line = _URL_CREDENTIALS.sub(MASK, line)
    line = _AUTHORIZATION.sub(rf"\1 {MASK}", line)
    line = _CREDENTIALS.sub(MASK, line)
    return _ASSIGNED.sub(rf"\1\2{MASK}", line)


def mask_lines(lines: list[str], values: Collection[str] = ()) -> list[str]:
    """Return lines without secrets, also without private keys, which span several lines."""
    masked, is_key = [], False
    for line in lines:
        if _PRIVATE_KEY.search(line):
            is_key = True
            masked.append(MASK)
        elif is_key and (_KEY_LINE.match(line.strip()) or "PRIVATE KEY-----" in line):
            is_key = "PRIVATE KEY-----" not in line
        else:
            is_key = False
            masked.append(mask_line(line, values))
    return masked


def secret_values(manifest: Any) -> frozenset[str]:
    """Return the values of the secret variables of a manifest that are written into it."""
    variables = [item for item in _variables(manifest) if has_secret_name(item["name"])]
    values = {variable["value"] for variable in variables}
    return frozenset(value for value in values if len(value) >= _MIN_VALUE and value != MASK)


def mask_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest without secrets, and without what only the API server needs."""
    values = secret_values(manifest)
    masked: dict[str, Any] = mask_data(manifest, values)
    meta = masked.get("metadata")
    if isinstance(meta, dict):
        for name in _ABSENT:
            meta.pop(name, None)
        annotations = meta.get("annotations")
        if isinstance(annotations, dict):
            annotations.pop(_LAST_APPLIED, None)
    return masked


def mask_data(value: Any, values: Collection[str]) -> Any:
    """Return plain data without secrets; ``values`` are masked wherever they are."""
    if isinstance(value, str):
        return "\n".join(mask_lines(value.split("\n"), values))
    if isinstance(value, Mapping):
        name = value.get("name")
        if isinstance(name, str) and "value" in value and has_secret_name(name):
            return {**value, "value": MASK}
        return {key: mask_data(part, values) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return _masked_arguments(value, values)
    return value


def _masked_arguments(parts: list[Any] | tuple[Any, ...], values: Collection[str]) -> list[Any]:
    """Mask a list; an argument after ``--token`` is its value."""
    masked: list[Any] = []
    for number, part in enumerate(parts):
        before = parts[number - 1] if number else None
        is_value = isinstance(part, str) and isinstance(before, str) and not part.startswith("-")
        if is_value and re.fullmatch(rf"(?i)--?{_NAME}", before or ""):
            masked.append(MASK)
        else:
            masked.append(mask_data(part, values))
    return masked


def _variables(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if isinstance(value.get("name"), str) and isinstance(value.get("value"), str):
            yield value
        for part in value.values():
            yield from _variables(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _variables(part)
