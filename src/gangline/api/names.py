"""Validation of names: objects, labels, variables, ports. Each function returns a problem or None.

The names of pods and services are derived from the job's name, and the longest of them exceeds the
limit first. The validation of a job's name therefore takes its roles into account.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

LONGEST_LABEL = 63
LONGEST_SUBDOMAIN = 253
LONGEST_PORT_NAME = 15

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*", re.ASCII)
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_ENV = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*", re.ASCII)


class Complaint(NamedTuple):
    """What is wrong with a name, and what would be right."""

    problem: str
    remedy: str


def dns_label(name: str) -> Complaint | None:
    """Validate a name that is one label of a DNS name (namespaces, containers, volumes)."""
    if not name:
        return Complaint("is empty", "give a name of lower-case letters, digits and '-'")
    if not _LABEL.fullmatch(name):
        return Complaint(
            "is not a DNS label",
            f"use lower-case letters, digits and '-', no '-' at either end{_like(name)}",
        )
    return _length(name, LONGEST_LABEL)


def dns_service(name: str) -> Complaint | None:
    """Validate the name of a service: a DNS label that starts with a letter."""
    if name and _LABEL.fullmatch(name) and not _SERVICE.fullmatch(name):
        return Complaint(
            "does not start with a letter", f"start with a lower-case letter: 'job-{name}'"
        )
    return dns_label(name)


def dns_subdomain(name: str) -> Complaint | None:
    """Validate the name of most objects: DNS labels separated by dots."""
    if not name:
        return Complaint("is empty", "give a name of lower-case letters, digits, '-' and '.'")
    if not _SUBDOMAIN.fullmatch(name):
        return Complaint(
            "is not a DNS name",
            "use lower-case letters, digits, '-' and '.', "
            f"each part with a letter or digit at both ends{_like(name)}",
        )
    return _length(name, LONGEST_SUBDOMAIN)


def label_key(key: str) -> Complaint | None:
    """Validate the key of a label or annotation: a name, optionally after a DNS name and '/'."""
    prefix, slash, name = key.rpartition("/")
    if slash and (complaint := dns_subdomain(prefix)):
        return Complaint(f"has a prefix that {complaint.problem}", complaint.remedy)
    if not _QUALIFIED.fullmatch(name):
        return Complaint(
            "is not a label key",
            "use letters, digits, '-', '_' and '.', with a letter or digit at both ends",
        )
    return _length(name, LONGEST_LABEL)


def label_value(value: str) -> Complaint | None:
    """Validate the value of a label; it may be empty."""
    if value and not _QUALIFIED.fullmatch(value):
        return Complaint(
            "is not a label value",
            "use letters, digits, '-', '_' and '.', with a letter or digit at both ends; "
            "put other text into an annotation",
        )
    return _length(value, LONGEST_LABEL)


def env_name(name: str) -> Complaint | None:
    if not name:
        return Complaint("is empty", "give the variable a name")
    if not _ENV.fullmatch(name):
        return Complaint(
            "is not the name of a variable",
            "use letters, digits, '_', '-' and '.', and no digit first",
        )
    return None


def port_name(name: str) -> Complaint | None:
    if not _LABEL.fullmatch(name) or "--" in name or not any(c.isalpha() for c in name):
        return Complaint(
            "is not the name of a port",
            "use lower-case letters, digits and single '-' between them, at least one letter",
        )
    return _length(name, LONGEST_PORT_NAME)


def job_name(name: str, replicas: Mapping[str, int]) -> Complaint | None:
    """Validate a job's name together with the names of its pods and services (``NAME-worker-99``).

    Args:
        name: the job's name.
        replicas: number of replicas by role.
    """
    if complaint := dns_service(name[:LONGEST_LABEL].rstrip("-") or name):
        return complaint
    suffixes = [f"-{role.lower()}-{count - 1}" for role, count in replicas.items() if count > 0]
    longest = max(suffixes, key=len, default="")
    if len(name) + len(longest) <= LONGEST_LABEL:
        return dns_service(name)
    return Complaint(
        f"is too long: {name + longest!r} has {len(name) + len(longest)} characters, "
        f"and the name of a service has at most {LONGEST_LABEL}",
        f"use at most {LONGEST_LABEL - len(longest)} characters",
    )


def _length(name: str, longest: int) -> Complaint | None:
    if len(name) <= longest:
        return None
    return Complaint(f"has {len(name)} characters", f"use at most {longest} characters")


def _like(name: str) -> str:
    likely = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f", such as {likely[:LONGEST_LABEL]!r}" if likely else ""
