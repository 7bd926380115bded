"""What a source's files tell, and what installed engines can do with them."""
