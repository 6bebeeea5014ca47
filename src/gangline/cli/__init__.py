"""The ``gangline`` command.

Layers, from high to low: ``main`` (table of commands), ``commands`` (one module for each command),
``submit`` (from flags or files to created objects), ``params`` (options that several commands
take), ``render`` (objects to text), ``event_loop``, ``errors`` and ``arena``
(what Arena has and Gangline has not). Modules parse, call the SDK and
print; they make no decisions about jobs. Heavy imports are inside functions, because
``gangline --help`` and shell completion must stay fast.
"""
