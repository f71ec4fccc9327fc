"""``pl.inspect``: what every component of a model does, with evidence, and what is lost without it.

    pl.inspect("code-lm")                    a shipped model, a folder, a hub id
    pl.inspect(wrapped, tokens)              a module of your own, on token ids
    pl.inspect(model, out="report")          the same with a store, its tables, and one page
    pl.inspect("report/store")               the page again, from the tables alone

Rows are chosen, the model is measured on them (:mod:`probes.measure`), and one page is made from
the tables (:mod:`prooflens.pages.inspection`).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from interp.environment import ENVIRONMENT
from interp.errors import (
    ArgumentError,
    HookError,
    OutputError,
    Problems,
    ProoflensError,
    need,
    refuse_unless,
)
from interp.hooks.capture import evaluating, model_device
from interp.hooks.limits import need_hooks
from interp.interventions.components import components
from interp.lock import LOCK, alone
from interp.models.pretrained import Pretrained
from interp.output import check_output, drop, json_data, output_file, output_folder
from interp.run.gate import admit_batch
from interp.run.layers import run_whole
from interp.store import ActivationStore, extract
from interp.store.rows import has_targets, layer_hooks, stored_batch
from interp.tasks.catalogue import known_task
from interp.weights.head_weights import HeadWeights, head_weights
from interp.weights.head_weights.mapping import layout_of_mapping, read_mapping
from interp.weights.metric_names import COMPOSITIONS
from probes.columns import TABLES
from probes.inspection.behaviour import Performance, performance
from probes.inspection.inspected_rows import InspectedRows, inspected_rows
from probes.inspection.losses import Watch, check_backend, loss_tables
from probes.inspection.texts import card_of, prompt_rows
from probes.measure import Measurements, measure
from probes.roles.profile import PROFILES, TASK, Profile, profile_of
from probes.roles.trials import LENGTH, Trial
from prooflens.pages.inspection import (
    inspection_findings,
    inspection_lines,
    inspection_page,
    static_view,
)
from trained.loading import folder_of, lasting_name, load, model_of

__all__ = [
    "TABLES",
    "Inspected",
    "Measurements",
    "Performance",
    "inspect",
    "inspected_rows",
    "inspection_folder",
    "loss_tables",
    "measure",
    "performance",
    "prompt_rows",
]

MARKER = ".prooflens-inspect"
_BATCH = 32
QUICK_ROWS, QUICK_LENGTH = 16, 32
"""Largest number of rows of each kind, and of positions of a row, in a quick inspection."""


@dataclass
class Inspected:
    """The results of an inspection.

    Attributes:
        measured: The tables, and the facts about them.
    """

    measured: Measurements
    _shared: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the findings, one per line."""
        return "\n".join(self.lines)

    @property
    def roles(self) -> pd.DataFrame:
        """The role table: which component plays which role, with every test."""
        return self.measured["roles"]

    @property
    def heads(self) -> pd.DataFrame:
        """The table of all scores of heads and FFNs, each with its null (mean, deviation, p, q)."""
        return self.measured["heads"]

    @cached_property
    def findings(self) -> list[str]:
        """What the components do, in the sentences with which the page begins."""
        return inspection_findings(self.measured.tables, self.measured.about)

    @cached_property
    def lines(self) -> list[str]:
        """The findings, and a sentence for every role that was tested for."""
        return inspection_lines(self.measured.tables, self.measured.about)

    @property
    def notes(self) -> list[str]:
        """Sentences about what the inspection left out and how to read its results."""
        return list(self.measured.about["notes"])

    @property
    def html(self) -> str:
        """The page as one self-contained HTML file."""
        with tempfile.TemporaryDirectory() as folder:
            return inspection_page(self.measured.tables, self.measured.about, Path(folder))

    def records(self, name: str) -> list[dict[str, Any]]:
        """Return a table of the inspection as JSON data: one dictionary per row, with None for NaN.

        In the table ``roles``, ``tests`` is a list of dictionaries. The columns are those of
        :data:`TABLES`; a table that was not made is empty.

        Args:
            name: The table's name, such as ``roles``.
        """
        return table_records(self.measured[name])

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write ``report.html``, the tables and the figures into a folder; return the path of the
        page.

        Raises:
            OutputError: if the folder exists and may not be replaced, or cannot be written.
        """
        with output_folder(Path(folder), overwrite=overwrite, marker=MARKER) as draft:
            self.write(draft)
        return Path(folder) / "report.html"

    def write(self, folder: Path) -> None:
        """Write the page, ``roles.csv``, ``heads.csv`` and the other tables, ``inspection.json``,
        ``findings.txt`` and the figures into an existing folder."""
        tables, about = self.measured.tables, self.measured.about
        left = ("shown-", "attention-", "rounds-", "raised")  # the store has them
        shown = {
            n: t for n, t in tables.items() if n == "roles" or (len(t) and not n.startswith(left))
        }
        texts = {f"{name}.csv": table.to_csv(index=False) for name, table in shown.items()}
        singles = self.heads[~self.heads["metric"].isin(COMPOSITIONS)]
        records = {name: self.records(name) for name in ("roles", "trials") if name in tables}
        told = {**about, "findings": self.lines, **records, "heads": table_records(singles)}
        texts["inspection.json"] = json.dumps(told, indent=1, allow_nan=False) + "\n"
        texts["findings.txt"] = "\n".join(self.lines) + "\n"
        texts[ENVIRONMENT] = json.dumps(about["environment"], indent=1) + "\n"
        texts["report.html"] = inspection_page(tables, about, folder / "figures")
        for name, text in texts.items():
            with output_file(folder / name, overwrite=True) as draft:
                draft.write_text(text, encoding="utf-8")

    @property
    def head(self) -> str:
        """The name of the shown head, such as ``L0H1``; setting it changes the notebook's view."""
        return str(self.widget.head) if "widget" in self.__dict__ else self._shared.get("head", "")

    @head.setter
    def head(self, name: str) -> None:
        from prooflens.pages.viewer_data import places_of

        known = [f"L{layer}H{head}" for layer, head in places_of(self.measured.tables)]
        need("inspect", name in known, "head", "must be one of the model's", name, known[0])
        self._shared["head"] = name
        if "widget" in self.__dict__:
            self.widget.head = name

    @cached_property
    def widget(self) -> Any:
        """The viewer as a widget for a notebook.

        Raises:
            ArgumentError: if anywidget is not installed.
        """
        if find_spec("anywidget") is None:
            raise ArgumentError("widget needs anywidget: pip install 'prooflens[notebook]'")
        from prooflens.pages.view_widget import heads_widget

        head = self._shared.get("head", "")
        return heads_widget(self.measured.tables, self.measured.about, self.findings, head)

    def _repr_html_(self) -> str:
        return static_view(self.measured.tables, self.measured.about)

    def _repr_mimebundle_(self, **wanted: Any) -> Any:
        static = {"text/html": self._repr_html_(), "text/plain": "\n".join(self.findings)}
        if find_spec("anywidget") is None:
            return static
        live, about = self.widget._repr_mimebundle_(**wanted)
        return {**live, **static}, about


