"""Recipe files: their content, faults with lines, and clashes between them."""
