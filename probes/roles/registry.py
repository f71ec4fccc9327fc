"""The registry of roles: what each role means, which tests a component must pass for it, and where
it was described.

A component gets a row in the role table if a role's *behaviours* all hold, and the row is
``confirmed`` if its *causes* hold as well (:mod:`probes.roles.decision`). A new role is an entry of
:data:`SHIPPED` and a detector that makes its tests (:mod:`probes.roles.detectors`); an installed
package adds one under the entry points ``prooflens.roles`` (:mod:`interp.plugins`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from interp.errors import Problems
from interp.plugins import Registry
from interp.tasks.base import Batch
from probes.roles import surrogates
from probes.roles.decision import Found, Lacking
from probes.roles.detectors.attention import attention_roles
from probes.roles.detectors.circuits import circuit_roles
from probes.roles.detectors.composition import composition_roles
from probes.roles.detectors.counting import counting_roles
from probes.roles.detectors.ffns import ffn_roles
from probes.roles.detectors.gating import gating_roles
from probes.roles.detectors.lookups import lookup_roles
from probes.roles.detectors.mapping import copying_roles, mapping_roles
from probes.roles.detectors.memories import memory_roles, round_roles
from probes.roles.detectors.mixtures import mixture_roles
from probes.roles.detectors.passing import passing_roles
from probes.roles.detectors.positions import position_roles
from probes.roles.detectors.suppression import suppression_roles
from probes.roles.examined import Examined
from probes.roles.profile import PROFILES, Floors
from probes.roles.surrogates import Surrogate

Detector = Callable[[Examined], Iterable[Found | Lacking]]
"""A function from what was examined to the findings of a role for every component, and to what
could not be tested. It changes nothing that it is given."""

CONTROLS = {
    "events": "the loss rises (the output changes) where its event happens, and not as much at "
    "other positions",
    "keys": "it does so without that attention, and not as much without the head's other attention",
    "straight": "it does so without the head, and not as much when later layers alone lose what it "
    "writes; and of what is lost without what it adds to the logits half is due to the tokens it "
    "attends to (of a map, to their images)",
    "pattern": "it does so without the head, and not as much when its attention is the mean over "
    "rows",
}
"""Each kind of control (:mod:`probes.roles.specificity`) → what it asks, in words."""


@dataclass(frozen=True)
class RoleCase:
    """A model of which it is known what plays a role, for judging the role's detector.

    Attributes:
        name: The name of the model in the benchmark.
        model: A hooked model.
        rows: The rows on which the role is tested.
        plays: (component, layer, head) of each component that plays the role, head −1 for one that
            is no head; empty for a decoy, in which nothing plays it.
    """

    name: str
    model: Any
    rows: Batch
    plays: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Role:
    """A role: what a component does, and what is tested for it.

    Attributes:
        name: The name in the column ``role``.
        sentence: What a component of this role does, in a sentence.
        behaviours: What must be observed of the component.
        causes: What must be lost without it.
        floors: Names of the :class:`~probes.roles.profile.Floors` that its tests are compared with.
        strength: What the column ``strength`` holds; ``effect`` holds the score of the last cause.
        source: The publication that describes the role.
        profiles: The names of the profiles in which the role is tested.
        detectors: The detectors that make its tests; each is called once for all roles that name
            it.
        keys: The key set that the role is about, if it says where a head attends.
        control: What a cause must be specific against, one of :data:`CONTROLS`; empty if there is
            no control.
        uncontrolled: Why there is no control, or none in the profile ``task``.
        cases: Models of known truth on which a package's role is judged (``python -m analyses
            benchmark plugin_roles``); shipped roles have their own benchmark.
        surrogate: The surrogate that can run in the component's place
            (:mod:`probes.roles.explanation`); None if the role does not define one.
    """

    name: str
    sentence: str
    behaviours: tuple[str, ...]
    causes: tuple[str, ...]
    floors: tuple[str, ...]
    strength: str
    source: str
    detectors: tuple[Detector, ...]
    profiles: tuple[str, ...] = ("task",)
    keys: str = ""
    control: str = ""
    uncontrolled: str = ""
    cases: Callable[[], Iterable[RoleCase]] | None = None
    surrogate: Surrogate | None = None


_BOTH = ("task", "language")
_WITHOUT_HEAD = ("without the head the output changes, or the loss rises",)
_WITHOUT_KEYS = ("without that attention the output changes, or the loss rises",)
_EVERYWHERE = "its event happens at every position and with every key"
_ITS_OWN = "what is lost is what the role itself names"
"""Reason that is shown for having no controls, for roles that name the very thing that is lost."""

SHIPPED = (
    Role(
        "previous-token",
        "A head that attends to the token before.",
        (
            "share of attention to the token before, and beyond even attention",
            "or less of it, where an induction head's attention falls without it",
        ),
        _WITHOUT_KEYS,
        ("share", "excess", "writer", "fall"),
        "share of attention on those keys",
        "Elhage et al. 2021",
        (attention_roles,),
        _BOTH,
        keys="previous",
        control="keys",
        surrogate=surrogates.PREVIOUS,
    ),
    Role(
        "sink",
        "A head that rests on the first position.",
        ("share of attention to the first position, and beyond even attention",),
        _WITHOUT_KEYS,
        ("share", "excess"),
        "share of attention on it",
        "Xiao et al. 2023",
        (attention_roles,),
        _BOTH,
        keys="first",
        control="keys",
        surrogate=surrogates.SINK,
    ),
    Role(
        "local",
        "A head that attends to the last few positions.",
        (
            "share of attention to the last few positions, and beyond even attention",
            "no single position gets most of it",
        ),
        _WITHOUT_KEYS,
        ("local", "excess", "share", "window"),
        "share of attention within the window",
        "memory §1.4",
        (attention_roles,),
        keys="local",
        control="keys",
        surrogate=surrogates.LAGS,
    ),
    Role(
        "duplicate-token",
        "A head that attends to earlier tokens equal to the query's.",
        (
            "share of attention to earlier equal tokens, and beyond that of other rows' tokens",
            "little of it stays on the query itself",
        ),
        _WITHOUT_KEYS,
        ("share", "excess", "elsewhere"),
        "share of attention on those keys",
        "Wang et al. 2022",
        (attention_roles,),
        _BOTH,
        keys="same",
        control="events",
        surrogate=surrogates.DUPLICATE,
    ),
    Role(
        "induction",
        "A head that attends to what followed earlier tokens equal to the query's, and finds it by "
        "what a previous-token head wrote there.",
        (
            "share of attention to what followed equal tokens, and beyond that to other rows' "
            "tokens",
        ),
        (
            "that share falls without the earlier previous-token heads",
            "where targets are known, the loss rises without that attention",
            *_WITHOUT_KEYS,
        ),
        ("share", "excess", "writer", "fall", "loss"),
        "share of attention on those keys",
        "Olsson et al. 2022",
        (attention_roles,),
        _BOTH,
        keys="after_same",
        control="events",
        surrogate=surrogates.INDUCTION,
    ),
    Role(
        "positional",
        "A head whose attention is nearly the same whatever the row holds.",
        (
            "in a language model: cosine of its attention on different rows beyond permuted "
            "attention, which is neither on the token before nor on the first",
            "on rows of a task: its attention is nearly the same on all of them, and not even; "
            "with its mean on other rows in its place, what it does to the output is kept; and the "
            "loss is lower than with what it writes turned at random",
        ),
        _WITHOUT_HEAD,
        ("positional", "excess", "selected", "tabled"),
        "cosine of attention on different rows; of a task, the share of its effect that is kept",
        "ours",
        (attention_roles, position_roles),
        _BOTH,
        control="pattern",
        surrogate=surrogates.MEAN,
    ),
    Role(
        "copying",
        "A head that raises the tokens it attends to; with a negative strength it suppresses them.",
        (
            "task: W_E OV W_U is as near to c·I on the tokens in use as its rank allows, "
            "tokens lead their row, and its eigenvalues have one sign",
            "language: the logits of attended tokens rise above those of other rows' tokens",
        ),
        (
            "task: without what it writes straight to the output, alone or with such heads of its "
            "layer, the output changes",
            f"language: {_WITHOUT_HEAD[0]}",
        ),
        ("identity", "leading", "positive", "copying", "mixed"),
        "share of the circuit that c·I explains, of what its rank allows, or logits; negative for "
        "suppression",
        "template §2.3",
        (circuit_roles, copying_roles),
        _BOTH,
        control="straight",
        uncontrolled="its cause takes away nothing but what the head writes straight to the output",
        surrogate=surrogates.COPY,
    ),
    Role(
        "copy-suppression",
        "A head that attends to an earlier occurrence of the token that the stream before it "
        "predicts, and lowers that token.",
        (
            "share of attention to earlier places of the token that is predicted before its layer, "
            "and beyond even attention",
            "it lowers that token's logit, and those of the tokens it attends to",
        ),
        (
            "that share falls when the stream no longer predicts the token",
            "without that attention the loss rises",
        ),
        ("share", "excess", "copying", "fall"),
        "share of attention on those keys",
        "McDougall et al. 2023",
        (suppression_roles,),
        ("language",),
        keys="predicted",
        control="keys",
        surrogate=surrogates.PREDICTED,
    ),
    Role(
        "successor",
        "A head that raises, of the token that it attends to, the image under a fixed map of "
        "tokens, such as the next number; with a negative strength it lowers it.",
        (
            "the logits of the images of attended tokens rise above those of other rows' tokens' "
            "images",
            "the map is the same on other rows, takes tokens to tokens of their own, and to others",
        ),
        ("without the head the loss rises",),
        ("copying", "mapped"),
        "logits of the images of attended tokens",
        "Gould et al. 2023",
        (mapping_roles,),
        ("language",),
        control="straight",
        surrogate=surrogates.TABLE,
    ),
    Role(
        "bos-gated",
        "A head that rests on the first position unless its event happens: the query's token came "
        "before, or is of a class.",
        (
            "attention on the first position tells whether the event happens, and more than "
            "another row's event",
            "it is nearly all of its attention or nearly none, and both are common",
        ),
        _WITHOUT_KEYS,
        ("gated", "excess", "mixed"),
        "AUC with which resting tells the event",
        "Guo et al. 2024",
        (gating_roles,),
        ("language",),
        keys="moved",
        control="events",
        surrogate=surrogates.DUPLICATE,
    ),
    Role(
        "virtual-copying",
        "A head that raises what an earlier head fetched for it: the two act as one (a virtual "
        "attention head, by V-composition); with a negative strength it lowers it.",
        (
            "the logits of the tokens that an earlier head fetched where it attends, other than "
            "those that stand there, rise above those of other rows' such tokens",
        ),
        (
            "that rise is lost when its values lack what the earlier head wrote, and not when they "
            "lack what the loudest other heads of that layer wrote",
            "without that in its values the loss rises",
            *_WITHOUT_HEAD,
        ),
        ("copying", "specific", "fall"),
        "logits of those tokens",
        "Elhage et al. 2021",
        (composition_roles,),
        ("language",),
        control="straight",
        surrogate=surrogates.RELAYED,
    ),
    Role(
        "composed-equality",
        "A head that compares tokens by what an earlier head fetched: it attends to where that was "
        "the query's token (K-composition), or to tokens equal to what was fetched for the query "
        "(Q-composition). With a previous-token head, K-composition is induction and is called so.",
        (
            "share of attention to those keys, but for the query's own token and what followed it, "
            "and beyond that to other rows' such keys",
        ),
        (
            "that share falls when its keys (K) or queries (Q) lack what the earlier head wrote, "
            "and not as much when they lack what the loudest other heads of that layer wrote",
            "without that attention the loss rises",
        ),
        ("share", "excess", "fall"),
        "share of attention on those keys",
        "Elhage et al. 2021",
        (composition_roles,),
        ("language",),
        keys="matched",
        control="keys",
        surrogate=surrogates.MATCHED,
    ),
    Role(
        "symbol-equality",
        "A head whose scores compare tokens: equal ones attend to each other.",
        (
            "W_E QK W_Eᵀ is as near to c·I on the tokens in use as its rank allows, with c > 0, "
            "tokens lead their row, and its eigenvalues are positive",
        ),
        ("without attention to equal tokens the output changes",),
        ("identity", "leading", "positive", "change"),
        "share of the circuit that c·I explains, of what its rank allows",
        "template §2.3",
        (circuit_roles,),
        uncontrolled=_EVERYWHERE,
        surrogate=surrogates.EQUAL,
    ),
    Role(
        "uniform",
        "A head that attends evenly to everything before, or to all of it but the first position.",
        ("closeness to even attention, over all positions or all but the first",),
        (
            "somewhere on the way to its mean the output changes more steeply than in fresh "
            "models; or, where fresh heads are not even, it is more even than they are",
            "without the head the output changes",
        ),
        ("even", "change"),
        "closeness to even attention; 1 is even",
        "depth §3.3",
        (attention_roles,),
        uncontrolled=_EVERYWHERE,
        surrogate=surrogates.UNIFORM,
    ),
    Role(
        "fixed-position",
        "A head that attends to one position that follows from the query's own, i → f(i), whatever "
        "the row holds.",
        (
            "share of attention to the position that was most attended to in other rows, and "
            "beyond even attention",
            "that is mostly neither the query's own position, the one before, nor the first",
        ),
        _WITHOUT_KEYS,
        ("share", "excess"),
        "share of attention on that position",
        "ours",
        (attention_roles,),
        keys="fixed",
        control="keys",
        surrogate=surrogates.FIXED,
    ),
    Role(
        "token-comparison",
        "A head that attends evenly to all tokens that are equal to, different from, smaller or "
        "greater than the query's, by their numbers.",
        (
            "closeness to even attention over those tokens, and beyond that of other rows' tokens",
            "the relation is not that of earlier equal tokens, which is duplicate-token",
        ),
        _WITHOUT_KEYS,
        ("selected", "excess"),
        "closeness to even attention over those tokens; 1 is even",
        "Weiss et al. 2021",
        (attention_roles,),
        keys="related",
        control="keys",
        surrogate=surrogates.RELATED,
    ),
    Role(
        "positional-periodic",
        "A head that attends evenly to every p-th position.",
        ("closeness to even attention over those positions, and beyond even attention",),
        _WITHOUT_KEYS,
        ("selected", "excess"),
        "closeness to even attention over those positions; 1 is even",
        "ours",
        (attention_roles,),
        keys="periodic",
        control="keys",
        surrogate=surrogates.PERIODIC,
    ),
    Role(
        "counting",
        "A head that counts what a line of the task's program asks for, evenly or not.",
        (
            "the line follows from the head's output at each position, by a network, and is open "
            "before the layer",
        ),
        (
            "exchanged between rows the head's output moves the answers as the line would",
            "answers that must stay do",
        ),
        ("determined", "readout_gain", "exchange"),
        "share of the way to the answers of the program with the line exchanged",
        "depth §3.3",
        (counting_roles,),
        uncontrolled=_ITS_OWN,
        surrogate=surrogates.STATES,
    ),
    Role(
        "dense",
        "A head that attends unevenly in a way that has no name.",
        ("distance from even attention, and none of the other attention roles",),
        (
            "unevenness and steepness together are beyond those of fresh models, or its attention, "
            "exchanged between rows, moves the answers as the weights of the task's average would",
            "without the head the output changes",
        ),
        ("even", "share", "change", "exchange"),
        "distance from even attention",
        "coupling §4.2",
        (attention_roles,),
        uncontrolled=_EVERYWHERE,
        surrogate=surrogates.DENSE,
    ),
    Role(
        "memory-location",
        "A head that fetches a memory of the task, alone or with others of its layer.",
        (
            "the layer's heads together select the memory's lag, and the head has its share of it; "
            "or the head alone selects it",
            "the memory is decodable after them and was not before (of an average: half of what "
            "was missing is gained); an average more exactly than in fresh models, or what they do "
            "to the output is done through it alone",
        ),
        (
            "without the head the memory is less decodable (of an average: or the output changes; "
            "where others hold it too: or the output takes it from the head's attention to it)",
            "without the memory's heads of the layer it is lost (unless others hold it too), and "
            "the output changes",
        ),
        (
            "concentration",
            "kernel_share",
            "decodable",
            "absent",
            "readout_gain",
            "carried",
            "mixed",
            "drop",
            "memory_change",
        ),
        "r² of the memory lost without the memory's heads of the layer together",
        "memory §1.4",
        (memory_roles,),
        uncontrolled=_ITS_OWN,
        surrogate=surrogates.MEMORY,
    ),
    Role(
        "memory-correction",
        "A head that cancels what the other heads of a memory let through.",
        ("as for memory-location, but the head has no part of its own at the memory's lag",),
        ("without the head the memory is less decodable, and the output changes",),
        ("kernel_part", "kernel_beside", "drop", "memory_change"),
        "r² of the memory lost without the memory's heads of the layer together",
        "memory §1.4",
        (memory_roles,),
        uncontrolled=_ITS_OWN,
        surrogate=surrogates.MEMORY,
    ),
    Role(
        "memory-mixture",
        "A head of a group whose joint output holds several memories, unmixed by an FFN.",
        (
            "several memories, or the contents of all lags of a named one, are decodable after the "
            "layer's heads and were not before",
            "some head of the layer has a share of the kernels of two, and without it two are less "
            "decodable",
            "without the head itself one is",
        ),
        (
            "without the group all of them are less decodable, and the output changes",
            "without the FFN the output changes",
        ),
        ("decodable", "absent", "drop", "mixed", "kernel_beside", "memory_change"),
        "least r² of the contents after the layer's heads",
        "ours",
        (mixture_roles,),
        uncontrolled=_ITS_OWN,
        surrogate=surrogates.MEMORY,
    ),
    Role(
        "nested-round",
        "A layer that extracts one round of nested memories.",
        ("first layer at which the round's content is decodable",),
        ("it is not when the round before, or the first round's location, is patched away",),
        ("decodable", "stops"),
        "r² of the round's content lost with the round before patched away",
        "memory §1.4",
        (round_roles,),
        uncontrolled=_ITS_OWN,
    ),
    Role(
        "readout",
        "An FFN that computes an answer, or a line of the task's program, from arguments that are "
        "there before it, each or mixed.",
        (
            "the answer is linearly decodable after the FFN, and less so before, where a part of "
            "each argument is",
            "it explains a share of what the FFN writes; that share, or how well it is decodable, "
            "is beyond that of fresh FFNs in its place",
        ),
        (
            "without the FFN the answer is lost, arguments that were decodable are not, and the "
            "output changes",
        ),
        (
            "decodable",
            "readout_gain",
            "written",
            "mixture",
            "readout_drop",
            "kept",
            "memory_change",
        ),
        "r² of the answer lost without the FFN",
        "memory §1.4",
        (ffn_roles,),
        uncontrolled=_ITS_OWN,
        surrogate=surrogates.ANSWER,
    ),
    Role(
        "gating",
        "An FFN that lets one of several contents through, which heads brought side by side: the "
        "one at the place that the tokens name.",
        (
            "the memory is linearly decodable after the FFN and not before, where the contents of "
            "all places are",
            "it is more decodable, or explains more of what the FFN writes, than with fresh FFNs "
            "in its place",
        ),
        ("without the FFN the memory is lost, those contents are not, and the output changes",),
        ("decodable", "readout_gain", "readout_drop", "kept", "memory_change"),
        "r² of the memory lost without the FFN",
        "memory §1.4",
        (ffn_roles,),
        uncontrolled=_ITS_OWN,
        surrogate=surrogates.COMPUTED,
    ),
    Role(
        "unmixing",
        "An FFN that takes a memory out of a mixture of several that heads wrote together.",
        (
            "the memory is linearly decodable after the FFN and not before, where nor are the "
            "contents of all places that it may be at",
            "a linear probe reads a part of it before the FFN, and a part of another lag's content",
            "it is more decodable, or explains more of what the FFN writes, than with fresh FFNs "
            "in its place",
        ),
        ("without the FFN the memory is lost, and the output changes",),
        ("decodable", "readout_gain", "mixture", "readout_drop", "memory_change"),
        "r² of the memory lost without the FFN",
        "ours",
        (ffn_roles,),
        uncontrolled=_ITS_OWN,
        surrogate=surrogates.COMPUTED,
    ),
    Role(
        "sharpening",
        "An FFN that makes more exact what is nearly there before it: an answer, a line of the "
        "task's program, or a memory.",
        (
            "it is linearly decodable before the FFN, and half of what was missing is gained",
            "it is more decodable, or explains more of what the FFN writes, than with fresh FFNs "
            "in its place",
        ),
        (
            "without the FFN that gain is lost, and the output changes",
            "half of what the FFN does to the output stays with it alone of what the FFN writes",
        ),
        ("decodable", "readout_gain", "readout_drop", "alone", "memory_change"),
        "r² lost without the FFN",
        "ours",
        (ffn_roles,),
        uncontrolled=_ITS_OWN,
        surrogate=surrogates.COMPUTED,
    ),
    Role(
        "passing-on",
        "An FFN through which what heads wrote, or the token at its own position, reaches the "
        "output.",
        (
            "a share of what the FFN writes depends on it",
            "where the FFN alone does not see it the output changes, or the loss rises; and the "
            "output by more than with as large a change of what fresh FFNs in its place write",
            "half of that change is there, too, where it is taken out of the stream as a whole",
        ),
        ("without the FFN the output changes, or the loss rises",),
        ("mixed", "memory_change", "loss", "passed"),
        "change of the output, or rise of the loss, where the FFN alone does not see it",
        "ours",
        (passing_roles,),
        _BOTH,
        uncontrolled=_EVERYWHERE,
        surrogate=surrogates.COMPUTED,
    ),
    Role(
        "lookup",
        "An FFN that is a table over a few numbers that a linear map reads before it: latents of "
        "the task, the position, the token, how often it came so far, or what a head wrote.",
        (
            "with a table over at most four numbers in its place, fitted on other rows, what it "
            "does to the output is kept",
            "the loss is lower than with what the FFN writes turned at random",
        ),
        ("without the FFN the loss rises",),
        ("tabled", "loss"),
        "share of its effect on the output that is kept with the table",
        "ours",
        (lookup_roles,),
        uncontrolled=_EVERYWHERE,
        surrogate=surrogates.TABLED,
    ),
)
"""All roles that prooflens ships, in the order in which they are listed."""


def _problem(name: str, role: object) -> str:
    """Return why a role of an installed package cannot be used; empty if it can."""
    if not isinstance(role, Role):
        return f"it must be a Role (pl.roles.Role), got {type(role).__name__}"
    floors = {field.name for field in fields(Floors)}
    problems = Problems("role")
    problems.need(
        role.name == name,
        "name",
        "must be the one that it is registered under",
        role.name,
        "rename",
    )
    other = sorted(set(role.profiles) - set(PROFILES))
    problems.need(not other, "profiles", f"must be of {', '.join(PROFILES)}", other, "pick some")
    other = sorted(set(role.floors) - floors)
    problems.need(not other, "floors", f"must be of {', '.join(sorted(floors))}", other, "pick")
    rule = f"must be of {', '.join(CONTROLS)}, or empty"
    problems.need(role.control in ("", *CONTROLS), "control", rule, role.control, "choose one")
    problems.need(bool(role.detectors), "detectors", "must name one", role.detectors, "add it")
    return "; ".join(problems.found)


ROLES: Registry[Role] = Registry({role.name: role for role in SHIPPED}, "prooflens.roles", _problem)
"""Name of each role → the role: the shipped ones first, then those of installed packages."""


def markdown() -> str:
    """Return the shipped roles as a Markdown table for the documentation."""
    lines = ["| role | what it is | behaviour | cause | specific | `strength` | profiles | from |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for role in SHIPPED:
        cells = (
            role.name,
            role.sentence,
            "; ".join(role.behaviours),
            "; ".join(role.causes),
            CONTROLS[role.control] if role.control else f"no controls: {role.uncontrolled}",
            role.strength,
            ", ".join(role.profiles),
            role.source,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
