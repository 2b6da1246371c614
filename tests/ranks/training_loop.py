import autotune

config = autotune.load_config("autotune.yaml").for_rank()
config.apply_threads()  # before torch is imported
import torch

torch.distributed.init_process_group()
sampler = config.distributed_sampler(dataset)  # this rank's share
loader = config.dataloader(dataset, sampler=sampler)
replicas = torch.nn.parallel.DistributedDataParallel(model)
accumulator = config.accumulator(optimizer, device)
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for batch in loader:
        with accumulator.accumulate(replicas):  # synchronises gradients once in accumulation_steps batches
            with config.autocast(device):
                loss = training_step(replicas, batch)
            accumulator.backward(loss, len(batch[0]))
        accumulator.step()
    accumulator.flush()
