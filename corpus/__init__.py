"""The corpus: minimized cases as JSON, and their store."""
