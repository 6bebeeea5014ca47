"""Container runtimes: the interface, processes of this machine, and a fake.

`contract` is the interface that the kubelet uses. `process` implements it with namespaces
(`isolation` detects what this machine allows, `rootview` builds the container's file system,
`cgroups` limits it, `usage` measures it). `fake` starts no processes.
"""
