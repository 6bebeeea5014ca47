"""Reads the guides for people who change from another tool (``docs/coming-from``)."""

import re
from pathlib import Path

GUIDES = Path(__file__).parents[3] / "docs/coming-from"


def text_of(guide: str) -> str:
    """The text of a guide, such as ``torchrun``."""
    return (GUIDES / f"{guide}.md").read_text(encoding="utf-8")


def table(guide: str, heading: str) -> list[tuple[str, str]]:
    """The first two columns of the last table under a heading, without its own heading row."""
    section = re.search(
        rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text_of(guide), re.MULTILINE | re.DOTALL
    )
    assert section, heading
    rows = re.findall(r"^\| (.*?) \| (.*?) \|", section[1], re.MULTILINE)
    start = max(number for number, row in enumerate(rows) if not row[0].startswith("`"))
    return rows[start + 1 :] if start + 1 < len(rows) else rows


def flags(guide: str, heading: str) -> dict[str, str]:
    """Flags of a table, without their short forms, and what it states about them."""
    return {
        re.search(r"`(--[\w-]+)`", flag)[1]: meaning  # type: ignore[index]
        for flag, meaning in table(guide, heading)
        if "`--" in flag
    }


def quoted(text: str) -> list[str]:
    """Names in code type."""
    return re.findall(r"`([^`]+)`", text)


def executed_guides() -> list[Path]:
    """The guides in English, whose first block of commands a test executes.

    The job of the omitted one is that of Getting Started, which another test runs.
    """
    english = (page for page in GUIDES.glob("*.md") if not page.name.endswith(".zh.md"))
    return sorted(page for page in english if page.stem != "training-operator")
