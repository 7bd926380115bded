"""What only a GPU needs, beside adapters: the memory of a sleep."""
