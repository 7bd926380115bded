"""What the model wrote, as answers carry it."""
