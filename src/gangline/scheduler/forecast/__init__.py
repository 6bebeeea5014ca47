"""Forecasts: when a pending gang is expected to start, and what would make it sooner.

The scheduler's own cycles run on a copy of the state, on virtual time, with drawn run times.
"""
