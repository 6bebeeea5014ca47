"""Adds generated pages to the site: one for each command, and the fields of all kinds.

Tables are read as on code hosts, where a bar in a cell's code is escaped: the escape is not shown.

A hook of MkDocs (``hooks`` in mkdocs.yml). The pages are made from the command line itself and from
the schemas of the custom resource definitions, so that they cannot differ from either.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from gangline.cli.commands.completion import command_reference
from gangline.cli.main import SECTIONS

CRDS = Path(__file__).parents[1] / "deploy/crds"
UPSTREAM = frozenset(("template", "volumeClaimTemplates"))
"""Fields of Kubernetes' own types, which its documentation describes."""
COMMANDS = "reference/commands.md"
LONG_PAGE = 200
"""Lines of a command with its subcommands above which each of these has a page of its own."""
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")
_HEADING = re.compile(r"^#+ gangline (.+)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and those of commands to the navigation. MkDocs calls this for each build."""
    pages = {name: command_pages(name) for names in SECTIONS.values() for name in names}
    for texts in pages.values():
        for path, text in texts.items():
            files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, COMMANDS, content=index_page(pages)))
    files.append(File.generated(config, "reference/fields.md", content=fields_page()))
    assert config.nav is not None
    _add_to_navigation(config.nav, pages)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the escape of bars in the code of table cells, which this Markdown would show."""
    del page, config, files
    return _ROW.sub(
        lambda row: _CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0]), markdown
    )


def command_pages(name: str) -> dict[str, str]:
    """Return the pages of a command and its subcommands by path, that of the command first."""
    text = command_reference(name)
    sections = re.split(r"^(?=#+ gangline )", text, flags=re.MULTILINE)[1:]
    if len(text.splitlines()) <= LONG_PAGE:
        sections = ["\n".join(sections)]
    pages = {}
    for section in sections:
        first = _HEADING.findall(section)[0]
        body = _HEADING.sub(r"## gangline \1", section).removeprefix(f"## gangline {first}\n")
        path = f"reference/commands/{first.replace(' ', '/')}.md"
        pages[path] = f"---\ntitle: gangline {first}\n---\n# gangline {first}\n{body}"
    return pages


def index_page(pages: dict[str, dict[str, str]]) -> str:
    """Return the page that lists the commands; it has the anchors of the page that had them all."""
    lines = ["# Options of all commands", "", "`gangline reference COMMAND` prints the same texts."]
    for section, entries in SECTIONS.items():
        lines += ["", f"## {section}", "", "| command | |", "|---|---|"]
        for name, (_, purpose) in entries.items():
            links = [
                f"[{command}]({path.removeprefix('reference/')}#{_anchor(command)})"
                f"{{ #{_anchor(command)} }}"
                for path, text in pages[name].items()
                for command in _HEADING.findall(text)
            ]
            lines.append(f"| {links[0]} | {purpose} {', '.join(links[1:])} |")
    return "\n".join(lines)


def _anchor(command: str) -> str:
    return f"gangline-{command.replace(' ', '-')}"


def _add_to_navigation(items: list[Any], pages: dict[str, dict[str, str]]) -> None:
    for item in items:
        for title, value in item.items() if isinstance(item, dict) else ():
            if value == COMMANDS:
                item[title] = [COMMANDS] + [
                    {section: [{name: _entry(pages[name])} for name in names]}
                    for section, names in SECTIONS.items()
                ]
            elif isinstance(value, list):
                _add_to_navigation(value, pages)


def _entry(pages: dict[str, str]) -> str | list[str]:
    paths = list(pages)
    return paths if len(paths) > 1 else paths[0]


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
