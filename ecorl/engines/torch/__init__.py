"""The exact path: Hugging Face models on torch as engines."""
