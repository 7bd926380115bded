"""The manual's generated tables, with a module for each subject."""
