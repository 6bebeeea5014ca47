"""The commands that the documentation shows, as a reader would type them."""

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = (*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md")))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELLS = {"", "bash", "console", "sh", "shell"}
_PLACEHOLDERS = re.compile(r"\[[A-Z -]+\]|…|\.\.\.|\bKIND\b")


def shell_lines(page: Path) -> Iterator[str]:
    """Yield the lines of indented and fenced blocks, without remarks; continued lines joined."""
    text = page.read_text(encoding="utf-8")
    blocks = [body for language, body in _FENCE.findall(text) if language in _SHELLS]
    indented = re.findall(r"(?:^(?: {4}.*)?\n)+", _FENCE.sub("", text), re.MULTILINE)
    for block in (*blocks, *(re.sub(r"^ {4}", "", each, flags=re.MULTILINE) for each in indented)):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            yield re.sub(r"(^|\s)#.*", "", line).removeprefix("$ ").rstrip()


def mentioned(page: Path) -> Iterator[str]:
    """Yield the commands that sentences name; they may lack their arguments."""
    yield from re.findall(r"`(gangline [^`\n]+)`", _FENCE.sub("", page.read_text(encoding="utf-8")))


def gangline_commands(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the words behind ``gangline`` of every command in lines of a shell."""
    for line in lines:
        for part in re.split(r"&&|\|\||[|;]", line):
            words = part.strip()
            if not words.startswith("gangline ") or _PLACEHOLDERS.search(words):
                continue
            try:
                yield shlex.split(re.sub(r"\s[<>].*", "", words))[1:]
            except ValueError:
                continue  # a quote that closes behind a separator


_SETS_UP = re.compile(r"^(make|git|\. )")
_OUTPUT = re.compile(r"^( |The job |helm )")


def executed_commands(page: Path) -> list[str]:
    """The commands of README and Getting Started that a test executes.

    Omitted are those that set up the environment, and printed output.
    """
    lines = [line for line in shell_lines(page) if line and not _OUTPUT.match(line)]
    return [line for line in lines if not _SETS_UP.match(line)]


def first_block(page: Path) -> list[str]:
    """The commands of a guide's first indented block, which a test executes."""
    found = re.search(r"(?:^ {4}\S.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [line.strip() for line in found[0].splitlines()] if found else []
