"""Volume binder and provisioner: binds claims to volumes, and makes local folders as volumes.

``plan`` (pure) chooses or describes the volume of a claim; ``controller`` makes folders and writes.
"""
