"""Which layers a pipeline stage holds, and how many micro-batches of them are in flight.

Source: Megatron Core's `get_num_layers_to_build` and its 1F1B and interleaved schedules.
"""

from collections import Counter
from functools import lru_cache

from msgspec import Struct

from headway.errors import InputError
from headway.facts.blocks import Block, by_letters
from headway.facts.shapes import ModelShape
from headway.facts.workload import Layout, Megatron

Groups = tuple[tuple[Block, int], ...]
"""Kinds of blocks with their numbers."""


class Stage(Struct, frozen=True):
    """One pipeline stage: the blocks of each of its parts (one, or as many as the schedule interleaves).

    `embedding`: it looks tokens up; `head`: it has the final norm and the output layer. `mtp` layers predict further
    tokens, on the last stage.

    >>> Stage(0, 4, ((),), embedding=True, head=False).first
    True
    """

    index: int
    count: int
    chunks: tuple[Groups, ...]
    embedding: bool
    head: bool
    mtp: int = 0

    @property
    def first(self) -> bool:
        """Whether it is the first stage."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether it is the last stage."""
        return self.index == self.count - 1

    @property
    def groups(self) -> Groups:
        """All of its blocks."""
        return _together(self.chunks)

    @property
    def kinds(self) -> tuple[Block, ...]:
        """Its kinds of blocks."""
        return tuple(block for block, _ in self.groups)

    @property
    def layers(self) -> int:
        """How many blocks it has, without those of multi-token prediction."""
        return sum(number for _, number in self.groups)


@lru_cache(maxsize=4096)
def _together(chunks: tuple[Groups, ...]) -> Groups:
    found: Counter[Block] = Counter()
    for groups in chunks:
        for block, number in groups:
            found[block] += number
    return tuple(found.most_common())


@lru_cache(maxsize=1024)
def stages(shape: ModelShape, layout: Layout, megatron: Megatron) -> tuple[Stage, ...]:
    """All stages in order. InputError where there are more of them than layers."""
    order, count, parts = _order(shape), layout.pipeline, layout.virtual_pipeline
    sizes = _between_bars(shape.letters, layout) or _sizes(len(order), layout, megatron)
    found = []
    for index in range(count):
        chunks = []
        for part in range(parts):
            place = part * count + index
            start = sum(sizes[:place])
            chunks.append(tuple(Counter(order[start : start + sizes[place]]).most_common()))
        last = index == count - 1
        found.append(Stage(index, count, tuple(chunks), index == 0, last, shape.mtp_layers if last else 0))
    return tuple(found)


def _between_bars(letters: str, layout: Layout) -> list[int]:
    """Layers of each part of each stage where a hybrid's letters have bars between them; empty where they have none.

    >>> _between_bars("M-M|*-", Layout(devices=2, pipeline=2))
    [3, 2]
    """
    sizes = [len(part) for part in letters.split("|")] if "|" in letters else []
    total = layout.pipeline * layout.virtual_pipeline
    if sizes and len(sizes) != total:
        raise InputError(
            f"the pattern of layers has {len(sizes)} parts, but layout.pipeline={layout.pipeline} x "
            f"layout.virtual_pipeline={layout.virtual_pipeline} makes {total}; set them so that they agree"
        )
    return sizes


