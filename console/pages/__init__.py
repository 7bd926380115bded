"""The pages, one folder each. `PAGE` in each folder describes its page and who may see it."""
