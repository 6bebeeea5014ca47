"""Lists the tests that failed last; exits with 1 unless they are few and all lie in one folder.

python tools/last_failed.py FOLDER
"""

import json
import sys
from pathlib import Path

CACHE = Path(".pytest_cache/v/cache/lastfailed")
MOST = 5
"""More than that is no bad moment of the machine."""


def last_failed(cache: Path) -> list[str]:
    """The ids of the tests that failed; none when nothing is known."""
    return sorted(json.loads(cache.read_text())) if cache.exists() else []


def main() -> int:
    """List them."""
    folder, failed = sys.argv[1].rstrip("/") + "/", last_failed(CACHE)
    print(*failed, sep="\n")
    return int(not 0 < len(failed) <= MOST or any(not each.startswith(folder) for each in failed))


if __name__ == "__main__":
    raise SystemExit(main())
