"""OpenAI's request and answer bodies."""