def _sizes(layers: int, layout: Layout, megatron: Megatron) -> list[int]:
    """Layers of each part of each stage, in the order in which a token passes them."""
    count, parts = layout.pipeline, layout.virtual_pipeline
    total = count * parts
    first, last = layout.first_stage_layers, layout.last_stage_layers
    if first is None and last is None:
        extra_first, extra_last = int(megatron.count_embedding), int(megatron.count_loss)
        sizes = _even(layers + extra_first + extra_last, total)
        sizes[0] -= extra_first
        sizes[-1] -= extra_last
    else:
        ends = {0: first, count - 1: last}
        fixed = {index: size for index, size in ends.items() if size is not None}
        rest = layers - sum(fixed.values())
        others = [index for index in range(count) if index not in fixed]
        if rest < 0 or (rest and not others):
            raise InputError(
                f"layout.first_stage_layers and last_stage_layers hold {sum(fixed.values())} layers, but the model "
                f"has {layers} and layout.pipeline={count}; set them so that all stages together hold {layers}"
            )
        shares = dict(fixed)
        shares.update(zip(others, _even(rest, len(others)), strict=True) if others else {})
        by_stage = [_even(shares[index], parts) for index in range(count)]
        sizes = [by_stage[index][part] for part in range(parts) for index in range(count)]
    if min(sizes) < 0 or (total > layers + 2):
        raise InputError(
            f"layout.pipeline={count} x layout.virtual_pipeline={parts} makes {total} parts of {layers} layers; "
            f"set them to at most {layers} parts"
        )
    return sizes


def _even(layers: int, parts: int) -> list[int]:
    """Layers over parts as evenly as whole layers can, the first parts the larger.

    >>> _even(7, 3)
    [3, 2, 2]
    """
    if not parts:
        return []
    share, more = divmod(layers, parts)
    return [share + (index < more) for index in range(parts)]


def _order(shape: ModelShape) -> tuple[Block, ...]:
    """The blocks as a token passes them: as a hybrid's letters say; an encoder's before the decoder's, whose layers
    are two blocks each; else dense ones before experts, kinds of attention evenly mixed."""
    if shape.letters:
        return by_letters(shape.letters)
    if shape.encoder_layers:
        (encoder, far), *decoder = shape.blocks()
        return (encoder,) * far + tuple(block for block, _ in decoder) * shape.layers
    dense = [(block, number) for block, number in shape.blocks() if not block.experts]
    sparse = [(block, number) for block, number in shape.blocks() if block.experts]
    return (*_mixed(dense), *_mixed(sparse))


def _mixed(groups: list[tuple[Block, int]]) -> list[Block]:
    """Blocks of several kinds, each kind spread evenly."""
    places = [((position + 0.5) / number, block) for block, number in groups for position in range(number)]
    return [block for _, block in sorted(places)]


def in_flight(stage: Stage, micro_batches: int) -> tuple[int, ...]:
    """How often the activations of each part of a stage are held at the most.

    1F1B: stage p of P runs P - p forward passes before its first backward pass, fewer where a step has fewer
    micro-batches. Interleaved with v parts: 2 (P - p - 1) + (v - 1) P + 1 passes of a part, which take P
    micro-batches through one part before the next; summed over the parts that is 1 + (P - 1) / (P v) times as much on
    the first stage as without.

    >>> block = Block("full", experts=False)
    >>> in_flight(Stage(1, 4, (((block, 8),),), embedding=False, head=False), 16)
    (3,)
    >>> in_flight(Stage(0, 2, (((block, 4),),) * 2, embedding=True, head=False), 16)
    (3, 2)
    """
    parts = len(stage.chunks)
    if parts == 1:
        return (min(stage.count - stage.index, micro_batches),)
    group = _group(stage.count, micro_batches)
    passes = 2 * (stage.count - stage.index - 1) + (parts - 1) * group + 1
    held = [0] * parts
    for number in range(min(passes, parts * micro_batches)):
        held[number % (group * parts) // group] += 1
    return tuple(held)


def _group(count: int, micro_batches: int) -> int:
    """Micro-batches that an interleaved schedule takes through one part before the next: as many as stages, or the
    least above that which leaves no rest smaller than the stages, because Megatron Core refuses any other
    (`--microbatch-group-size-per-virtual-pipeline-stage`).

    >>> _group(4, 8), _group(4, 5), _group(4, 2)
    (4, 5, 2)
    """
    fits = (group for group in range(count, micro_batches + 1) if not 0 < micro_batches % group < count)
    return next(fits, micro_batches)
