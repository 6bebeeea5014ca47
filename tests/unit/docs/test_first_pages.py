"""The first pages are short, begin with a picture, and lead each reader to what is for them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROLES = {"getting-started", "sdk", "diagnose", "deployment", "monitoring", "architecture"}
FIRST_PAGES = ["README.md", "README.zh.md", "docs/index.md", "docs/index.zh.md"]


@pytest.mark.parametrize("name", FIRST_PAGES)
def test_first_page_shows_a_picture_and_numbers_and_leads_on(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    begin, _, after = text.partition("images/demo.svg")
    assert len(begin.splitlines()) < 12
    assert "<!-- from: numbers -->" in after
    links = re.findall(r"\]\((?:docs/)?([\w-]+)(?:\.zh)?\.md\)", text)
    assert set(links) >= ROLES
