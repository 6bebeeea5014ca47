"""Adds generated pages to the site: options of all commands, and fields of all kinds.

A hook of MkDocs (``hooks`` in mkdocs.yml). The pages are made from the command line itself and from
the schemas of the custom resource definitions, so that they cannot differ from either.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from gangline.cli.main import InvocationState, gangline

CRDS = Path(__file__).parents[1] / "deploy/crds"
UPSTREAM = frozenset(("template", "volumeClaimTemplates"))
"""Fields of Kubernetes' own types, which its documentation describes."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages. MkDocs calls this once for each build."""
    for name, text in (("commands", commands_page()), ("fields", fields_page())):
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def commands_page() -> str:
    """Return the options of all commands.

    Raises:
        RuntimeError: ``gangline reference`` has failed.
    """
    result = CliRunner().invoke(gangline, ["reference"], obj=InvocationState())
    if result.exit_code:
        raise RuntimeError(result.output) from result.exception
    return f"# Options of all commands\n\n`gangline reference` prints this page.\n\n{result.output}"


def fields_page() -> str:
    """Return the fields of all kinds, by group and kind."""
    lines = ["# Fields of all kinds", "", "`kubectl explain` prints the same texts.", ""]
    for file in sorted(CRDS.glob("*.yaml")):
        definition = yaml.load(file.read_text(), yaml.CSafeLoader)["spec"]
        for version in definition["versions"]:
            kind = definition["names"]["kind"]
            lines += [f"## {kind} ({definition['group']}/{version['name']})", ""]
            lines += ["| field | type | |", "|---|---|---|"]
            schema = version["schema"]["openAPIV3Schema"]
            for name in ("spec", "status"):
                lines += fields(schema["properties"].get(name, {}), name)
            lines.append("")
    return "\n".join(lines)


def fields(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield a row of the table for each field below a path."""
    for name, field in sorted(schema.get("properties", {}).items()):
        place = f"{path}.{name}"
        text = " ".join(field.get("description", "").split()).replace("|", "\\|")
        allowed = ", ".join(f"`{each}`" for each in field.get("enum", ()))
        yield f"| `{place}` | {type_of(field)} | {text}{f' One of {allowed}.' if allowed else ''} |"
        if name in UPSTREAM:
            continue
        yield from fields(field, place)
        yield from fields(field.get("items", {}), f"{place}[]")
        entries = field.get("additionalProperties")
        yield from fields(entries if isinstance(entries, dict) else {}, f"{place}.*")


def type_of(field: dict[str, Any]) -> str:
    """Return the type of a field in words."""
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    name = str(field.get("type", "any"))
    return f"list of {type_of(field['items'])}" if name == "array" else name
