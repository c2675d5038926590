"""Count the bytes of the tensors that operators create while they are alive."""

import weakref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Peak of the live bytes of storages first seen inside, and the largest of them.

    Tensors that exist before are announced as `known`; they are not kept alive. What a kernel allocates and frees
    within one operator is not seen.
    """

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self._alive: dict[int, weakref.ref] = {}
        self.live = self.peak = self.largest = 0
        for tensor in known:
            self._watch(tensor, 0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._watch(tensor, tensor.untyped_storage().nbytes())
        return result

    def _watch(self, tensor: Tensor, size: int) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._alive:
            return

        def gone(_: weakref.ref) -> None:
            del self._alive[key]
            self.live -= size

        self._alive[key] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)
        self.largest = max(self.largest, size)
