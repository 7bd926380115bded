"""The command line `roundhouse`. Only `serve` imports heavy libraries, and only after checking its options."""
