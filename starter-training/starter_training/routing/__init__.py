"""The router `auto`, which finds the starter task that a text is for, as far as the text itself shows it."""
