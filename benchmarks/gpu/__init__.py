"""The acceptance run on a GPU, of answers and of speed (`make gpu-acceptance`). Not part of `make bench`."""
