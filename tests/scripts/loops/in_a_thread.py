"""A loader that a thread iterates, which fills a queue for the loop.

Fault: the thread ended with an error, and the loop waited for a batch until the limit for loading. Truth: it is
refused within seconds, and the thread is named as the reason.
"""

import queue
import threading

from parts import Samples, train
from torch.utils.data import DataLoader


def fill():
    for _ in range(50):
        for batch in DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True):
            batches.put(batch)


batches = queue.Queue(2)
threading.Thread(target=fill, daemon=True).start()
for _ in range(10_000):
    x, y = batches.get()
    train(x, y, 0.02)
