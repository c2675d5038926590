"""Parameters of vision towers with their projectors, from `vision_config`.

Each count follows the modules of transformers 5.24, and is checked against them on the meta device.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

Config = Mapping[str, Any]


class Model(NamedTuple):
    """A configuration, its `vision_config`, and the width of its text model."""

    outer: Config
    vision: Config
    text_hidden: int


def _linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _side(value: Any) -> int:
    """A patch or image side that may be written as a pair."""
    return int(value[0]) if isinstance(value, list | tuple) else int(value)


def _patches(vision: Config, image: int, patch: int) -> int:
    return int((_side(vision.get("image_size", image)) // _side(vision.get("patch_size", patch))) ** 2)


def _layer(hidden: int, ffn: int) -> int:
    """A ViT layer with biases: two layer norms, four attention projections, two of the MLP."""
    return 4 * hidden + 4 * _linear(hidden, hidden) + _linear(hidden, ffn) + _linear(ffn, hidden)


def _qwen_patch(vision: Config, width: int, patch: int) -> int:
    """Weights of the three-dimensional patch convolution."""
    side, frames = _side(vision.get("patch_size", patch)), _side(vision.get("temporal_patch_size", 2))
    return int(vision.get("in_channels", vision.get("in_chans", 3))) * frames * side**2 * width


def qwen2_vl(model: Model) -> int:
    """`Qwen2VisionTransformerPretrainedModel`; the merger ends in `hidden_size`, the text's width."""
    vision = model.vision
    width, depth = int(vision.get("embed_dim", 1280)), int(vision.get("depth", 32))
    merged = width * int(vision.get("spatial_merge_size", 2)) ** 2
    layer = _layer(width, int(width * vision.get("mlp_ratio", 4)))
    merger = 2 * width + _linear(merged, merged) + _linear(merged, int(vision.get("hidden_size", 3584)))
    return _qwen_patch(vision, width, 14) + depth * layer + merger


def qwen2_5_vl(model: Model) -> int:
    """`Qwen2_5_VisionTransformerPretrainedModel`: RMS norms and a gated MLP with biases."""
    vision = model.vision
    width, ffn = int(vision.get("hidden_size", 3584)), int(vision.get("intermediate_size", 3420))
    merged = width * int(vision.get("spatial_merge_size", 2)) ** 2
    layer = 2 * width + 4 * _linear(width, width) + 2 * _linear(width, ffn) + _linear(ffn, width)
    merger = width + _linear(merged, merged) + _linear(merged, int(vision.get("out_hidden_size", 3584)))
    return _qwen_patch(vision, width, 14) + int(vision.get("depth", 32)) * layer + merger


def qwen3_vl(model: Model) -> int:
    """`Qwen3VLVisionModel`: learned positions, and a merger more for each deep layer that feeds the text."""
    vision = model.vision
    deep = vision.get("deepstack_visual_indexes", (8, 16, 24))
    width = int(vision.get("hidden_size", 1152))
    merged = width * int(vision.get("spatial_merge_size", 2)) ** 2
    linears = _linear(merged, merged) + _linear(merged, int(vision.get("out_hidden_size", 3584)))
    return qwen3_5(model) + len(deep) * (2 * merged + linears)


def qwen3_5(model: Model) -> int:
    """`Qwen3_5VisionModel`: that of Qwen3-VL without the deep mergers."""
    vision = model.vision
    width = int(vision.get("hidden_size", 1152))
    merged = width * int(vision.get("spatial_merge_size", 2)) ** 2
    layer = _layer(width, int(vision.get("intermediate_size", 4304)))
    start = _qwen_patch(vision, width, 16) + width + int(vision.get("num_position_embeddings", 2304)) * width
    merger = 2 * width + _linear(merged, merged) + _linear(merged, int(vision.get("out_hidden_size", 3584)))
    return start + int(vision.get("depth", 27)) * layer + merger


def _siglip(vision: Config, image: int, patch: int, layers: int, *, head: bool) -> int:
    """`SiglipVisionModel`: biased patch convolution, learned positions, layers, a norm, and a pooling head."""
    width, ffn = int(vision.get("hidden_size", 768)), int(vision.get("intermediate_size", 3072))
    start = _linear(3 * _side(vision.get("patch_size", patch)) ** 2, width) + _patches(vision, image, patch) * width
    count = start + int(vision.get("num_hidden_layers", layers)) * _layer(width, ffn) + 2 * width
    # the head: a probe, its attention, a norm and an MLP
    pooling = width + 4 * _linear(width, width) + 2 * width + _linear(width, ffn) + _linear(ffn, width)
    return count + (pooling if head else 0)


