"""The ``gangline`` command.

Modules parse options, call the SDK and print results; they make no decisions about jobs. Heavy
imports are inside functions, because ``gangline --help`` and shell completion must stay fast.
"""
