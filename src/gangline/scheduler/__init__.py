"""Pods to nodes: whole gangs or nothing.

The observed cluster is a set of facts (``model``), read from API objects by ``observe`` and kept
incrementally in arrays by ``state``. ``decide`` is the pure centre: what is waiting goes, in the
order of ``units``, through trial placements (``trial``), and comes out as bindings or as verdicts
with reasons (``reasons``). ``shell`` watches, and carries decisions out.
"""
