"""The table of known failures by log line, which is part of ``gangline.api``."""

from gangline.api.symptoms import SYMPTOMS, Symptom, find_symptom

__all__ = ["SYMPTOMS", "Symptom", "find_symptom"]
