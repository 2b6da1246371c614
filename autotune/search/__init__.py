"""The parent's side of the process boundary: decides what to measure."""
