"""A page of heads from whatever names a model: shown in a notebook, or written as one file.

    pl.view("induction-mlp").save("heads.html")     the page (``prooflens view``)
    pl.view(model)                                  in a notebook: the same, with the chosen head as
                                                    ``view.head`` in Python

In a notebook the interactive view needs anywidget (``pip install 'prooflens[notebook]'``). Without
it, and in a notebook that was exported, findings and the table of all heads are shown: no attention
on rows. They say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from interp.errors import ArgumentError, Problems
from interp.output import output_file
from interp.store import ActivationStore
from interp.store.rows import stored_batch
from interp.tasks.base import Batch, answers_of, memories_of
from probes.roles.examined import Watch as Over
from probes.roles.profile import LANGUAGE, TASK, Profile
from probes.viewing.model import Viewed, Watch, view_model, view_store
from probes.viewing.sequences import Chosen, Sequences, choose_rows, prompt_rows, token_texts
from prooflens.pages.findings import in_words
from prooflens.pages.naming import page_names
from prooflens.pages.page import rendered
from prooflens.pages.roles import model_of, task_of
from prooflens.pages.view import head_table, view_findings, view_page
from trained.loading import load

__all__ = ["View", "view"]

_MOST = 3
_STATIC = (
    "This is the static part. The interactive one (attention on rows, all heads as points) is in "
    "the page that view.save(\"heads.html\") writes, or here with pip install 'prooflens[notebook]'"
    " and a running kernel."
)


@dataclass
class View:
    """Heads of one model, or of a few on the same rows.

    Attributes:
        views: What is shown of each, under the name that the page calls it by.
        profile: Their roles were decided by.
    """

    views: tuple[Viewed, ...]
    profile: Profile
    _shared: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def html(self) -> str:
        """The page: one file, nothing is fetched."""
        return view_page(self.views, self.profile)

    @property
    def findings(self) -> list[str]:
        """What the heads do, in sentences."""
        return view_findings(self.views, self.profile)

    @property
    def head(self) -> str:
        """The head that is looked at, ``L0H1``; set it, and the notebook's view follows."""
        return str(self.widget.head) if "widget" in self.__dict__ else self._shared.get("head", "")

    @head.setter
    def head(self, name: str) -> None:
        known = [f"L{layer}H{head}" for layer, head in self.views[0].heads]
        problems = Problems("view")
        problems.need(name in known, "head", "must be one of the model's", name, known[0])
        problems.raise_if_any()
        self._shared["head"] = name
        if "widget" in self.__dict__:
            self.widget.head = name

    @cached_property
    def widget(self) -> Any:
        """The view as a widget of a notebook.

        Raises:
            ArgumentError: if anywidget is not installed.
        """
        if find_spec("anywidget") is None:
            raise ArgumentError("widget needs anywidget: pip install 'prooflens[notebook]'")
        from prooflens.pages.view_widget import heads_widget

        return heads_widget(self.views, self.profile, self._shared.get("head", ""))

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the page as one HTML file.

        Raises:
            OutputError: if the file exists and may not be replaced, or cannot be written.
        """
        with output_file(Path(path), overwrite=overwrite) as draft:
            draft.write_text(self.html, encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        return rendered(
            "view_static.html.j2",
            scripted=False,
            title="Heads of " + in_words([viewed.name for viewed in self.views]),
            findings=self.findings,
            tables=[head_table(viewed) for viewed in self.views],
            words=_STATIC,
        )

    def _repr_mimebundle_(self, **wanted: Any) -> Any:
        static = {"text/html": self._repr_html_(), "text/plain": "\n".join(self.findings)}
        if find_spec("anywidget") is None:
            return static
        live, about = self.widget._repr_mimebundle_(**wanted)
        return {**live, **static}, about


def view(
    *models: Any,
    text: str | None = None,
    data: Batch | str | Path | None = None,
    prompts: Sequence[str] = (),
    rows: int = 60,
    length: int = 64,
    ablate: bool = True,
    seed: int = 0,
    device: str = "cpu",
    dtype: str | None = None,
    watch: Watch = lambda words: None,
    over: Over = iter,
) -> View:
    """Look at a model's heads: all at once, and each on rows of text.

    Args:
        models: A model; or its name, folder or hub id; or a store with attention patterns. Up to
            three models are shown side by side on the first one's rows.
        text: Pieces of it are shown, where the model has a tokenizer.
        data: Rows to show besides: a batch, or a file as ``prooflens decompile`` takes it.
        prompts: Rows to show as they are: text, or token ids with spaces between for a model
            without a tokenizer.
        rows: How many are shown, besides prompts; as many of each kind.
        length: Tokens of a row of random tokens or text, at most.
        ablate: Whether the model is run without each head on these rows, which takes most of the
            time on a large model.
        seed: Of rows and nulls.
        device, dtype: Where models that are named are run, and in what, as ``load`` takes them.
        watch: Told what is being done.
        over: Wraps loops over heads, for a progress bar.

    Returns:
        What a notebook shows, and ``save`` writes as one HTML file.

    Raises:
        ArgumentError: for arguments that do not fit.
        CheckpointError: for a model that cannot be loaded.
        HookError: for a model whose attention patterns no hook shows.
    """
    problems = Problems("view")
    several = 1 <= len(models) <= _MOST
    problems.need(several, "models", "must be one to three", len(models), "name them")
    stores = [_store(model) for model in models]
    alone = not any(stores) or len(models) == 1
    problems.need(alone, "models", "must be models, or one store", len(models), "view it alone")
    problems.raise_if_any()
    loaded = partial(load, device=device, dtype=dtype)
    options: dict[str, Any] = {"ablate": ablate, "seed": seed, "watch": watch, "over": over}
    if stores[0] is not None:
        return _of_store(stores[0], (text, data, prompts), rows, loaded, options)
    built = [loaded(model) if isinstance(model, str | Path) else model for model in models]
    chosen = choose_rows(
        built[0], rows=rows, length=length, seed=seed, text=text, data=data, prompts=prompts
    )
    found = [view_model(model, chosen, **options) for model in built]
    return View(_called(found), chosen.profile)


def _called(views: Sequence[Viewed]) -> tuple[Viewed, ...]:
    """Each under the name that a page calls it by, with its path if that is a folder's."""
    names = page_names([viewed.name for viewed in views])
    return tuple(
        viewed if viewed.name == name else replace(viewed, name=name, source=viewed.name)
        for viewed, name in zip(views, names, strict=True)
    )


