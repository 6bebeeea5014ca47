"""Compares our CustomResourceDefinitions with those of the projects whose kinds they define.

A client that is compiled with upstream's types relies on what the API server stores, writes and
refuses: fields, defaults, enumerations, required fields, printer columns, scale and status
subresources. Each of these is a fact of a definition, such as ``default spec.suspend``. Further
fields of ours are no difference. ``upstream_definitions.toml`` has upstream's facts, and the
differences that are intended, each with its reason.

Pod templates and other types of Kubernetes itself are left out: they are compared with Kubernetes'
own types elsewhere.

    tools/compare_definitions.py             compare with the recorded facts
    tools/compare_definitions.py FILE...     compare with the definitions in these files
"""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from gangline.api import crd

RECORD = Path(__file__).with_name("upstream_definitions.toml")

Json: TypeAlias = dict[str, Any]
Facts: TypeAlias = dict[str, Any]
"""Values by the name of a fact: its sort, and the field or column."""

_CORE_FIELDS = frozenset(
    {
        "affinity", "conditions", "env", "envs", "imagePullSecrets", "labelMatch", "labelSelector",
        "metadata", "metrics", "resourcesPerNode", "schedulingGates", "securityContext",
        "templates", "tolerations", "volumeMounts", "volumes",
    }
)  # fmt: skip
"""Fields with types of Kubernetes itself."""


def definition_facts(manifest: Mapping[str, Any]) -> dict[str, Facts]:
    """Return the facts of each version of a definition, by ``NAME/VERSION``."""
    return {
        f"{manifest['metadata']['name']}/{version['name']}": {
            **{
                f"column {column['name']}": column["jsonPath"]
                for column in version.get("additionalPrinterColumns") or ()
            },
            **{
                f"subresource {name}": value
                for name, value in (version.get("subresources") or {}).items()
            },
            **dict(_field_facts(version["schema"]["openAPIV3Schema"], "")),
        }
        for version in manifest["spec"]["versions"]
    }


def _field_facts(schema: Json, path: str) -> Iterator[tuple[str, Any]]:
    fields: Json = schema.get("properties") or {}
    if {"containers", "restartPolicy"} <= fields.keys():
        return
    for name, field in fields.items():
        here = f"{path}.{name}" if path else name
        yield f"field {here}", True
        if name in _CORE_FIELDS:
            continue
        if name in (schema.get("required") or ()):
            yield f"required {here}", True
        if "default" in field:
            yield f"default {here}", field["default"]
        if "enum" in field:
            yield f"enum {here}", sorted(field["enum"])
        yield from _field_facts(field, here)
    for key, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from _field_facts(schema[key], path + suffix)


def recorded_facts(record: Mapping[str, Any]) -> dict[str, Facts]:
    """Return upstream's facts of each version of a definition, as ``definition_facts`` does."""
    definitions = record["definitions"]
    return {
        name: {
            **{f"column {column}": path for column, path in given.get("columns", {}).items()},
            **{
                f"subresource {part}": value
                for part, value in given.get("subresources", {}).items()
            },
            **{
                f"field {parent}.{field}": True
                for entry in record["fields"]
                if name in entry["of"]
                for parent, fields in entry["names"].items()
                for field in fields.split()
            },
            **{f"required {path}": True for path in given.get("required", ())},
            **{f"default {path}": value for path, value in given.get("defaults", {}).items()},
            **{f"enum {path}": sorted(values) for path, values in given.get("enums", {}).items()},
        }
        for name, alias in definitions.items()
        for given in [definitions[alias.get("same_as", name)]]
    }


def differences(ours: Mapping[str, Facts], theirs: Mapping[str, Facts]) -> Iterator[str]:
    """Yield each fact that differs, as ``NAME/VERSION FACT: OURS, upstream THEIRS``."""
    for name in sorted(theirs):
        own, other = ours.get(name, {}), theirs[name]
        for fact in sorted(own.keys() | other.keys()):
            is_further_field = fact.startswith("field ") and fact not in other
            if own.get(fact) != other.get(fact) and not is_further_field:
                yield f"{name} {fact}: {own.get(fact)}, upstream {other.get(fact)}"


def unexplained(found: list[str], record: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the differences without a reason, and the reasons without a difference."""
    patterns = [pattern for entry in record["differences"] for pattern in entry["facts"]]

    def matches(difference: str, pattern: str) -> bool:
        return fnmatchcase(difference.partition(": ")[0], pattern.replace("[", "[[]"))

    return (
        [line for line in found if not any(matches(line, pattern) for pattern in patterns)],
        [pattern for pattern in patterns if not any(matches(line, pattern) for line in found)],
    )


def our_facts() -> dict[str, Facts]:
    """Return the facts of the definitions that are generated now."""
    facts: dict[str, Facts] = {}
    for manifest in crd.crd_manifests().values():
        facts |= definition_facts(manifest)
    return facts


def main(paths: list[str]) -> int:
    """Print the differences without a reason, one a line."""
    record = tomllib.loads(RECORD.read_text())
    theirs = recorded_facts(record)
    if paths:
        manifests = (m for path in paths for m in yaml.safe_load_all(Path(path).read_text()) if m)
        theirs = {name: facts for m in manifests for name, facts in definition_facts(m).items()}
    lines, outdated = unexplained(list(differences(our_facts(), theirs)), record)
    if not paths:
        lines += [f"{pattern}: a reason without a difference" for pattern in outdated]
    print("\n".join(lines) or "No difference without a reason.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