def table_records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table as JSON data: one dictionary per row, with None for NaN.

    A column ``tests``, which holds JSON text, is parsed.
    """
    rows: list[dict[str, Any]] = json_data(table)
    return [{**row, "tests": json.loads(row["tests"])} if "tests" in row else row for row in rows]


def inspect(
    model: Any,
    rows: Any = None,
    *,
    text: str | None = None,
    task: Any = None,
    prompts: Sequence[str] = (),
    profile: Profile | str | None = None,
    tokens_from: str | Path | None = None,
    count: int | None = None,
    length: int = LENGTH,
    seed: int = 0,
    quick: bool = False,
    effects: bool = False,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    mapping: str | Path | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    device: str = "cpu",
    dtype: str | None = None,
    adapter: str | Path | None = None,
    backend: str = "local",
    step: Callable[[str], None] | None = None,
    watch: Watch | None = None,
) -> Inspected:
    """Find what every head, FFN and layer of a model does, and what is lost without it.

    Args:
        model: A model with hooks (shipped, loaded, wrapped); or its name, folder or hub id; or a
            store of activations.
        rows: The user's rows: token ids ``[row, pos]``, a :class:`~interp.tasks.base.Batch`, or a
            file of either. By default rows of the model's own task, or random tokens that repeat.
        text: A text, whose pieces are further rows for a model with a tokenizer.
        task: The task whose rows are used, if not the model's own.
        prompts: Rows that are only shown: text, or token ids separated by spaces.
        profile: ``language`` (effects in nats) or ``task`` (shares of variance). By default
            ``language`` if the rows' targets are the next tokens.
        tokens_from: A file of rows; random rows are drawn from its tokens alone.
        count: The number of rows of each kind: by default 256 of a task, else 32.
        length: The largest number of positions of a row of a language model.
        seed: Seed of rows and nulls.
        quick: Whether to use 16 rows of each kind at most, of 32 tokens, and no templates.
        effects: Whether to ablate all heads and FFNs of a large model, not only heads with a role.
        out: The folder for the page, the tables and a store of attention patterns, into which the
            tables are sealed; None to keep everything in memory.
        overwrite, resume: Whether to replace the folder, or continue an interrupted inspection.
        mapping: A TOML or JSON file that says where an unknown architecture keeps its weights.
        revision, trust_remote_code, device, dtype, adapter: As for :func:`trained.loading.load`.
        backend: ``local``, or ``ray`` to run the ablations as tasks of a Ray cluster.
        step: A function that is called with a sentence saying what is being done.
        watch: A wrapper around the longest loops, for a progress bar.

    Returns:
        The results: ``findings`` in sentences, the tables ``roles`` and ``heads``, the page.

    Raises:
        ArgumentError: for arguments that do not fit.
        CheckpointError: for a model that cannot be loaded.
        HookError: for a model without heads, or without hooks at its attention patterns.
        OutputError: for a folder that may not be written.
    """
    check_backend(backend)
    given: dict[str, Any] = {"text": text, "data": rows, "task": task, "tokens_from": tokens_from}
    _check_types(task, count=count, length=length, seed=seed)
    given |= {"profile": _profile(profile), "rows": count, "length": length, "seed": seed}
    how: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    how |= {"device": device, "dtype": dtype, "adapter": adapter}
    asked: dict[str, Any] = {"seed": seed, "effects": effects, "backend": backend}
    asked |= {"step": step or (lambda words: None), "watch": watch or list, "resume": resume}
    read = model, rows, tokens_from, mapping, adapter
    place = _check_folder(out, read, overwrite=overwrite, resume=resume)
    store = _store(model)
    if store is None:
        given |= _quick_rows(count, length) if quick else {}
        return _of_model(model, mapping, given, how, prompts, asked, place, overwrite)
    chosen = {"rows": rows, "text": text, "task": task, "tokens_from": tokens_from, "count": count}
    _need_own_rows(**chosen, quick=quick or None, prompts=prompts or None)
    return _of_store(store, given["profile"], device, asked, place, overwrite=overwrite)


def _quick_rows(count: int | None, length: int) -> dict[str, Any]:
    """Return the number and length of rows of a quick inspection."""
    rows = min(count or QUICK_ROWS, QUICK_ROWS)
    return {"rows": rows, "length": min(length, QUICK_LENGTH), "templates": False}


def _check_folder(
    out: str | Path | None, sources: Sequence[Any], *, overwrite: bool, resume: bool
) -> Path | None:
    """Return the requested folder; raise OutputError if it may not be written."""
    if out is None:
        return None
    read = [one for one in sources if isinstance(one, str | Path)]
    check_output(Path(out), overwrite=overwrite, marker=MARKER, inputs=read, resume=resume)
    return Path(out)


def _of_model(
    model: Any,
    mapping: str | Path | None,
    given: dict[str, Any],
    how: dict[str, Any],
    prompts: Sequence[str],
    asked: dict[str, Any],
    out: Path | None,
    overwrite: bool,
) -> Inspected:
    """Inspect a model that is loaded or given; with a folder, write its page, tables and store."""
    layout = None if mapping is None else read_mapping(Path(mapping))
    if layout is not None:
        layout_of_mapping(layout)  # refuses a wrong one before the model is loaded
    named, step = isinstance(model, str | Path), asked["step"]
    step(f"loading {model}" if named else "looking at the model")
    subject, factors = _open(model, given["data"], layout, how)
    card = card_of(subject.model)
    given["task"] = card.task if given["task"] is None else given["task"]
    asked |= {"factors": factors, "prompts": list(prompt_rows(card, prompts))}
    asked["loader"] = partial(load, str(model), **how) if named else None
    if out is None:
        chosen = inspected_rows(subject, **given)
        return Inspected(measure(subject, chosen, chosen.profile, **asked))
    with inspection_folder(out, resume=asked["resume"], overwrite=overwrite) as folder:
        chosen = inspected_rows(subject, **given)
        step(f"running {chosen.trials[0].name} rows")
        store = _extract_patterns(
            subject, chosen, folder / "store", resume=asked["resume"], how=how
        )
        found = Inspected(measure(subject, chosen, chosen.profile, store=store, **asked))
        step("the page")
        found.write(folder)
    return found


def _profile(profile: Profile | str | None) -> Profile | None:
    if not isinstance(profile, str):
        return profile
    rule = f"must be one of {', '.join(PROFILES)}"
    need("inspect", profile in PROFILES, "profile", rule, profile, "choose one, or leave it out")
    return PROFILES[profile]


def _store(model: Any) -> ActivationStore | None:
    if isinstance(model, ActivationStore):
        return model
    there = isinstance(model, str | Path) and (Path(model) / "manifest.json").is_file()
    return ActivationStore(Path(model)) if there else None


def _need_own_rows(**chosen: Any) -> None:
    """Refuse arguments that choose rows, for a store, which has its own."""
    problems, rule = Problems("inspect"), "must be left out for a store"
    for name, value in chosen.items():
        problems.need(value is None, name, rule, value, "it has its rows")
    problems.raise_if_any()


def _check_types(task: Any, **numbers: Any) -> None:
    for name, number in numbers.items():
        whole = number is None or isinstance(number, int)
        refuse_unless(whole, name, "must be a whole number", number, "give an int")
    sampled = task is None or hasattr(task, "sample")
    refuse_unless(sampled, "task", "must be a task", task, "such as pl.tasks.FixedMemory((1, 3))")


def _open(
    model: Any, rows: Any, layout: Any, how: dict[str, Any]
) -> tuple[Pretrained, HeadWeights | None]:
    """Return the model with what is known of it, and the weights of its heads if a mapping file
    names them."""
    named, factors = isinstance(model, str | Path), None
    name, built = str(model), load(model, **how) if named else model
    need_hooks(built)
    if not any(part.kind == "head" for part in components(built)):
        shown = name if named else type(built).__name__
        raise HookError(f"{shown} has no attention heads: probe its hooks with 'prooflens probe'")
    if named:
        place = folder_of(name)
        try:
            options = {"revision": how["revision"], "adapter": how["adapter"]}
            factors = head_weights(place, mapping=layout, **options)
        except ProoflensError:
            if layout is not None:
                raise
    card = card_of(built)
    vocabulary = card.vocabulary
    if not vocabulary and rows is not None and not isinstance(rows, str | Path):
        vocabulary = _outputs(built, rows)
    known = {"name": name if named else card.name, "vocabulary": vocabulary}
    known["n_ctx"] = card.n_ctx or 1 << 20
    return Pretrained(**vars(card) | known, model=built), factors


def _outputs(model: Any, rows: Any) -> int:
    """Return how many token ids a model of tokens has: the number of its logits, or more if the
    rows have larger ids; 0 for a model of real values."""
    import torch

    inputs = admit_batch(model, rows).inputs
    if inputs.is_floating_point() or inputs.ndim != 2:
        return 0
    with torch.no_grad(), evaluating(model):
        found = run_whole(model, inputs[:1].to(model_device(model)), {})
    return max(int(found.shape[-1]), int(inputs.max()) + 1)


def _extract_patterns(
    subject: Pretrained, chosen: InspectedRows, folder: Path, *, resume: bool, how: dict[str, Any]
) -> ActivationStore:
    """Extract the attention patterns on the first kind of rows into a store."""
    about: dict[str, Any] = {"model": lasting_name(subject.name), "rows": chosen.trials[0].about}
    about |= {} if chosen.task is None else {"task": chosen.task.to_dict()}
    about |= {} if how["dtype"] is None else {"dtype": how["dtype"]}
    about |= {} if how["adapter"] is None else {"adapter": str(Path(how["adapter"]).resolve())}
    hooks = layer_hooks(subject.model, "attn.hook_pattern")
    return extract(
        subject.model, chosen.trials[0].batch, hooks, folder, batch=_BATCH,
        resume=resume and folder.exists(), about=about,
    )  # fmt: skip


def _of_store(
    store: ActivationStore,
    asked: Profile | None,
    device: str,
    options: dict[str, Any],
    out: Path | None,
    *,
    overwrite: bool,
) -> Inspected:
    """Inspect a store, and write its page to a folder if one is named."""
    found = _measurement_in(store, asked, device, options)
    if out is not None:
        found.save(out, overwrite=overwrite)
    return found


def _measurement_in(
    store: ActivationStore, asked: Profile | None, device: str, options: dict[str, Any]
) -> Inspected:
    """Return the measurement sealed in a store; else measure its model on its rows; else measure
    its patterns alone."""
    sealed = Measurements.from_store(store)
    again = asked is not None or options["seed"] != 0
    if sealed is not None and not again:
        return Inspected(sealed)
    model, reason = model_of(store, device=device)
    batch, targets = stored_batch(store), has_targets(store)
    follows = profile_of(batch) if targets else TASK
    profile, task, notes = asked or follows, *_recorded_task(store)
    title, about = "The store's rows", f"{len(batch)} rows of {store.path.name}"
    kind = "given" if profile is TASK else "repeated"
    length = batch.inputs.shape[1]
    trial = Trial(kind, title, about, batch)
    chosen = InspectedRows(
        (trial,), {}, len(batch), length, length, 0, tuple(notes), profile, task
    )  # fmt: skip
    if model is None:
        notes = [*notes, f"no more than candidates, since no model can be run: {reason}"]
        chosen = replace(chosen, notes=tuple(notes))
        return Inspected(measure(store, chosen, profile, store=store, seed=options["seed"]))
    subject, factors = _open(model, batch, None, {"revision": None})
    name = str(store.manifest.get("about", {}).get("model", subject.name))
    subject = replace(subject, name=name)
    if profile is not TASK:
        rows = inspected_rows(subject, data=batch, profile=profile, length=length)
        chosen = replace(rows, notes=(*notes, *rows.notes))
    options |= {"factors": factors, "targets": targets, "resume": False}
    return Inspected(measure(subject, chosen, profile, store=store, **options))


def _recorded_task(store: ActivationStore) -> tuple[Any, list[str]]:
    """Return the task that a store records, and notes on what is missing if the task is not known
    here."""
    described = store.manifest["plan"]["source"]
    data = described.get("task") if isinstance(described, dict) else None
    data = data or store.manifest.get("about", {}).get("task")
    task, unknown = known_task(data if isinstance(data, dict) else None)
    cost = "; roles of memories and answers are not looked for"
    return task, [f"{store.path}: {unknown}{cost}"] if unknown else []


@contextmanager
def inspection_folder(
    out: Path, *, resume: bool, overwrite: bool, marker: str = MARKER
) -> Iterator[Path]:
    """Provide the folder in which an inspection works: ``out``, or a draft that replaces an older
    one.

    A new inspection works in ``out`` itself, so that it can be resumed. One that replaces another
    works beside it, and the older one stays until the new one is complete.

    Args:
        out: The requested folder.
        resume, overwrite: Whether to continue in it, or to replace it.
        marker: The name of the file by which such a folder is recognised.

    Raises:
        OutputError: if the folder exists and is neither to be resumed nor replaced, was not made by
            an inspection, or another process is inspecting into it.
    """
    begun = out.is_dir() and {path.name for path in out.iterdir()} <= {LOCK}  # and then killed
    if resume and out.exists() and not begun and not (out / marker).exists():
        raise OutputError(f"{out} holds no inspection to resume: leave resume=True (--resume) out")
    if not resume:
        check_output(out, overwrite=overwrite, marker=marker)
    if not resume and out.exists() and any(out.iterdir()):
        with (
            alone(out, "inspecting into this folder", keep=False),
            output_folder(out, overwrite=True, marker=marker) as draft,
        ):
            yield draft
        return
    parent_is_new = not out.parent.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        with alone(out, "inspecting into this folder", keep=False):
            (out / marker).touch()
            yield out
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror or error}") from error
    finally:
        if out.is_dir() and {path.name for path in out.iterdir()} == {marker}:
            drop(out)  # nothing came of it
            if parent_is_new and not any(out.parent.iterdir()):
                out.parent.rmdir()
