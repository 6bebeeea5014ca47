"""Garbage collector: deletes objects whose owners no longer exist, and finishes foreground
deletion.

``plan`` (pure) holds the graph of owners and dependents, and decides what to do with one object.
``controller`` watches all kinds with metadata-only informers and carries the decisions out.
"""
