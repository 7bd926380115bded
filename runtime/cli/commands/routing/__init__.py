"""`roundhouse routers` and `roundhouse providers`: one name in front of many models, and what answers elsewhere."""
