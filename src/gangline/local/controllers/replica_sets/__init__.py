"""ReplicaSet controller: creates and deletes pods until the desired number is active.

``plan`` (pure) compares a ReplicaSet with its pods; ``controller`` has what controllers of owners
share (adoption, creation of pods), and watches and writes.
"""
