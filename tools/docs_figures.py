"""Prints the reading time of the tutorial, and how many documented commands the tests check.

python tools/docs_figures.py
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS_PER_MINUTE = 200
"""Silent reading of technical text; lines to type and their output count too."""
TUTORIAL = ROOT / "docs/getting-started.md"


def words(page: Path) -> int:
    """Count the words of a page, without the addresses of links."""
    return len(re.sub(r"\]\([^)]*\)", "]", page.read_text(encoding="utf-8")).split())


def main() -> None:
    """Print the figures."""
    sys.path.insert(0, str(ROOT / "tests"))
    from unit.cli.documented_commands import (
        PAGES,
        executed_commands,
        first_block,
        gangline_commands,
        mentioned,
        shell_lines,
    )
    from unit.docs.guides import executed_guides

    executed = sum(len(executed_commands(page)) for page in (ROOT / "README.md", TUTORIAL))
    executed += sum(len(first_block(page)) for page in executed_guides())
    lines = [line for page in PAGES for line in gangline_commands(shell_lines(page))]
    named = [line for page in PAGES for line in gangline_commands(mentioned(page))]
    minutes = words(TUTORIAL) / WORDS_PER_MINUTE
    sys.stdout.write(
        f"tutorial: {words(TUTORIAL)} words, {minutes:.1f} minutes at {WORDS_PER_MINUTE} a minute\n"
        f"pages: {len(PAGES)}\n"
        f"commands that tests run as printed: {executed}\n"
        f"commands of gangline that tests parse: {len(lines)} in blocks, {len(named)} in text\n"
    )


if __name__ == "__main__":
    main()
