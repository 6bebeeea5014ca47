"""What holds for all unit tests."""

import gc
import os

from hypothesis import HealthCheck, settings

# Tests compute with small tensors: threads that share them spend more time waiting than computing.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A slow machine is no fault of what is tested. The examples are the same every time, so that a
# change fails only for a fault that it brings. A release is tested with the profile `thorough`;
# HYPOTHESIS_PROFILE=explore draws new examples.
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", COMMON, derandomize=True, max_examples=40)
settings.register_profile("thorough", COMMON, derandomize=True, max_examples=300)
settings.register_profile("explore", COMMON, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Ten thousand tests are a million objects, and none of them is garbage: without this, looking
# through them takes a third of the time of their collection.
gc.set_threshold(100_000, 20, 100)


def pytest_collection_finish() -> None:
    gc.freeze()
