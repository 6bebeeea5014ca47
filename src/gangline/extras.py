"""Which extra of the distribution brings a package that is not installed.

Launcher, agents, checkpoints and trainer need msgspec and click only, so that they fit into any
training image. What else a part of Gangline imports is in an extra.
"""

import re
from importlib.metadata import requires

_DISTRIBUTIONS = {
    "google": "protobuf",
    "jwt": "pyjwt",
    "pythonjsonlogger": "python-json-logger",
    "re2": "google-re2",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Distributions with another name than the module that they bring."""

_REQUIREMENT = re.compile(r"([\w.-]+).*\bextra == [\"']([\w-]+)")


def find_extra(module: str) -> tuple[str, str]:
    """Return the distribution that brings a module, and the smallest extra that requires it; or two
    empty texts.
    """
    top = module.partition(".")[0]
    distribution = _DISTRIBUTIONS.get(top, top.replace("_", "-"))
    extras: dict[str, set[str]] = {}
    for requirement in requires("gangline") or ():
        if match := _REQUIREMENT.match(requirement):
            extras.setdefault(match[2], set()).add(match[1].lower())
    smallest = min(
        (extra for extra, names in extras.items() if distribution in names),
        key=lambda extra: len(extras[extra]),
        default="",
    )
    return (distribution, smallest) if smallest else ("", "")


def explain_missing(error: ModuleNotFoundError) -> tuple[str, str]:
    """Return what is missing, and the command that installs it; two empty texts if it is none of
    this distribution's extras.
    """
    distribution, extra = find_extra(error.name or "")
    if not extra:
        return "", ""
    return f"the package {distribution} is not installed", f"pip install 'gangline[{extra}]'"
