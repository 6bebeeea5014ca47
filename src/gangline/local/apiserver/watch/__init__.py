"""Watch streams: which objects a client selected, and one encoding of each event for all its
watchers.

Order: ``selection`` (label and field selectors, compiled), ``broadcast`` (watchers with cursors).
May import: ``storage``, ``core``.
"""