def _store(model: Any) -> ActivationStore | None:
    if isinstance(model, ActivationStore):
        return model
    there = isinstance(model, str | Path) and (Path(model) / "manifest.json").is_file()
    return ActivationStore(Path(model)) if there else None


def _of_store(
    store: ActivationStore,
    given: tuple[str | None, Any, Sequence[str]],
    rows: int,
    loaded: Callable[[str], Any],
    options: dict[str, Any],
) -> View:
    text, data, prompts = given
    problems = Problems("view")
    own = text is None and data is None
    problems.need(own, "text, data", "must be left out for a store", "given", "it has its rows")
    model, reason = model_of(store, loaded)
    rule = "need the store's model"
    problems.need(model is not None or not prompts, "prompts", rule, reason, "leave them out")
    problems.raise_if_any()
    batch = stored_batch(store)
    tokenizer = None if model is None else model.card.tokenizer
    some = batch[:rows]
    aimed = all("targets" in part.shapes for part in store.parts)
    texts = token_texts(some.inputs, tokenizer)
    shown = Sequences("store", "rows of the store", some, texts, aimed)
    profile = _profile(store)
    if model is None:
        note = f"no model is run: {reason}"
        return View(_called([view_store(store, shown, str(store.path), profile, note)]), profile)
    task = task_of(store)
    known = (memories_of(task), answers_of(task)) if profile == TASK else ((), {})
    asked = prompt_rows(model.card, prompts)
    chosen = Chosen(profile, (shown, *asked), batch, *known)
    return View(_called([view_model(model, chosen, **options)]), profile)


def _profile(store: ActivationStore) -> Profile:
    """That of the sealed roles; else of a task."""
    sealed = "roles" in store.measurements and store.provenance("roles").get("profile")
    return LANGUAGE if sealed == LANGUAGE.name else TASK
