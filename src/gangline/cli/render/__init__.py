"""Objects to text: tables, blocks of facts, JSON, YAML, JSONPath templates, log lines.

Columns and keys are Arena's; columns of our own stand to their right. Modules import only each
other and, late, the SDK and the API types.
"""
