"""Where shapes come from: ``huggingface`` (config.json), ``guess`` (a number of parameters)."""
