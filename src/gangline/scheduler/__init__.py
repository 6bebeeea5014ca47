"""The scheduler: places gangs of pods on nodes, completely or not at all.

Informers keep a cache of the cluster as arrays and small immutable values. When something changes,
a scheduling cycle (`cycle`) reads the cache and returns bindings, evictions, reservations and the
reason why each other gang is pending. The loop applies the result and reports it.

Packages, low to high: `types`, `plugins`, `cache`, `queueing`, `placement`, `preemption`, `cycle`,
`apply`, `reporting`. All up to `cycle` are pure: no I/O and no asyncio. `config` reads Volcano's
configuration file, `simulate` runs the same cycle on virtual time.
"""
