"""Starting, finding and ending servers of a fleet."""
