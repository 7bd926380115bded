"""Tasks of the chat model: twenty tasks on made-up sentences, and the conversations around them."""
