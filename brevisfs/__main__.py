"""`python -m brevisfs` is the command line."""

from brevisfs.cli import main

main()
