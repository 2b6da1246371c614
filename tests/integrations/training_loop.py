import autotune

config = autotune.load_config("autotune.yaml")
config.apply_threads()  # before torch is imported
loader = config.dataloader(dataset, shuffle=True)  # your sampler, collate_fn, … go here too
accumulator = config.accumulator(optimizer, device)
for batch in loader:
    with config.autocast(device):
        loss = training_step(model, batch)
    accumulator.backward(loss, len(batch[0]))  # of how many samples: the last batch may be short
    accumulator.step()  # the optimizer's, after every accumulation_steps batches; step(max_norm=1.0) clips
accumulator.flush()  # what is left at the end of an epoch
