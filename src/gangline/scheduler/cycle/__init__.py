"""One scheduling cycle, as a pure function of the cache and the time.

`cycle` serves gangs in order, `allocations` collects the bindings, `extra_pods` places pods beyond
a gang's minimum, `diagnosis` explains why a gang is pending. Imports `preemption` and below.
"""
