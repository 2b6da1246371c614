"""An array of features mapped into memory and changed in place, and a raw file written over.

Fault: a mapping reached the user's file past every held write. Truth: the script changes an array of its own.
"""

import numpy as np

features = np.lib.format.open_memmap("features.npy", mode="r+")
features += 1
features.flush()
features[:10].tofile("raw.bin")
assert np.array_equal(np.fromfile("raw.bin", features.dtype), features[:10].ravel())


def after(step, loss, model):
    features[step % len(features)] = loss.item()
    features.flush()
