"""Tokenizers: from a model folder's files to a neutral `Vocab`, and back."""
