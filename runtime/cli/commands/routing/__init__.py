"""`roundhouse routers` and `roundhouse providers`."""
