"""Pairs of templates are different, and all templates are among them."""

from itertools import product

from analyses.papers.template.kernels import every_template, random_pairs


def canonical(text: str) -> str:
    names = dict(zip(dict.fromkeys(text), "αβγδ", strict=False))
    return "".join(names[c] for c in text)


def test_random_pairs_are_different_pairs_of_all_templates() -> None:
    assert set(every_template(4)) == {canonical("".join(s)) for s in product("αβγδ", repeat=4)}
    assert [len(every_template(n)) for n in (2, 3, 4, 5)] == [2, 5, 15, 52]
    tasks = random_pairs(10, 3, seed=1, train=(0, 8), test=(8, 16))
    assert len({frozenset(task.templates) for task in tasks}) == 10
    assert {z for task in tasks for z in task.templates} == set(every_template(3))
    assert tasks[0].labels == (1.0, -1.0)
    assert tasks[0].test == (8, 16)
    some = [task.templates for task in random_pairs(5, 4, seed=1)]
    assert some == [task.templates for task in random_pairs(5, 4, seed=1)]
    assert some != [task.templates for task in random_pairs(5, 4, seed=2)]
