"""What the Brain knows of jobs: records with units in their names, and checks of what is believed.

Times are milliseconds since 1970 UTC, amounts are integers in the smallest unit. ``None`` means not
known, which is never the same as 0. Imports nothing of the Brain.
"""
