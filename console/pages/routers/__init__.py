"""The page Routers."""
