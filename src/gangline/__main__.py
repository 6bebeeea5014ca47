"""Makes ``python -m gangline`` the same as the ``gangline`` command."""

from gangline.cli.main import main

if __name__ == "__main__":
    main()
