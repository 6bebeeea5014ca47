"""Writes the newest checkpoint in memory to storage: what an agent starts when workers fail."""

import os
import sys

from gangline.elastic.checkpoint import flush_job

PATIENCE_S = 600.0


def main() -> int:
    """Flush, and say what is in storage now."""
    found = flush_job(os.environ, PATIENCE_S)
    for target, step in found.items():
        told = "could not be written" if step is None else f"step {step} is in storage"
        print(f"gangline: checkpoint in {target}: {told}", file=sys.stderr, flush=True)
    return int(any(step is None for step in found.values()))


if __name__ == "__main__":
    sys.exit(main())
