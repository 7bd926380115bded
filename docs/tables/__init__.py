"""What the generated parts of the manual are made of: one file per table."""
