"""A log and a table of losses to which every run appends.

Fault: each measurement added lines to the user's files. Truth: both files end where the last training left them.
"""

import logging

logging.basicConfig(filename="train.log", level=logging.INFO)


def after(step, loss, model):
    if step == 0:
        logging.info("an epoch begins")
    logging.info("step %d: loss %.4f", step, loss.item())
    with open("metrics.csv", "a") as table:
        table.write(f"{step},{loss.item()}\n")
