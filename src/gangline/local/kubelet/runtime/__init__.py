"""Container runtimes: the interface, and processes of this machine.

`interface` is what the kubelet uses. `process_runtime` implements it with namespaces: `isolation`
detects what this machine allows, `mount_namespace` builds the container's file system, `cgroups`
limits it, `process_tree` measures it.
"""
