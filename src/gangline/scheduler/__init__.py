"""The scheduler: places gangs of pods on nodes, completely or not at all.

Informers keep a cache of the cluster as arrays and small immutable values. When something changes,
a scheduling cycle (`cycle`) reads the cache and returns bindings, evictions, reservations and the
reason why each other gang is pending. The loop applies the result and reports it.

`types` defines what a cycle reads and returns, `wire` the lean structs of the watches. Packages,
low to high: `plugins`, `cache`, `queueing`, `placement`, `preemption`, `cycle`, `apply`,
`reporting`. All up to `cycle` are pure: no I/O and no asyncio. `volcano_config` reads Volcano's
configuration file, `simulate` and `forecast` run the same cycle on virtual time.
"""
