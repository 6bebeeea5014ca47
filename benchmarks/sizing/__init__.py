"""Predictions of `gangline plan` beside measurements of real trainings."""
