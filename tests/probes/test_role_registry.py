"""Each role is told once, and the model is run no more often than it must be."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from interp.errors import ArgumentError
from interp.models.export import export_gpt2
from interp.models.pretrained import load_pretrained
from probes import fresh_models
from probes.roles import LANGUAGE, PROFILES, ROLES, Floors, find_roles, turned
from probes.roles.decision import MEANINGS
from probes.roles.registry import CONTROLS, markdown
from trained import zoo

DOCS = Path(__file__).parent.parent.parent / "docs"
FORWARDS = {
    "fixed-memory-multiplexer": 29.1,
    "template-majority": 17.3,
    "induction-attention": 16.0,
}
"""Forwards of all rows, at 96 rows: each change once, from its layer on."""


def test_the_documentation_has_every_role_as_it_is() -> None:
    assert markdown() in (DOCS / "roles.md").read_text(encoding="utf-8")


def test_the_documentation_says_of_every_status_what_it_means() -> None:
    told = "\n".join(f"| `{name}` | {about} |" for name, about in MEANINGS.items())
    assert told in (DOCS / "roles.md").read_text(encoding="utf-8")


def test_roles_name_floors_and_profiles_that_there_are() -> None:
    known = {field.name for field in fields(Floors)}
    for role in ROLES.values():
        assert set(role.floors) <= known
        assert set(role.profiles) <= set(PROFILES)
        assert role.control in CONTROLS or role.uncontrolled
        assert role.behaviours
        assert role.causes


@pytest.mark.parametrize("name", sorted(FORWARDS))
def test_nothing_is_run_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_models, "_DRAWS", 20)
    monkeypatch.setattr(turned, "_DRAWS", 1)
    assert forwards(name) <= FORWARDS[name]


def forwards(name: str) -> float:
    """How often all rows pass through the model."""
    shipped = zoo.load(name)
    blocks, rows = shipped.model.blocks, []

    def count(module: object, args: tuple[torch.Tensor, ...]) -> None:
        rows.append(len(args[0]))

    for block in blocks:
        block.register_forward_pre_hook(count)
    batch = shipped.task.sample(96, seed=10_009)
    memories, answers = (getattr(shipped.task, of, tuple)() for of in ("memories", "answers"))
    known = {"memories": memories, "answers": dict(answers)}
    find_roles(shipped.model, batch, profile="task", **known, seed=1)
    return sum(rows) / len(blocks) / len(batch)


def test_a_checkpoint_and_its_export_have_the_same_roles(tmp_path: Path) -> None:
    shipped = zoo.load("induction-attention")
    bridge = load_pretrained(export_gpt2(shipped.model, tmp_path / "exported", bos=0)).model
    batch = shipped.task.sample(24, seed=7)
    columns = ["layer", "head", "role", "status"]
    own, other = (find_roles(m, batch, profile=LANGUAGE)[columns] for m in (shipped.model, bridge))
    assert own.to_numpy().tolist() == other.to_numpy().tolist()
    told = set(own.itertuples(index=False, name=None))
    assert {(0, 0, "previous-token", "confirmed"), (1, 0, "induction", "confirmed")} <= told


def test_a_role_that_is_added_by_hand_keeps_the_rules_of_packages() -> None:
    role = ROLES["previous-token"]
    with pytest.raises(ArgumentError, match=r"prooflens.roles mine is not added: name must be .*"):
        ROLES["mine"] = role
    wrong = replace(role, name="mine", control="other")
    with pytest.raises(ArgumentError, match=r"control must be of .*, got 'other': choose one"):
        ROLES["mine"] = wrong
    assert "mine" not in ROLES
    ROLES["mine"] = replace(role, name="mine")
    try:
        assert ROLES["mine"].keys == "previous"
    finally:
        del ROLES["mine"]
