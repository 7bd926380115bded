"""What the files of a folder or repository tell, and what the installed engines can do with them."""
