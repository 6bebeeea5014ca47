"""Chinese pages have the commands of the English ones, in the same order, and links that work."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CHINESE = sorted([*ROOT.glob("README.zh.md"), *(ROOT / "docs").rglob("*.zh.md")])
TRANSLATED = {
    "README.md", "getting-started.md", "mindspore.md", "paddle.md", "dlrover.md", "arena.md",
    "checkpoints.md", "scheduler.md", "pending.md", "queues.md", "preemption.md", "placement.md",
    "configuration.md", "cli.md", "sdk.md", "diagnose.md",
}  # fmt: skip
SUMMARY = "arena.zh.md"
"""It refers to the generated tables of the English page."""
_LINK = re.compile(r"\]\(([^)#:]+)(?:#([^)]*))?\)")


def english(page: Path) -> Path:
    """The page that a Chinese one translates."""
    return page.with_name(page.name.replace(".zh.md", ".md"))


def slug(heading: str) -> str:
    """The anchor that MkDocs gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


def commands(page: Path) -> list[str]:
    """What is typed or printed: indented lines and fenced blocks, without remarks."""
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^    \S.*$", text, re.MULTILINE)
    lines = [line for block in fenced for line in block.splitlines()] + indented
    return [re.sub(r"\s+# .*", "", line).rstrip() for line in lines]


def test_pages_of_those_who_asked_for_it_are_translated() -> None:
    assert {english(page).name for page in CHINESE} >= TRANSLATED


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)
def test_chinese_page_has_the_commands_of_the_english_one(page: Path) -> None:
    assert commands(page) == commands(english(page))


@pytest.mark.parametrize(
    "page", [page for page in CHINESE if page.name != SUMMARY], ids=lambda page: page.name
)
def test_chinese_page_has_the_flags_and_fields_of_the_english_one(page: Path) -> None:
    """First cells of tables name flags, fields and variables; a translation omits none."""
    found, expected = (
        [
            name
            for cell in re.findall(r"^\| (.*?) \|", each.read_text(encoding="utf-8"), re.MULTILINE)
            for name in re.findall(r"`([^`]+)`", cell)
        ]
        for each in (page, english(page))
    )
    assert sorted(found) == sorted(expected)  # the order of words differs


@pytest.mark.parametrize(
    "page", sorted([*CHINESE, *map(english, CHINESE)]), ids=lambda page: page.name
)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith("reference/"):
            continue  # generated: the build of the site checks it
        file = page.parent / target
        assert file.exists(), f"{page}: {target}"
        if anchor and file.suffix == ".md":
            text = file.read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            assert anchor in {slug(each) for each in headings}, f"{page}: {target}#{anchor}"
