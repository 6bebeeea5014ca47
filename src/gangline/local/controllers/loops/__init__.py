"""The thin part of the controllers: they watch, ask a pure module what to do, and write."""
