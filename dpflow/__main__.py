"""Run the command line with `python -m dpflow`."""

from dpflow.cli import main

main()
