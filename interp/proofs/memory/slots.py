"""Which residual coordinate of an adaptive memory holds what, and which layer does which round."""

from __future__ import annotations

from dataclasses import dataclass, field

from interp.tasks.memory import AdaptiveMemory

__all__ = ["AdaptiveSlots"]


@dataclass(frozen=True)
class AdaptiveSlots:
    """Which residual coordinate holds which memory of a task, and in which round it is fetched.

    Attributes:
        task: The task that is solved.
        at: Latent → coordinate; of an address a[…] its first, the other bits follow.
        width: The number of coordinates.
    """

    task: AdaptiveMemory
    at: dict[str, int] = field(init=False)
    width: int = field(init=False)

    def __post_init__(self) -> None:
        task, at = self.task, {"x[t]": 0, "a[t]": 1}
        free = 1 + task.bits
        for i in range(1, task.memory_count + 1):
            at |= {f"t_{i}": free, f"x[t-t_{i}]": free + 1}
            free += 2
            if self.points(i):
                at[f"a[t-t_{i}]"] = free
                free += task.bits
        object.__setattr__(self, "at", at | {"f": free})
        object.__setattr__(self, "width", free + 1)

    @property
    def rounds(self) -> list[tuple[int, ...]]:
        """The memories that each sequential round fetches; layer r does round r, layer 0 does
        none."""
        task = self.task
        nested: list[tuple[int, ...]] = [(i,) for i in range(1, task.rounds + 1)]
        together = tuple(range(task.rounds + 1, task.memory_count + 1))
        return [*nested, together] if together else nested

    def points(self, memory: int) -> bool:
        """Whether a later location is read from this memory's address."""
        return memory <= self.task.rounds and memory < self.task.memory_count

    def bits(self, address: str) -> range:
        """The coordinates of an address."""
        return range(self.at[address], self.at[address] + self.task.bits)

    def pointer(self, layer: int) -> str:
        """The name of the address from which this layer's FFN reads the next locations."""
        return f"a[t-t_{layer}]" if layer else "a[t]"

    def carried(self, memory: int) -> list[tuple[int, int]]:
        """The pairs (coordinate read, coordinate written) of what a memory's heads carry."""
        pairs = [(self.at["x[t]"], self.at[f"x[t-t_{memory}]"])]
        if self.points(memory):
            pairs += zip(self.bits("a[t]"), self.bits(f"a[t-t_{memory}]"), strict=True)
        return pairs
