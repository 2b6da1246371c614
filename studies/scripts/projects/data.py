"""Data and configurations of the projects' jobs, made in an empty folder: ``MAKERS[name](folder)``."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

SAMPLES = 640
WORDS = ("red", "green", "blue", "large", "small", "round", "box", "circle", "line", "left", "right", "above", "below")


def pictures(folder: Path, count: int, size: int) -> list[Path]:
    """Pictures of noise as JPEG files, each with a red box."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    paths = [folder / f"{number:04}.jpg" for number in range(count)]
    for path in paths:
        pixels = generator.integers(0, 255, (size, size, 3), dtype=np.uint8)
        pixels[size // 4 : size // 2, size // 4 : size // 2] = (255, 0, 0)
        Image.fromarray(pixels).save(path)
    return paths


def ultralytics(folder: Path) -> None:
    """Pictures with a box in each, in YOLO's layout."""
    for split, count in (("train", SAMPLES), ("val", 16)):
        labels = folder / "labels" / split
        labels.mkdir(parents=True)
        for path in pictures(folder / "images" / split, count, 320):
            (labels / f"{path.stem}.txt").write_text("0 0.375 0.375 0.25 0.25\n", encoding="utf-8")
    text = f"path: {folder.resolve()}\ntrain: images/train\nval: images/val\nnames: {{0: box}}\n"
    (folder / "data.yaml").write_text(text, encoding="utf-8")


def open_clip(folder: Path) -> None:
    """Pictures with captions, and a transformer of two layers for each."""
    paths = pictures(folder / "images", 2 * SAMPLES, 320)
    rows = [f"{path}\ta {sentence(number, 4)}" for number, path in enumerate(paths)]
    (folder / "train.csv").write_text("\n".join(["filepath\ttitle", *rows]), encoding="utf-8")
    vision = {"image_size": 64, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16}
    text = {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}
    (folder / "model").mkdir()
    model = {"model_cfg": {"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}, "preprocess_cfg": {}}
    (folder / "model" / "open_clip_config.json").write_text(json.dumps(model), encoding="utf-8")


def litgpt(folder: Path) -> None:
    """Text files, and a tokenizer of words."""
    tokenizer(folder / "tokenizer")
    (folder / "texts").mkdir()
    for number in range(3):
        text = sentence(number, 120_000 if number else 4_000)
        (folder / "texts" / f"{number}.txt").write_text(text, encoding="utf-8")


def trl(folder: Path) -> None:
    """Sentences as JSON lines, and a causal language model of two layers with a tokenizer of words."""
    from transformers import LlamaConfig, LlamaForCausalLM

    size = tokenizer(folder / "model")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=size, **sizes)).save_pretrained(folder / "model")
    (folder / "texts").mkdir()
    lines = [json.dumps({"text": sentence(number, 60)}) for number in range(4 * SAMPLES)]
    (folder / "texts" / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")


def chemprop(folder: Path) -> None:
    """Chains of carbon with functional groups, and their length as a target."""
    groups = ("O", "N", "C(=O)O", "C#N", "c1ccccc1", "C(F)(F)F", "S", "Cl")
    generator = random.Random(0)
    rows = []
    for _ in range(4 * SAMPLES):
        length = generator.randint(4, 24)
        rows.append(f"{'C' * length}{generator.choice(groups)},{length}")
    (folder / "molecules.csv").write_text("\n".join(["smiles,length", *rows]), encoding="utf-8")


def mace(folder: Path) -> None:
    """Clusters of eight atoms in an extended XYZ file, with energies and forces of springs."""
    generator = np.random.default_rng(0)
    lattice = np.array([(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)]) * 1.6
    lines = []
    for _ in range(SAMPLES):
        moved = generator.normal(0, 0.1, lattice.shape)
        lines += ["8", f'Properties=species:S:1:pos:R:3:REF_forces:R:3 REF_energy={(moved**2).sum():.6f} pbc="F F F"']
        for position, force in zip(lattice + moved, -2 * moved, strict=True):
            lines.append("C " + " ".join(f"{value:.6f}" for value in (*position, *force)))
    (folder / "clusters.xyz").write_text("\n".join(lines) + "\n", encoding="utf-8")


def lightning(folder: Path) -> None:
    """A configuration of ``lightning_cli.py``."""
    trainer = "trainer:\n  accelerator: cpu\n  log_every_n_steps: 20\n"
    text = f"seed_everything: 0\n{trainer}data:\n  samples: 1280\n  batch_size: 16\n"
    (folder / "config.yaml").write_text(text, encoding="utf-8")


def sentence(seed: int, length: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def tokenizer(folder: Path) -> int:
    """Write a tokenizer of words to a folder, and return how many it knows."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ("<unk>", "<s>", "</s>")
    words = {word: number for number, word in enumerate((*special, *WORDS))}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(list(special))
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    kept = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    text = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **kept})
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return len(words)


MAKERS: dict[str, Callable[[Path], None]] = {
    "ultralytics": ultralytics,
    "open_clip": open_clip,
    "litgpt": litgpt,
    "trl": trl,
    "chemprop": chemprop,
    "mace": mace,
    "lightning": lightning,
}
