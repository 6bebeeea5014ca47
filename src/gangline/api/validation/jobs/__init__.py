"""Rules of the kinds of training jobs: one module per kind, with its errors and its warnings."""
