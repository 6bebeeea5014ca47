"""Lists the tests that failed last; exits with 1 unless they are few and all in these folders.

python tools/last_failed.py CACHE FOLDER...    (CACHE: pytest's cache_dir)

Other arguments are ignored.
"""

import json
import sys
from pathlib import Path

MOST = 5
"""More failures than this are not caused by a busy machine."""


def last_failed(cache: Path) -> list[str]:
    """Ids of the failed tests; empty if unknown."""
    return sorted(json.loads(cache.read_text())) if cache.exists() else []


def main() -> int:
    """List the failed tests."""
    cache = Path(sys.argv[1], "v/cache/lastfailed")
    folders = tuple(each.rstrip("/") + "/" for each in sys.argv[2:] if each.startswith("tests/"))
    failed = last_failed(cache)
    print(*failed, sep="\n")
    return int(not 0 < len(failed) <= MOST or any(not each.startswith(folders) for each in failed))


if __name__ == "__main__":
    raise SystemExit(main())
