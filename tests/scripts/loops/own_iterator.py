"""A loader whose own __iter__ calls _get_iterator().

Fault: only DataLoader.__iter__ was heard of, so the script trained to its end. Truth: 2 samples take 2 * 20 + 40 ms,
25/s.
"""

from parts import Samples, train
from torch.utils.data import DataLoader


class Infinite(DataLoader):
    batches = None

    def __iter__(self):
        if self.batches is None:
            self.batches = self._get_iterator()
        for _ in range(len(self)):
            try:
                yield next(self.batches)
            except StopIteration:
                self.batches = self._get_iterator()
                yield next(self.batches)


loader = Infinite(Samples(80, 0.02), batch_size=2, shuffle=True)
for _ in range(50):
    for x, y in loader:
        train(x, y, 0.04)
