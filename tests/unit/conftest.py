"""What holds for all unit tests."""

from hypothesis import settings

# A slow machine is no fault of what is tested.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
