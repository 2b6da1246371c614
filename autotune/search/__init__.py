"""The parent's side of the process boundary: decides which configuration to measure."""
