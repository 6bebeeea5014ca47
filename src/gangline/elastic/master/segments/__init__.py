"""Digests heartbeats into facts: segments of training, use of pods, node checks.

``digest`` cuts the training into segments, ``pods`` measures pods, ``moments`` adds up step times,
``windows`` measures nodes by the minute,
``document`` limits the size of the published JSON. Nothing here reads a clock or does I/O.
"""
