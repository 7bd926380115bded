"""Several real servers as one fleet, on a PostgreSQL of the tests' own."""
