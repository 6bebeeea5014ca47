"""How viewers prove who they are: each mode turns a request into a ``Session``."""
