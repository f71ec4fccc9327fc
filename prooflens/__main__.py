"""``python -m prooflens``: the command line."""

from prooflens.cli.main import main

if __name__ == "__main__":
    main()
