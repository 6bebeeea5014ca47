"""ReplicaSet controller: creates and deletes pods until the desired number is active.

``plan`` (pure) compares a ReplicaSet with its pods. ``pod_creation`` has what controllers of owners
share: adoption, creation of pods, and own writes that the watch has not shown yet.
"""