def gemma3(model: Model) -> int:
    """SigLIP, then one matrix and a norm."""
    _, vision, text_hidden = model
    width = int(vision.get("hidden_size", 768))
    tower = _siglip(vision, 224, 16, 12, head=bool(vision.get("vision_use_head", True)))
    return tower + width * text_hidden + width


def idefics3(model: Model) -> int:
    """SigLIP without its head, then one matrix over a square of patches."""
    outer, vision, text_hidden = model
    width = int(vision.get("hidden_size", 1152))
    tower = _siglip({"hidden_size": width} | dict(vision), 224, 32, 12, head=False)
    return tower + _linear(width * int(outer.get("scale_factor", 2)) ** 2, text_hidden, bias=False)


def llava(model: Model) -> int:
    """`CLIPVisionModel`, then two linears."""
    outer, vision, text_hidden = model
    width, ffn = int(vision.get("hidden_size", 768)), int(vision.get("intermediate_size", 3072))
    patches = _patches(vision, 224, 32)
    start = width + 3 * _side(vision.get("patch_size", 32)) ** 2 * width + (patches + 1) * width
    tower = start + int(vision.get("num_hidden_layers", 12)) * _layer(width, ffn) + 4 * width
    bias = bool(outer.get("multimodal_projector_bias", True))
    return tower + _linear(width * _features(outer), text_hidden, bias) + _linear(text_hidden, text_hidden, bias)


def mistral3(model: Model) -> int:
    """`PixtralVisionModel` (no biases, a gated MLP, RMS norms), a merger over a square of patches, two linears."""
    outer, vision, text_hidden = model
    width, ffn = int(vision.get("hidden_size", 1024)), int(vision.get("intermediate_size", 4096))
    layer = 2 * width + 4 * width**2 + 3 * width * ffn
    tower = 3 * _side(vision.get("patch_size", 16)) ** 2 * width + width
    tower += int(vision.get("num_hidden_layers", 24)) * layer
    merger = width + width * int(outer.get("spatial_merge_size", 2)) ** 2 * width
    bias = bool(outer.get("multimodal_projector_bias", False))
    projector = _linear(width * _features(outer), text_hidden, bias) + _linear(text_hidden, text_hidden, bias)
    return tower + merger + projector


