"""`roundhouse batch`, `roundhouse files` and `roundhouse webhooks`."""
