"""``python -m gangline.elastic.launcher``."""

import sys

from gangline.elastic.launcher.main import main

if __name__ == "__main__":
    sys.exit(main())
