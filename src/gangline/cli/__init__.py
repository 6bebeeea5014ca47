"""The ``gangline`` command. Modules here parse, call and print; they decide nothing themselves."""
