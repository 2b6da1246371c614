"""The tuner's side of the process boundary: decides which configuration to measure.

Pure modules use no clock, no torch, no I/O.
"""

import warnings

with warnings.catch_warnings():  # a notebook without ipywidgets: the bar that tqdm misses is never drawn
    warnings.filterwarnings("ignore", message="IProgress not found")
    import optuna as optuna
