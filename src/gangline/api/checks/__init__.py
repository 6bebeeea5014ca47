"""Rules that no schema can express: one module per kind, and the rules that kinds share."""
