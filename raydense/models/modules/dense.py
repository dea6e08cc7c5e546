"""Dense: one linear layer over vectors, with an activation."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import nn

from raydense.errors import InputError, short
from raydense.models.encoder_folder import read_json, refuse_types, write_json
from raydense.models.modules.module import VECTORS, Features, Module, Options
from raydense.models.weights import reads_weights

_ACTIVATIONS = {cls.__name__: cls for cls in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)}


class Dense(Module):
    """act(W v + b): vectors [n, d] to [n, width]."""

    def __init__(self, linear: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.linear, self.activation = linear, activation
        self.width = linear.out_features

    @classmethod
    def first(cls, width: int, dimension: int) -> Dense:
        """The layer that keeps the first `dimension` numbers of a vector of `width`."""
        linear = nn.utils.skip_init(nn.Linear, width, dimension, bias=False)
        nn.init.eye_(linear.weight)
        return cls(linear, nn.Identity())

    @classmethod
    def load(cls, folder: Path, width: int, options: Options) -> Dense:
        config = {"in_features": None, "out_features": None} | read_json(folder / "config.json")
        refuse_types(config, {"in_features": int, "out_features": int}, folder / "config.json")
        if config.get("use_residual") or {config.get(f"module_{side}_name") or VECTORS for side in ("input", "output")} != {VECTORS}:
            raise InputError("has a residual, or reads states", folder / "config.json", "a plain layer over vectors can be read")
        library, _, name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")
        if not library.startswith("torch.nn.") or name not in _ACTIVATIONS:
            raise InputError(f"activation {library}.{name}", folder / "config.json", f"there are {', '.join(_ACTIVATIONS)} of torch.nn")
        linear = nn.utils.skip_init(nn.Linear, config["in_features"], config["out_features"], bias=config.get("bias", True))
        layer = cls(linear, _ACTIVATIONS[name]())
        if config["in_features"] != width:
            raise InputError(
                f"takes {config['in_features']} numbers, and gets {width}", folder / "config.json", "give a whole model folder"
            )
        if reads_weights():
            layer._read(folder / "model.safetensors")
        return layer

    def _read(self, file: Path) -> None:
        if not file.is_file():
            raise InputError("no weights (model.safetensors)", file.parent, "save it with safetensors")
        try:
            self.load_state_dict({name: value.float() for name, value in load_file(file).items()})
        except Exception as error:
            raise InputError(f"its weights cannot be loaded ({short(error)})", file, "fetch or make it again") from error

    def save(self, folder: Path) -> None:
        linear, activation = self.linear, type(self.activation)
        write_json(
            folder / "config.json",
            {
                "in_features": linear.in_features,
                "out_features": linear.out_features,
                "bias": linear.bias is not None,
                "activation_function": f"{activation.__module__}.{activation.__name__}",
            },
        )
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / "model.safetensors")

    def forward(self, features: Features) -> Features:
        vectors = features[VECTORS].to(self.linear.weight.dtype)  # an engine may have cast the weights
        vectors = self.activation(self.linear(vectors))
        return {**features, VECTORS: vectors.float()}
