"""Which blocks of a model run where autograd saves a parameter for backward."""

from collections.abc import Iterable

import torch


class SavedUses:
    """The uses of parameters in a forward, as autograd sees them, each with the blocks that ran around it, by number.

    A weight that a module takes from another one without calling it, as in ``F.linear(x, self.embedding.weight)``,
    belongs to a block that does not run there, but backward needs it there all the same.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._numbers = {_storage(parameter): number for number, parameter in enumerate(parameters)}
        self._running: list[int] = []
        self._uses: dict[int, set[frozenset[int]]] = {}
        self._hooks: torch.autograd.graph.saved_tensors_hooks | None = None

    def enter(self, block: int) -> None:
        """A block begins to run; what is saved from the first one's beginning on is looked at, until stop()."""
        if self._hooks is None:
            self._hooks = torch.autograd.graph.saved_tensors_hooks(self._note, _as_it_is)
            self._hooks.__enter__()
        self._running.append(block)

    def leave(self, block: int) -> None:
        """It has run, and so have those that it has called, whatever became of them."""
        if block in self._running:
            del self._running[self._running.index(block) :]

    def stop(self) -> None:
        """The first one has run, or was broken off. May be called when nothing runs."""
        self._running.clear()
        if self._hooks is not None:
            self._hooks.__exit__()
            self._hooks = None

    def outside_of(self, owners: list[set[int]]) -> list[int]:
        """The parameters that were used while none of the blocks that own them ran."""
        return sorted(
            number for number, uses in self._uses.items() if any(owners[number].isdisjoint(running) for running in uses)
        )

    def _note(self, saved: torch.Tensor) -> torch.Tensor:
        number = self._numbers.get(_storage(saved))
        if number is not None:
            self._uses.setdefault(number, set()).add(frozenset(self._running))
        return saved


def _as_it_is(saved: torch.Tensor) -> torch.Tensor:
    return saved


def _storage(tensor: torch.Tensor) -> int | None:
    """What parameters and their views have in common; sparse tensors have none."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else None
