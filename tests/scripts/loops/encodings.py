"""Batches of a mapping's own class, as tokenizers give them, whose tensors are attributes too.

Truth: 8 samples take 8 * 2 ms and a step of 20 ms, 222/s.
"""

from collections import UserDict

from parts import Samples, train
from torch.utils.data import DataLoader, default_collate


class Encoding(UserDict):
    def __getattr__(self, name):
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(name) from None


def encode(samples):
    x, y = default_collate(samples)
    return Encoding(x=x, y=y)


loader = DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True, collate_fn=encode)
for _ in range(50):
    for batch in loader:
        train(batch.x, batch.y, 0.02)
