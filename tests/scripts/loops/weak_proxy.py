"""A script that holds a proxy of an object which is gone.

Fault: the search for the model asked every object for its class, and the proxy raised ReferenceError. Truth: 8 samples
take 8 * 2 + 20 ms, 222/s.
"""

import weakref

from parts import Samples, train
from torch import nn
from torch.utils.data import DataLoader

earlier = nn.Linear(8, 1)
proxy = weakref.proxy(earlier)
del earlier
for _ in range(50):
    for x, y in DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True):
        train(x, y, 0.02)
