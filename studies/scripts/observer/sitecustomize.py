"""Notes when a script that ``apply`` runs starts to iterate a DataLoader, and when its optimizer steps."""

import atexit
import json
import os
import sys
import time

if "autotune.apply" in sys.orig_argv and "OBSERVED_EVENTS" in os.environ:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    path, process, events = os.environ["OBSERVED_EVENTS"], os.getpid(), []
    iterate = torch.utils.data.DataLoader.__iter__

    def note_and_iterate(loader):
        events.append(("iterate", time.perf_counter()))
        return iterate(loader)

    def save():
        if os.getpid() == process:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(events, file)

    torch.utils.data.DataLoader.__iter__ = note_and_iterate
    register_optimizer_step_post_hook(lambda *_: events.append(("step", time.perf_counter())))
    atexit.register(save)
