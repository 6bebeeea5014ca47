"""Adapters of ``Checkpointer`` for DeepSpeed, DLRover, Hugging Face and Lightning.

Each module imports its framework only when it is used. Public import paths:
``gangline.elastic.checkpoint.deepspeed``, ``.dlrover``, ``.huggingface`` and ``.lightning``.
"""
