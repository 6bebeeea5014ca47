"""How containers are run: the contract, and the two that fulfil it (processes, and a pretence).

`contract` says what the kubelet asks of a runtime. `process` fulfils it with namespaces
(`isolation` finds out what this machine allows, `rootview` writes what a container sees as its
file system, `cgroups` limits it, `usage` measures it); `fake` only keeps the books.
"""
