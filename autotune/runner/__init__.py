"""The tuner's side of the process boundary: measuring processes, and their ends."""
