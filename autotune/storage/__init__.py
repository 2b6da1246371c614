"""Where studies are kept."""
