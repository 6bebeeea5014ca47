"""Access to files that a container or another user of the machine may have prepared as a trap.

``private`` makes folders that only their owner can enter, and reads files without following links.
``beneath`` opens and creates paths that must not lead out of a folder. ``bind_mounts`` mounts such
paths inside a mount namespace, in a process of its own.
"""
