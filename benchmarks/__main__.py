"""The entry point of `python -m benchmarks`."""

from benchmarks.run import main

main()
