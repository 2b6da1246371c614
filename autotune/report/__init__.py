"""Pure renderings of what was measured: they read records and return text, and print nothing."""
