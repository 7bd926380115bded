"""What a body of the chat engine may hold."""
