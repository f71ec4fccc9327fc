"""The shipped roles that are about latents of a task: memories, and what is computed from them."""

from __future__ import annotations

from probes.roles import surrogates
from probes.roles.detectors.memories import memory_roles
from probes.roles.detectors.mixtures import mixture_roles
from probes.roles.detectors.readouts import readout_roles, round_roles
from probes.roles.role import Role

ITS_OWN = "what is lost is what the role itself names"
"""Why a role that names what is lost has no controls."""

LATENT = (
    Role(
        "memory-location",
        "A head that fetches a memory of the task, alone or with others of its layer.",
        (
            "the layer's heads together select the memory's lag, and the head has its share of it; "
            "or the head alone selects it",
            "the memory is decodable after them and was not before; an average more exactly than "
            "in fresh models, or what they do to the output is done through it alone",
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
            "carried",
            "mixed",
            "drop",
            "memory_change",
        ),
        "r² of the memory lost without the memory's heads of the layer together",
        "memory §1.4",
        (memory_roles,),
        uncontrolled=ITS_OWN,
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
        uncontrolled=ITS_OWN,
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
        uncontrolled=ITS_OWN,
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
        uncontrolled=ITS_OWN,
    ),
    Role(
        "readout",
        "An FFN that computes an answer from arguments that are there before it.",
        (
            "the answer is linearly decodable after the FFN, and less so before, where a network "
            "reads it",
            "the answer is a larger share of what the FFN writes than in fresh models",
        ),
        ("without the FFN the answer is lost, its arguments are not, and the output changes",),
        ("decodable", "readout_gain", "written", "readout_drop", "kept", "memory_change"),
        "r² of the answer lost without the FFN",
        "memory §1.4",
        (readout_roles,),
        uncontrolled=ITS_OWN,
        surrogate=surrogates.ANSWER,
    ),
)
"""In the order in which they are listed."""
