"""Several devices, and models that use several of them."""
