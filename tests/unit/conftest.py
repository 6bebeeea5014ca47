"""What holds for all unit tests."""

import gc
import os

from hypothesis import settings

# Tests compute with small tensors: threads that share them spend more time waiting than computing.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A slow machine is no fault of what is tested. The examples are the same every time, so that a
# change fails only for a fault that it brings. HYPOTHESIS_PROFILE=explore draws new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Ten thousand tests are a million objects, and none of them is garbage: without this, looking
# through them takes a third of the time of their collection.
gc.set_threshold(100_000, 20, 100)


def pytest_collection_finish() -> None:
    gc.freeze()
