"""`python -m simfl` is `simfl`."""

from simfl.cli import main

main()
