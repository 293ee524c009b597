"""Several sources about the same machines as one topology."""
