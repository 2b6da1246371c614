"""The child's side of the process boundary: measures what it is told, and reports."""
