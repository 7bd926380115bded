"""What the chat model learns: twenty tasks on made-up sentences, and the conversations around them."""
