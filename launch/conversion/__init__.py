"""Files that are made into a form that an engine reads, in a process of its own."""
