"""Advisers: each derives one kind of advice from a view of one job. Pure: no I/O and no clock.

``advice`` and ``view`` are their common interface: ``advise(view) -> list[Advice]``. An adviser
that knows nothing returns nothing; it never returns a default. Imports ``models`` and ``facts``,
and ``gangline.sizing`` for priors.
"""
