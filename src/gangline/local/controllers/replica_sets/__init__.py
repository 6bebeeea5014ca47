"""ReplicaSet controller: creates and deletes pods until the desired number is active.

``plan`` (pure) compares a ReplicaSet with its pods. ``adoption`` writes owner references,
``expectations`` remembers own writes that the watch has not shown yet.
"""
