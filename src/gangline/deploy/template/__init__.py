"""Renders Go's text/template language with the functions of Helm that the chart uses.

``syntax`` compiles templates, ``functions`` has the functions. An unknown function or
statement is an error; the tests compare every rendered object with Helm's own.
"""
