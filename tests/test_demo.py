import pickle
import time

import pytest
import torch
from torch.utils.data import DataLoader

from autotune.demo import LENGTH, STORAGE_SECONDS, CompressedImages, SmallConvNet, build


@pytest.fixture(scope="module")
def dataset() -> CompressedImages:
    return build()[1]


def train(model: SmallConvNet, dataset: CompressedImages, steps: int) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _, (images, labels) in zip(range(steps), DataLoader(dataset, batch_size=64), strict=False):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def test_an_item_is_a_normalised_float_image_and_an_integer_label(dataset):
    image, label = dataset[17]
    assert image.shape == (3, 64, 64)
    assert image.dtype == torch.float32
    assert abs(image.mean()) < 1.5
    assert 0.2 < image.std() < 2.0
    assert (type(label), label) == (int, 7)


def test_ten_items_in_a_row_are_of_all_ten_classes_wherever_they_start(dataset):
    for start in (0, 195, LENGTH - 10):
        assert {dataset[index][1] for index in range(start, start + 10)} == set(range(10))


def test_an_item_of_the_demo_waits_for_its_storage_and_one_of_its_dataset_alone_does_not(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    build()[1][5]
    CompressedImages()[5]
    assert slept == [STORAGE_SECONDS, 0.0]


@pytest.mark.parametrize("index", [-1, LENGTH])
def test_an_index_outside_the_dataset_is_an_index_error(dataset, index):
    with pytest.raises(IndexError, match=r"outside 0\.\.65535"):
        dataset[index]


def test_the_stored_images_are_the_same_in_every_process_and_the_augmentation_follows_the_seed(dataset):
    again = build()[1]
    torch.manual_seed(5)
    first, _ = dataset[3]
    unlike, _ = dataset[3]
    torch.manual_seed(5)
    second, _ = again[3]
    assert torch.equal(first, second)
    assert not torch.equal(first, unlike)


def test_drawing_the_images_leaves_the_random_state_of_torch_alone():
    before = torch.random.get_rng_state()
    CompressedImages()
    assert torch.equal(before, torch.random.get_rng_state())


def test_model_and_dataset_survive_pickling():
    model, dataset = pickle.loads(pickle.dumps(build()))
    assert model(dataset[0][0][None]).shape == (1, 10)


@pytest.mark.machine
def test_the_network_learns_the_classes(dataset):
    torch.manual_seed(0)
    losses = train(SmallConvNet(), dataset, steps=25)
    assert losses[0] > 1.8
    assert losses[-1] < 0.5 * losses[0]
