"""Both quick starts have the same commands in the same order."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def commands(page: str) -> list[str]:
    """What is typed: indented lines and fenced blocks, without remarks."""
    text = (DOCS / page).read_text(encoding="utf-8")
    fenced = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^    \S.*$", text, re.MULTILINE)
    lines = [line for block in fenced for line in block.splitlines()] + indented
    return [re.sub(r"\s+#.*", "", line).rstrip() for line in lines]


def test_the_chinese_quick_start_has_the_commands_of_the_english_one() -> None:
    assert commands("getting-started.zh.md") == commands("getting-started.md")


def test_both_name_files_that_are_there() -> None:
    for page in ("getting-started.md", "getting-started.zh.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)", text):
            assert (DOCS / target).exists(), f"{page}: {target}"
