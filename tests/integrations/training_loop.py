import autotune

config = autotune.load_config("autotune.yaml")
config.apply_threads()  # before torch is imported
accumulator = config.accumulator(optimizer, device)
loader = config.dataloader(dataset, shuffle=True)  # your sampler, collate_fn, … go here too
for epoch in range(epochs):
    for batch in loader:
        with config.autocast(device):  # around forward and loss, never backward
            loss = training_step(model, batch)
        accumulator.backward(loss, len(batch[0]))  # of how many samples: the last batch may be short
        accumulator.step()  # the optimizer's, after every accumulation_steps batches; step(max_norm=1.0) clips
    accumulator.flush()  # what is left at the end of an epoch
