"""Commands for a server as a whole: start, check, watch, back up."""
