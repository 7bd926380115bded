"""The manual, and the scripts that write its tables from the code."""
