"""The child's side of the process boundary: measures on request, and reports."""
