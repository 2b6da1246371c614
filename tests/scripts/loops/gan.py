"""A GAN in the order of its steps: real images, a step of one optimizer, a latent batch, a step of the other.

Truth: 2 real samples take 2 * 20 ms, the latent ones 10 ms, and the two steps 15 ms each, 25/s.
"""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.randn(8)


judge, maker = nn.Linear(8, 1), nn.Linear(8, 8)
judging = torch.optim.SGD(judge.parameters(), lr=0.01)
making = torch.optim.SGD(maker.parameters(), lr=0.01)
real = DataLoader(Samples(0.02), batch_size=2, shuffle=True)
latent = DataLoader(Samples(0.01), batch_size=1, shuffle=True)
latents = iter(latent)
for _ in range(50):
    for images in real:
        time.sleep(0.015)
        judging.zero_grad()
        judge(images).square().mean().backward()
        judging.step()
        time.sleep(0.015)
        making.zero_grad()
        judge(maker(next(latents))).mean().backward()
        making.step()
