"""The machine as both sides of the process boundary know it."""
