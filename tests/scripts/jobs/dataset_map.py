"""Rows that Hugging Face Datasets maps in the script and in two child processes, each time to a cache file.

Fault: Arrow did not find what ``map`` had written. Truth: it does, and the cache is the script's alone.
"""

import os

from datasets import Dataset

given = Dataset.from_dict({"x": [[row / 200] * 8 for row in range(200)]})
os.makedirs("cached", exist_ok=True)
twice = given.map(lambda row: {"x": [2 * value for value in row["x"]]}, cache_file_name="cached/twice.arrow")
assert twice.cache_files
rows = twice.map(lambda row: {"y": row["x"][:1]}, num_proc=2, cache_file_name="cached/labelled.arrow")
assert rows[100]["y"] == [1.0]
data = rows.with_format("torch")
