"""Endpoints controller: the addresses of the pods behind each service with a selector.

``plan`` (pure) builds the Endpoints object; ``controller`` watches services and pods, and writes.
"""
