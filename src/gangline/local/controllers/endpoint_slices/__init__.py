"""EndpointSlice mirroring controller: one slice for each subset of an Endpoints object.

``plan`` (pure) builds the slices; ``controller`` watches Endpoints and writes the slices.
"""
