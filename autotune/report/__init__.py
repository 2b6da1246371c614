"""Results in words, tables, charts and pages; only ``terminal`` prints."""
