"""The acceptance run on a GPU: is it right there, then how fast. `make gpu-acceptance`; not one of `make bench`."""