def internvl(model: Model) -> int:
    """`InternVLVisionModel`: a class token, learned positions, two scales a layer; then a norm and two linears."""
    outer, vision, text_hidden = model
    width, ffn = int(vision.get("hidden_size", 1024)), int(vision.get("intermediate_size", 4096))
    rms = vision.get("norm_type", "layer_norm") == "rms_norm"
    norm = width if rms else 2 * width
    layer = _layer(width, ffn) - 4 * width + 2 * norm + 2 * width
    layer -= 0 if vision.get("attention_bias", False) else 3 * width
    layer += 2 * width if vision.get("use_qk_norm", False) else 0
    sides = [vision.get("image_size", 448), vision.get("patch_size", 14)]
    patches = prod(image // patch for image, patch in zip(*(_pair(side) for side in sides), strict=True))
    positions = (patches + 1) * width if vision.get("use_absolute_position_embeddings", True) else 0
    start = width + _linear(3 * prod(_pair(sides[1])), width) + positions
    start += width if vision.get("use_mask_token", False) else 0
    end = 0 if vision.get("use_mean_pooling", True) else 2 * width
    merged = width * int(1 / float(outer.get("downsample_ratio", 0.5))) ** 2
    projector = 2 * merged + _linear(merged, text_hidden) + _linear(text_hidden, text_hidden)
    return start + int(vision.get("num_hidden_layers", 24)) * layer + end + projector


def glm4v(model: Model) -> int:
    """`Glm4vVisionModel`: RMS norms and gated MLPs without biases, a strided convolution, and a merger."""
    vision = model.vision
    width, out = int(vision.get("hidden_size", 1536)), int(vision.get("out_hidden_size", 4096))
    layer = 2 * width + 4 * width**2 + 3 * width * out + (3 * width if vision.get("attention_bias") else 0)
    start = _qwen_patch(vision, width, 14) + width + _patches(vision, 336, 14) * width + width
    down = _linear(width * int(vision.get("spatial_merge_size", 2)) ** 2, out)
    merger = out**2 + 2 * out + 3 * out * int(vision.get("intermediate_size", 13696))
    return start + int(vision.get("depth", 24)) * layer + width + down + merger


def llava_next(model: Model) -> int:
    """That of LLaVA, and a vector for the end of a line."""
    return llava(model) + model.text_hidden


def paligemma(model: Model) -> int:
    """SigLIP without its head, then one linear."""
    vision = model.vision
    tower = _siglip(vision, 224, 16, 12, head=bool(vision.get("vision_use_head", False)))
    return tower + _linear(int(vision.get("hidden_size", 768)), model.text_hidden)


def kimi_k25(model: Model) -> int:
    """A ViT with a grid of learned positions; then a norm and two linears over a square of patches."""
    outer, vision, text_hidden = model
    width, ffn = int(vision.get("hidden_size", 1152)), int(vision.get("intermediate_size", 4304))
    grid = int(vision.get("pos_emb_height", 64)) * int(vision.get("pos_emb_width", 64))
    start = _linear(3 * _side(vision.get("patch_size", 14)) ** 2, width) + grid * width
    tower = start + int(vision.get("num_hidden_layers", 27)) * _layer(width, ffn) + 2 * width
    merged = width * prod(_pair(vision.get("merge_kernel_size", 2)))
    projector = _linear(merged, merged) + _linear(merged, text_hidden)
    return tower + 2 * int(outer.get("projection_hidden_size", 1152)) + projector


def mllama(model: Model) -> int:
    """`MllamaVisionModel`: positions for each of some shapes of tiles, layers, gated global layers; one linear."""
    _, vision, text_hidden = model
    width, ffn = int(vision.get("hidden_size", 1280)), int(vision.get("intermediate_size", 5120))
    tiles = (len(vision.get("supported_aspect_ratios") or range(8)) + 1) * int(vision.get("max_num_tiles", 4))
    places = _patches(vision, 448, 14) + 1
    start = 3 * _side(vision.get("patch_size", 14)) ** 2 * width + 5 * width
    positions = 1 + places * width + tiles * places * width + 2 * (1 + tiles * width)
    layers, gated = int(vision.get("num_hidden_layers", 32)), int(vision.get("num_global_layers", 8))
    tower = start + positions + (layers + gated) * (_layer(width, ffn) - 4 * width) + 2 * gated
    return tower + _linear(int(vision.get("vision_output_dim", 7680)), text_hidden)


def llama4(model: Model) -> int:
    """`Llama4VisionModel`: patches unfolded into one matrix, an adapter of two matrices, and the projector's one."""
    _, vision, text_hidden = model
    width, ffn = int(vision.get("hidden_size", 768)), int(vision.get("intermediate_size", 5632))
    start = 3 * _side(vision.get("patch_size", 14)) ** 2 * width + width + (_patches(vision, 448, 14) + 1) * width
    tower = start + int(vision.get("num_hidden_layers", 34)) * _layer(width, ffn) + 4 * width
    adapter = ffn * int(vision.get("projector_input_dim", 4096)) + int(vision.get("projector_output_dim", 4096)) ** 2
    return tower + adapter + int(vision.get("vision_output_dim", 7680)) * text_hidden


def _pair(value: Any) -> tuple[int, int]:
    return (int(value[0]), int(value[1])) if isinstance(value, list | tuple) else (int(value), int(value))


def _features(outer: Config) -> int:
    """How many layers' features go into the projector side by side."""
    layers = outer.get("vision_feature_layer", -1)
    return len(layers) if isinstance(layers, list | tuple) else 1


TOWERS: dict[tuple[str, str], Callable[[Model], int]] = {
    ("qwen2_vl", ""): qwen2_vl,
    ("qwen2_5_vl", ""): qwen2_5_vl,
    ("qwen3_vl", ""): qwen3_vl,
    ("qwen3_vl_moe", ""): qwen3_vl,
    ("qwen3_5", ""): qwen3_5,
    ("qwen3_5_moe", ""): qwen3_5,
    ("gemma3", "siglip_vision_model"): gemma3,
    ("idefics3", ""): idefics3,
    ("smolvlm", ""): idefics3,
    ("llava", "clip_vision_model"): llava,
    ("glm4v", ""): glm4v,
    ("glm46v", ""): glm4v,
    ("glm4v_moe", ""): glm4v,
    ("llava_next", "clip_vision_model"): llava_next,
    ("paligemma", "siglip_vision_model"): paligemma,
    ("kimi_k25", ""): kimi_k25,
    ("mllama", ""): mllama,
    ("llama4", ""): llama4,
    ("mistral3", "pixtral"): mistral3,
    ("internvl", "internvl_vision"): internvl,
}
"""(model_type, the tower's own, "" where there is but one) -> its count."""


def tower_parameters(outer: Config, text_hidden: int) -> int | None:
    """Parameters of the tower and projector of a configuration with `vision_config`; None for an unknown tower."""
    vision, family = outer.get("vision_config") or {}, str(outer.get("model_type"))
    one = next((kind for kind in TOWERS if kind[0] == family), None)
    if one is None or (one[1] and vision.get("model_type", one[1]) != one[1]):
        return None
    return TOWERS[one](Model(outer, vision, text_hidden))
