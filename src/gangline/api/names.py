"""Validation of names: objects, labels, variables, ports. Each function returns a problem or None.

The names of pods and services are derived from the job's name, and the longest of them exceeds the
limit first. The validation of a job's name therefore takes its roles into account.
"""

import re
from collections.abc import Collection, Mapping
from itertools import chain, count
from typing import NamedTuple

MAX_LABEL_LENGTH = 63
MAX_SUBDOMAIN_LENGTH = 253
MAX_PORT_NAME_LENGTH = 15

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*", re.ASCII)
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_NUMBERED_PART = re.compile(r"[-._]+[^-._]*\d[^-._]*$")
_GENERATED_SUFFIX = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}$")
"""Suffix that API servers append for ``generateName``."""
_ENV = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*", re.ASCII)


class NameProblem(NamedTuple):
    """What is wrong with a name, and what would be right."""

    problem: str
    remedy: str


def validate_dns_label(name: str) -> NameProblem | None:
    """Validate a name that is one label of a DNS name (namespaces, containers, volumes)."""
    if not name:
        return NameProblem("is empty", "give a name of lower-case letters, digits and '-'")
    if not _LABEL.fullmatch(name):
        return NameProblem(
            "is not a DNS label",
            f"use lower-case letters, digits and '-', no '-' at either end{_suggest_name(name)}",
        )
    return _validate_length(name, MAX_LABEL_LENGTH)


def validate_service_name(name: str) -> NameProblem | None:
    """Validate the name of a service: a DNS label that starts with a letter."""
    if name and _LABEL.fullmatch(name) and not _SERVICE.fullmatch(name):
        return NameProblem(
            "does not start with a letter", f"start with a lower-case letter: 'job-{name}'"
        )
    return validate_dns_label(name)


def validate_dns_subdomain(name: str) -> NameProblem | None:
    """Validate the name of most objects: DNS labels separated by dots."""
    if not name:
        return NameProblem("is empty", "give a name of lower-case letters, digits, '-' and '.'")
    if not _SUBDOMAIN.fullmatch(name):
        return NameProblem(
            "is not a DNS name",
            "use lower-case letters, digits, '-' and '.', "
            f"each part with a letter or digit at both ends{_suggest_name(name)}",
        )
    return _validate_length(name, MAX_SUBDOMAIN_LENGTH)


def validate_label_key(key: str) -> NameProblem | None:
    """Validate the key of a label or annotation: a name, optionally after a DNS name and '/'."""
    prefix, slash, name = key.rpartition("/")
    if slash and (complaint := validate_dns_subdomain(prefix)):
        return NameProblem(f"has a prefix that {complaint.problem}", complaint.remedy)
    if not _QUALIFIED.fullmatch(name):
        return NameProblem(
            "is not a label key",
            "use letters, digits, '-', '_' and '.', with a letter or digit at both ends",
        )
    return _validate_length(name, MAX_LABEL_LENGTH)


def validate_label_value(value: str) -> NameProblem | None:
    """Validate the value of a label; it may be empty."""
    if value and not _QUALIFIED.fullmatch(value):
        return NameProblem(
            "is not a label value",
            "use letters, digits, '-', '_' and '.', with a letter or digit at both ends; "
            "put other text into an annotation",
        )
    return _validate_length(value, MAX_LABEL_LENGTH)


def validate_env_name(name: str) -> NameProblem | None:
    if not name:
        return NameProblem("is empty", "give the variable a name")
    if not _ENV.fullmatch(name):
        return NameProblem(
            "is not the name of a variable",
            "use letters, digits, '_', '-' and '.', and no digit first",
        )
    return None


def validate_port_name(name: str) -> NameProblem | None:
    if not _LABEL.fullmatch(name) or "--" in name or not any(c.isalpha() for c in name):
        return NameProblem(
            "is not the name of a port",
            "use lower-case letters, digits and single '-' between them, at least one letter",
        )
    return _validate_length(name, MAX_PORT_NAME_LENGTH)


def validate_job_name(name: str, replicas: Mapping[str, int]) -> NameProblem | None:
    """Validate a job's name with the names of its pods and services (``NAME-worker-99``).

    The name of a launcher's pod has no index.
    """
    if complaint := validate_service_name(name[:MAX_LABEL_LENGTH].rstrip("-") or name):
        return complaint
    suffixes = [
        "-launcher" if role.lower() == "launcher" else f"-{role.lower()}-{count - 1}"
        for role, count in replicas.items()
        if count > 0
    ]
    longest = max(suffixes, key=len, default="")
    if len(name) + len(longest) <= MAX_LABEL_LENGTH:
        return validate_service_name(name)
    return NameProblem(
        f"is too long: {name + longest!r} has {len(name) + len(longest)} characters, "
        f"and the name of a service has at most {MAX_LABEL_LENGTH}",
        f"use at most {MAX_LABEL_LENGTH - len(longest)} characters",
    )


def _validate_length(name: str, longest: int) -> NameProblem | None:
    if len(name) <= longest:
        return None
    return NameProblem(f"has {len(name)} characters", f"use at most {longest} characters")


def _suggest_name(name: str) -> str:
    likely = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f", such as {likely[:MAX_LABEL_LENGTH]!r}" if likely else ""


def free_name(name: str, taken: Collection[object]) -> str:
    """Return the name, with a number if it is taken."""
    numbered = (f"{name}-{number}" for number in count(2))
    return next(free for free in chain([name], numbered) if free not in taken)


def family_of(namespace: str, name: str, *attributes: object) -> str:
    return "/".join(map(str, (namespace, name_stem(name), *attributes)))


def name_stem(name: str) -> str:
    """Return a name without a generated suffix and without trailing numbered parts.

    ``train-7``, ``train-7b-1`` and ``train-x8k2p`` have the stem ``train``.
    """
    stem = _GENERATED_SUFFIX.sub("", name)
    while (shorter := _NUMBERED_PART.sub("", stem)) != stem and shorter:
        stem = shorter
    return stem
