"""Decides whether tests that failed get a second chance, and whether they have used it.

python tools/last_failed.py CACHE FOLDER...    (CACHE: pytest's cache_dir)
    Lists the tests that failed last; exits with 1 unless they are few and all in these folders.
    Other arguments are ignored.
python tools/last_failed.py --passed REPORT    (REPORT: pytest's junitxml of the second run)
    Exits with 1 unless all tests have passed: a skipped test has not shown anything.
"""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

MOST = 8
"""More failures than this are not caused by a busy machine."""


def last_failed(cache: Path) -> list[str]:
    """Ids of the failed tests; empty if unknown."""
    return sorted(json.loads(cache.read_text())) if cache.exists() else []


def skipped(report: Path) -> list[str]:
    """Names of the tests of a report that were skipped."""
    cases = ElementTree.parse(report).iter("testcase")
    return [case.attrib["name"] for case in cases if case.find("skipped") is not None]


def main() -> int:
    """List the failed tests, or those that were skipped at the second time."""
    if sys.argv[1] == "--passed":
        found = skipped(Path(sys.argv[2]))
        print(*(f"failed, then skipped: {name}" for name in found), sep="\n")
        return int(bool(found))
    cache = Path(sys.argv[1], "v/cache/lastfailed")
    folders = tuple(each.rstrip("/") + "/" for each in sys.argv[2:] if each.startswith("tests/"))
    failed = last_failed(cache)
    print(*failed, sep="\n")
    return int(not 0 < len(failed) <= MOST or any(not each.startswith(folders) for each in failed))


if __name__ == "__main__":
    raise SystemExit(main())
