"""The router `auto`: which of the starter's tasks a text is for, as far as the text itself tells."""
