"""One scheduling cycle, as a pure function of the cache and the time.

`cycle` serves gangs in order, `active_reservations` holds the reservations of preemptors,
`allocations` collects the bindings and places pods beyond a gang's minimum, `diagnosis` explains
why a gang is pending. Imports `preemption` and below.
"""
