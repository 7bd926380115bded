"""Compiles our few C files when they are first needed, into a cache of its own. None of them is needed to run."""
