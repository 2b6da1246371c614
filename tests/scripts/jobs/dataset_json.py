"""Rows of a JSON file, which Hugging Face Datasets turns into a cache of Arrow's and maps into memory.

Fault: Arrow did not find the cache that Python had written. Truth: it reads the cache, and the home stays as it was.
"""

from datasets import load_dataset

rows = load_dataset("json", data_files="rows.jsonl", split="train")
assert len(rows) == 200
data = rows.with_format("torch")
