"""Writes an encoder of the first N layers of one in a Hugging Face or sentence-transformers folder, as MINILM3 of docs/benchmarks/quality.md.

    python benchmarks/first_layers.py MINILM 3 MINILM3

For folders with `num_hidden_layers` in config.json and the weights in model.safetensors. Pooling, tokenizer and all else stay as they
are, but the model card, which describes the whole model.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

_LAYER = re.compile(r"\blayers?\.(\d+)\.")
_NOT_COPIED = ("README.md", "model.safetensors", "pytorch_model.bin", "tf_model.h5", "rust_model.ot", "onnx", "openvino")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("layers", type=int, metavar="N")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    cut(given.folder, given.layers, given.out)


def cut(folder: Path, layers: int, out: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    if not 1 <= layers <= config["num_hidden_layers"]:
        raise SystemExit(f"{folder}: has {config['num_hidden_layers']} layers, and {layers} were asked for")
    shutil.copytree(folder, out, ignore=lambda at, _: _NOT_COPIED if Path(at) == folder else ())
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not (at := _LAYER.search(name)) or int(at[1]) < layers}
    save_file(kept, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}, indent=2))


if __name__ == "__main__":
    main()
