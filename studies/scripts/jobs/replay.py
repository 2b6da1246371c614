"""Q-learning from a replay buffer that is drawn from for ever, some steps at a time."""

import argparse
import itertools
import time
from copy import deepcopy

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Replay(IterableDataset):
    """Yields transitions by chance, without an end."""

    def __init__(self, seed, capacity=5000):
        self.seed = seed
        random = torch.Generator().manual_seed(seed)
        self.states = torch.randn(capacity + 1, 8, generator=random)
        self.actions = torch.randint(0, 4, (capacity,), generator=random)
        self.rewards = self.states[:-1].gather(1, self.actions[:, None]).squeeze(1)

    def __iter__(self):
        worker = get_worker_info()
        random = torch.Generator().manual_seed(self.seed + (worker.id if worker else 0))
        while True:
            time.sleep(0.003)  # a request to the buffer's server
            index = torch.randint(0, len(self.actions), (), generator=random)
            yield self.states[index], self.actions[index], self.rewards[index], self.states[index + 1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50, help="steps of an epoch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gamma", type=float, default=0.9)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    policy = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    target = deepcopy(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    transitions = iter(DataLoader(Replay(args.seed), batch_size=24))
    for epoch in range(args.epochs):
        total, samples, start = 0.0, 0, time.perf_counter()
        for state, action, reward, following in itertools.islice(transitions, args.steps):
            with torch.no_grad():
                wanted = reward + args.gamma * target(following).max(1).values
            value = policy(state).gather(1, action[:, None]).squeeze(1)
            loss = nn.functional.smooth_l1_loss(value, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.006)  # the environment is asked
            total, samples = total + loss.item() * len(state), samples + len(state)
        rate = samples / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / samples:.9g}, {rate:.1f} samples/s", flush=True)
        target.load_state_dict(policy.state_dict())
    torch.save(policy.state_dict(), "policy.pt")


if __name__ == "__main__":
    main()
