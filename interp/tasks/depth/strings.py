"""What both tasks on strings share: the language, its lengths, and how an answer is written."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from interp.errors import Problems
from interp.tasks.depth.batches import Bins, TargetForm, check_bins, check_target_form
from interp.tasks.depth.languages import language

__all__ = ["StringTask"]


@dataclass(frozen=True)
class StringTask:
    """A question about strings of a language.

    Attributes:
        language: The language's name: see :data:`interp.tasks.depth.languages.NAMES`.
        bins: (shortest, longest) lengths in symbols; a batch has equally many rows of each bin.
        targets: Targets as ``classes`` 0 and 1 ``[batch, pos]``, or as real ``bits``
            ``[batch, pos, 1]``, which is what a compiled program gives.

    Raises:
        ArgumentError: for an unknown language, or bins without a string of it.
    """

    kind: ClassVar[str]

    language: str
    bins: Bins = ((3, 30),)
    targets: TargetForm = "classes"

    def __post_init__(self) -> None:
        problems = Problems(type(self).__name__)
        check_bins(self.bins, language(self.language), problems)
        check_target_form(self.targets, problems)
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The kind of question and the language, e.g. ``membership-L_4``."""
        return f"{self.kind.replace('_', '-')}-{self.language}"

    @property
    def longest(self) -> int:
        """The length of the longest string; a row has one position more, for BOS."""
        return max(longest for _, longest in self.bins)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": self.kind, **asdict(self)}
