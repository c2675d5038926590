"""Numbers that are none: what torch, trainers and engines print where losses, gradients or probabilities are no
longer finite.

Wordings: aten's Multinomial and TensorCompare kernels, torch.distributions, autograd's anomaly mode, Megatron-LM,
DeepSpeed, SGLang."""

from headway.diagnose.sign import Sign

_NO_NEWS = (
    r"\b(?:no|without|any) (?:NaN|inf)|\bcheck(?:s|ing)?[ _](?:for|if)|NaN or Inf found in input tensor|"
    r"\b(?:skip|ignor|replac)\w*|\bif .{0,80}isnan"
)
_PART = r"(?!(?:eval|val|valid|validation|test)[/_. ])[a-z0-9]+[/_. ]+"
_NAME = rf"(?<![\w/])(?P<name>(?:{_PART}){{0,6}}(?:loss|grad(?:ient)?s?[_ -]?norm))['\"]?\s*[:=]?\s*"
METRIC = _NAME + r"[-+]?(?:\d|nan|inf|np\.|tensor)"
"""What shows a loss or a gradient's norm, whatever its value."""
NOT_FINITE = _NAME + r"(?:np\.\w+\(|tensor\(\[*)?(?P<value>nan|[-+]?inf(?:inity)?)\b"

SIGNS = (
    Sign(
        "not-finite",
        "why",
        (
            "probability tensor contains",
            "multinomialkernel.cu",
            "invalid multinomial distribution",
            "nan values in its",
            "found nan",
            "found inf",
            "detected nan",
            "nan detected",
            "nan in the logits",
            "loss is nan",
            "loss is inf",
            "nan loss",
            "non-finite",
            "not finite",
            "unexpected result nan",
        ),
        r"(?P<sampling>probability tensor contains either|MultinomialKernel\.cu.{0,200}Assertion|"
        r"invalid multinomial distribution|NaN in the logits)|returned nan values in its|found (?:NaN|Inf)\b|"
        r"detected NaN|NaN (?:values? )?(?:was |were )?detected|loss is (?:nan|inf)|\bnan loss|"
        r"(?:loss|norm|gradients?|logits)\b.{0,80}\b(?:is|are) (?:non-finite|not finite)|"
        r"non-finite (?:loss|grad\w*|norm|logits)|unexpected result nan",
        unless=_NO_NEWS,
        says="losses, gradients or probabilities are not finite any more; why they are not is not said",
    ),
    Sign(
        "loss-scale",
        "why",
        ("loss scale already at minimum", "minimum loss scale reached"),
        says="fp16 gradients overflowed at every loss scale",
    ),
    Sign(
        "nan-metric",
        "context",
        (
            ": nan", ":nan", "=nan", "= nan", "(nan", "loss nan", "norm nan", "loss': inf", 'loss": inf', "loss: inf",
            "loss:inf", "loss=inf", "loss inf", "norm': inf", 'norm": inf', "norm: inf", "norm:inf", "norm=inf",
            "norm inf",
        ),
        NOT_FINITE,
        says="a loss or a gradient's norm was not finite; once, with fp16, it is usual: that step is left out",
    ),
)  # fmt: skip
