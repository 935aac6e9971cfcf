"""Requests to send: data sets in their published formats, tokenizers, lengths and arrivals."""
