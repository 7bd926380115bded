"""`roundhouse batch` and `roundhouse files`."""
