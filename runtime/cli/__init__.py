"""The command line `roundhouse`. Only `serve` imports heavy libraries, and only after its options are checked."""
