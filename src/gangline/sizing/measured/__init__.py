"""Figures that were measured: ``calibration``."""
