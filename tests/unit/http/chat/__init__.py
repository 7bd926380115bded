"""The chat family of OpenAI and Anthropic."""
