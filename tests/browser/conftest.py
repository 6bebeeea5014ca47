"""Dashboards of the unit tests for tests in a browser."""

from unit.dashboard.conftest import make_site

__all__ = ["make_site"]
