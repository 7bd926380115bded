"""The files of deploy/: read by the programs that they are for where those are installed, else parsed."""
