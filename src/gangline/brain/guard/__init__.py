"""The guard: which advice may be applied now, and whether an applied one is kept.

``policy`` (what an administrator and a job allow, and what the guard remembers; plain structs),
``decide`` (limits of a value, the table of reasons to hold, advice to decision), ``trial``
(judgement of an action).

Pure: no I/O and no clock. An action needs two keys, the policy's and the job's; without both no
function of this package returns one. Imports ``advisers`` and ``facts``.
"""
