"""Digests heartbeats into facts: segments of training, use of pods, node checks.

``digest`` cuts the training into segments, ``windows`` adds up what nodes report, by segment and by
the minute, ``pods`` measures pods and records shortages of device memory, ``document`` limits the
size of the published JSON. Nothing here reads a clock or does I/O.
"""
