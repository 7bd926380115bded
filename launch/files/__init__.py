"""Facts from a source's files, and the installed engines that can use them."""
