"""The models that role detectors are judged on, and those they were tuned on.

Every family of constructions, plain and hidden, and decoys: heads with the right pattern and no
effect, and models with random weights in the shapes of each family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from interp.models.transformer import SequenceTransformer
from interp.proofs import induction, template
from interp.proofs.depth import cases as depth
from interp.proofs.hide import hide
from interp.proofs.induction import construct_relation
from interp.proofs.mechanism import Construction, Mechanism
from interp.proofs.memory import construct_adaptive_memory, construct_fixed_memory
from interp.tasks.base import Batch
from interp.tasks.memory import AdaptiveMemory, FixedMemory
from interp.tasks.relation import Relation, TokenRelation

__all__ = ["Case", "cases", "decoys"]


@dataclass(frozen=True)
class Case:
    """A construction to be measured on rows of its task.

    Attributes:
        name: With family, size and seed.
        construct: Builds it.
        seed: Of the rows, and of hiding.
        hidden: Measure it in a random basis.
        decoy: Nothing is to be found in it.
        with_latents: Its roles speak of the task's latents.
        peer: TransformerLens' detector runs on it.
    """

    name: str
    construct: Callable[[], Construction]
    seed: int
    hidden: bool = False
    decoy: bool = False
    with_latents: bool = False
    peer: bool = False

    def build(self, rows: int) -> tuple[Construction, Batch]:
        """The construction, hidden if it is to be, and rows of its task."""
        built = self.construct()
        batch = built.task.sample(rows, seed=self.seed)
        return hide(built, self.seed) if self.hidden else built, batch


def cases(*, tuning: bool = False) -> list[Case]:
    """Every construction, each plain and hidden."""
    plain = list(_tuning() if tuning else _scored())
    hidden = [replace(c, name=f"{c.name} hidden", hidden=True, seed=c.seed + 1) for c in plain]
    return plain + hidden


def decoys(*, tuning: bool = False) -> list[Case]:
    """Models in which there is nothing to find."""
    found = []
    if not tuning:
        found = [
            Case(f"decoy {number}", build, 900 + number, decoy=True, hidden=bool(number % 2))
            for number, build in enumerate(induction.DECOYS)
        ]
    shapes = list(_tuning() if tuning else _scored())[:: 3 if tuning else 4]
    for number, case in enumerate(shapes):
        seed = (7000 if tuning else 8000) + number
        random = partial(_random, case.construct, seed)
        found.append(replace(case, name=f"random {case.name}", construct=random, decoy=True,
                             seed=seed, peer=False))  # fmt: skip
    return found


def _random(construct: Callable[[], Construction], seed: int) -> Construction:
    built = construct()
    model = SequenceTransformer(built.model.spec, seed=seed)
    return replace(built, model=model, mechanism=Mechanism(()))


def _scored() -> Iterator[Case]:
    for number, build in enumerate(induction.CASES):
        relation = get_args(Relation)[number // 5]
        name = f"relation {relation} {number % 5}"
        yield Case(name, build, 2000 + 2 * number, peer=True)
    for number, found in enumerate(template.CASES):
        yield Case(f"template {found.name}", found.construct, 3000 + 2 * number)
    for number, task in enumerate(_FIXED):
        build = partial(construct_fixed_memory, task)
        yield Case(task.name, build, 4000 + 2 * number, with_latents=True)
    for number, nested in enumerate(_ADAPTIVE):
        build = partial(construct_adaptive_memory, nested)
        yield Case(nested.name, build, 4500 + 2 * number, with_latents=True)
    for number, program in enumerate(depth.CASES):
        yield Case(program.name, program.construct, 5000 + 2 * number)


_FIXED = (
    FixedMemory((1, 3), "multiplexer", length=24),
    FixedMemory((1, 2, 4), "parity", length=28),
    FixedMemory((2, 4), "majority", length=24),
    FixedMemory((4,), "table", length=20, table_seed=3),
    FixedMemory((2, 3), "table", length=26, table_seed=5),
)


_ADAPTIVE = (
    AdaptiveMemory((1, 2), rounds=1, length=20),
    AdaptiveMemory((1, 3), rounds=1, length=24, table_seed=1),
    AdaptiveMemory((1, 2), rounds=2, readout="parity", length=22, table_seed=2),
    AdaptiveMemory((1, 2, 3), rounds=2, readout="parity", length=24, table_seed=3),
    AdaptiveMemory((1, 2), 1, 1, readout="parity", length=26, table_seed=4),
)


def _tuning() -> Iterator[Case]:
    """Sizes, seeds and rows that no scored case has."""
    for number, relation in enumerate(get_args(Relation)):
        task = TokenRelation(relation, "copy" if number % 2 else "classes", symbols=11, length=19)
        build = partial(construct_relation, task, heads=1 + number % 3, strength=28.0, seed=number)
        yield Case(f"relation {relation} tuning", build, 100 + 2 * number)
    memory = FixedMemory((1, 2), "multiplexer", length=18)
    yield Case(memory.name, partial(construct_fixed_memory, memory), 300, with_latents=True)
    program = depth.Case("L_3", ((15, 15),))
    yield Case(program.name, program.construct, 400)
