"""Several devices, and models over several of them."""
