class TokensPrompt(dict):
    """A prompt of token ids."""
