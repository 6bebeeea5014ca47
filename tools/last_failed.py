"""Lists the tests that failed last; exits with 1 unless they are few and all lie in one folder.

python tools/last_failed.py CACHE FOLDER    (CACHE: pytest's cache_dir)
"""

import json
import sys
from pathlib import Path

MOST = 5
"""More than that is no bad moment of the machine."""


def last_failed(cache: Path) -> list[str]:
    """The ids of the tests that failed; none when nothing is known."""
    return sorted(json.loads(cache.read_text())) if cache.exists() else []


def main() -> int:
    """List them."""
    cache, folder = Path(sys.argv[1], "v/cache/lastfailed"), sys.argv[2].rstrip("/") + "/"
    failed = last_failed(cache)
    print(*failed, sep="\n")
    return int(not 0 < len(failed) <= MOST or any(not each.startswith(folder) for each in failed))


if __name__ == "__main__":
    raise SystemExit(main())
