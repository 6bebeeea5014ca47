"""The Node object of a virtual node: ``status`` builds it, ``reporter`` registers and renews it."""
