"""One module for each command, named after it; ``gangline.cli.main`` imports a module when it runs.

A command named ``NAME`` is the function ``NAME_command`` of its module. Modules may import
``submit``, ``params``, ``render`` and other commands, and everything below ``gangline.cli``.
"""
