"""Tasks with known latents: what is to be learned."""

from interp.tasks.base import Batch, Memory, Task, answers_of, memories_of
from interp.tasks.catalogue import KINDS, register_task, task_from_dict
from interp.tasks.counterfactual import sought_of
from interp.tasks.coupling import (
    BASES,
    LinearKernel,
    PodCoupling,
)
from interp.tasks.depth import Membership, PrefixPrediction
from interp.tasks.depth.languages import language
from interp.tasks.induction import InContextTemplate, RepeatedTokens
from interp.tasks.maximum import Maximum
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory, RealMemory
from interp.tasks.memory.kernels import MemoryKernel
from interp.tasks.relation import TokenRelation
from interp.tasks.template import TemplateTask
from interp.tasks.template.task import (
    NAMED,
    aabb_abab,
    aba_abb,
    copying,
    induction_style,
    random_task,
    same_different,
    wildcards,
)
from interp.tasks.walks import SuccessorWalk

__all__ = [
    "BASES",
    "KINDS",
    "NAMED",
    "AdaptiveMemory",
    "Batch",
    "FixedMemory",
    "InContextTemplate",
    "KernelMemory",
    "LinearKernel",
    "Maximum",
    "Membership",
    "Memory",
    "MemoryKernel",
    "PodCoupling",
    "PrefixPrediction",
    "RealMemory",
    "RepeatedTokens",
    "SuccessorWalk",
    "Task",
    "TemplateTask",
    "TokenRelation",
    "aabb_abab",
    "aba_abb",
    "answers_of",
    "copying",
    "induction_style",
    "language",
    "memories_of",
    "random_task",
    "register_task",
    "same_different",
    "sought_of",
    "task_from_dict",
    "wildcards",
]
