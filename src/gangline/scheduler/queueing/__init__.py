"""Queueing: which gangs are pending, what each still needs, and which one is served next.

`queue_tree` computes limits and fair shares, `gangs` describes pending gangs, `admission` explains
why a gang cannot be tried, `order` serves them. `messages` holds the texts.
Imports `cache` and below.
"""
