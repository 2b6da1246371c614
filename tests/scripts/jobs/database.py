"""A database of runs, which SQLite itself opens, with a log of its own beside it.

Fault: SQLite wrote past every function of Python. Truth: its rows are held, and read back.
"""

import sqlite3

runs = sqlite3.connect("runs.db")
runs.execute("PRAGMA journal_mode=WAL")
(earlier,) = runs.execute("SELECT count(*) FROM steps").fetchone()
assert earlier >= 100


def after(step, loss, model):
    with runs:
        runs.execute("INSERT INTO steps VALUES (?)", (loss.item(),))
