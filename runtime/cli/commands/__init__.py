"""One file per command of `roundhouse`: its options and what it prints."""
