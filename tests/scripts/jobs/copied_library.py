"""Libraries of C code that are copied, then loaded, as compiled extensions are.

Fault: the loader did not find the copy. Truth: it loads the copy, and Python imports a module of C code from one.
"""

import ctypes
import importlib
import os
import shutil
import sys

import numpy as np

with open("/proc/self/maps") as maps:
    found = next(line.split()[-1] for line in maps if os.path.basename(line.strip()).startswith("libm."))
shutil.copy(found, "copied.so")
library = ctypes.CDLL(os.path.abspath("copied.so"))
assert isinstance(library, ctypes.CDLL)
assert os.path.basename(found) != os.path.basename(library._name)
library.sqrt.restype, library.sqrt.argtypes = ctypes.c_double, [ctypes.c_double]
assert library.sqrt(16.0) == 4.0
shutil.copy(np.random._mt19937.__file__, os.path.basename(np.random._mt19937.__file__))
sys.path.insert(0, os.getcwd())
importlib.invalidate_caches()
import _mt19937  # noqa: E402

assert os.path.dirname(os.path.abspath(_mt19937.__file__)) == os.getcwd()
