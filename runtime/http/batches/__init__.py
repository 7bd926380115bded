"""Files and batches as OpenAI's and Anthropic's SDKs know them, and our own short form."""
