"""Every reader of files of a user's, each with the name and the bytes of a good file.

A reader takes the folder in which the files of :func:`make` lie; the named one is what is spoilt.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from forked_calls import RECIPE
from safetensors.numpy import save_file

from interp.models.checkpoint import load_checkpoint, save_checkpoint
from interp.models.export import export_gpt2
from interp.models.kinds import spec_from_dict
from interp.models.spec import TransformerSpec
from interp.models.tensor_files import read_tensors
from interp.models.transformer import SequenceTransformer
from interp.program.decision_parser import read_program as read_rasp
from interp.program.parser import read_program as read_crasp
from interp.reading import read_json
from interp.store import ActivationStore, extract, verify
from interp.store.measurements import read_measurement, read_provenance, write_measurement
from interp.store.sources import JsonRows, TokenFile
from interp.tasks.catalogue import task_from_dict
from interp.weights.head_weights import head_weights
from interp.weights.head_weights.mapping import layout_of_mapping, read_mapping
from probes.certify.certificate import read_certificate
from probes.labels import read_labels
from probes.own_rows import read_own_rows, read_rows
from trained.recipe import read_plan

__all__ = ["BINARY", "READERS", "Reader", "make"]


@dataclass(frozen=True)
class Reader:
    """A file and what reads it."""

    file: str
    read: Callable[[Path], Any]


def _store(home: Path) -> None:
    store = ActivationStore(home / "st")
    store.inputs()
    for hook in store.hooks:
        store.activation(hook)
    _ = store.lengths, store.overflows, store.measurements


def _measurement(home: Path) -> None:
    read_measurement(home / "st", "scores")
    read_provenance(home / "st", "scores")


def _own_rows(path: Path) -> None:
    read_own_rows(path, vocabulary=9, rows=9, length=9)


def _table(path: Path) -> dict[str, Any]:
    """As the files that hold a spec or a task hand it on."""
    found: dict[str, Any] = read_json(path, shape=dict[str, Any])
    return found


READERS = {
    "manifest": Reader("st/manifest.json", _store),
    "manifest-verify": Reader("st/manifest.json", lambda home: verify(home / "st")),
    "index": Reader("st/index.jsonl", _store),
    "index-verify": Reader("st/index.jsonl", lambda home: verify(home / "st")),
    "checkpoint": Reader("ck/model.json", lambda home: load_checkpoint(home / "ck")),
    "spec": Reader("spec.json", lambda home: spec_from_dict(_table(home / "spec.json"))),
    "task": Reader("task.json", lambda home: task_from_dict(_table(home / "task.json"))),
    "recipe": Reader("grid.toml", lambda home: read_plan(home / "grid.toml")),
    "config": Reader("gpt2/config.json", lambda home: head_weights(home / "gpt2")),
    "mapping": Reader("map.toml", lambda home: layout_of_mapping(read_mapping(home / "map.toml"))),
    "rows": Reader("rows.json", lambda home: read_rows(home / "rows.json")),
    "own-rows": Reader(
        "lines.jsonl",
        lambda home: _own_rows(home / "lines.jsonl"),
    ),
    "json-rows": Reader("lines.jsonl", lambda home: list(JsonRows(home / "lines.jsonl"))),
    "tokens": Reader("tokens.txt", lambda home: list(TokenFile(home / "tokens.txt"))),
    "certificate": Reader(
        "certificate.json", lambda home: read_certificate(home / "certificate.json")
    ),
    "crasp": Reader("p.cr", lambda home: read_crasp(home / "p.cr")),
    "program": Reader("program.txt", lambda home: read_rasp(home / "program.txt")),
    "labels": Reader("labels.csv", lambda home: read_labels(home / "labels.csv")),
    "tensors": Reader(
        "ck/model.safetensors", lambda home: read_tensors(home / "ck/model.safetensors")
    ),
}
BINARY = {
    "part": Reader("st/part-00000.h5", _store),
    "part-verify": Reader("st/part-00000.h5", lambda home: verify(home / "st")),
    "measurement": Reader("st/measurements-scores.h5", _measurement),
    "measurement-verify": Reader("st/measurements-scores.h5", lambda home: verify(home / "st")),
    "labels-npz": Reader("labels.npz", lambda home: read_labels(home / "labels.npz")),
    "labels-safetensors": Reader(
        "labels.safetensors", lambda home: read_labels(home / "labels.safetensors")
    ),
    "own-rows-npy": Reader("ids.npy", lambda home: _own_rows(home / "ids.npy")),
    "own-rows-safetensors": Reader(
        "ids.safetensors", lambda home: _own_rows(home / "ids.safetensors")
    ),
    "weights": Reader("gpt2/model.safetensors", lambda home: head_weights(home / "gpt2")),
    "checkpoint-weights": Reader("ck/model.safetensors", lambda home: load_checkpoint(home / "ck")),
}
"""Read by libraries of other people, in C: tried in a process that may die."""


def make(home: Path) -> None:
    """Good files for every reader."""
    spec = TransformerSpec(
        d_in=5, d_out=5, n_ctx=4, d_model=4, n_layers=1, n_heads=2, d_head=2, ffn=(4,),
        norm="layernorm", positions="learned", activation="gelu",
    )  # fmt: skip
    model = SequenceTransformer(spec, seed=1)
    task = {"kind": "fixed_memory", "lags": [1], "length": 4}
    save_checkpoint(
        model, home / "ck", about={"name": "ck", "metrics": {"loss": 0.5}, "task": task}
    )
    export_gpt2(model, home / "gpt2")
    rows = torch.tensor([[1, 2, 3], [4, 0, 1], [2, 2, 2]])
    extract(model, rows, ["hook_embed", "blocks.0.attn.hook_pattern"], home / "st", batch=1,
            part_rows=1)  # fmt: skip
    scores = pd.DataFrame({"score": [1.0, 2.0], "name": ["a", None]})
    write_measurement(home / "st", "scores", scores, {"seed": 0})
    (home / "spec.json").write_text(json.dumps({"kind": "transformer", **spec.to_dict()}))
    (home / "task.json").write_text(json.dumps(task))
    (home / "grid.toml").write_text(RECIPE + 'seed = 0\n[grid]\n"training.seed" = [1, 2]\n')
    (home / "map.toml").write_text(
        "n_layers = 1\nn_heads = 2\nd_model = 4\nd_head = 2\n"
        + "".join(
            f'[W_{part}]\nname = "b.{{layer}}.{part}"\npattern = "{pattern}"\n'
            for part, pattern in (("Q", "(h k) d -> h d k"), ("K", "(g k) d -> g d k"),
                                  ("V", "(g k) d -> g d k"), ("O", "d (h k) -> h k d"))
        )
    )  # fmt: skip
    words = [[2, 0, 1, 3], [2, 1, 1, 3]]
    told = {"<bos>": 2, "a": 0, "b": 1, "<eos>": 3, "<pad>": 4}
    data = {
        "vocabulary": told,
        "objective": "next token",
        "rows": [{"tokens": word, "label": [4, *word[1:]]} for word in words],
    }
    (home / "rows.json").write_text(json.dumps(data))
    (home / "lines.jsonl").write_text('{"input_ids": [1, 2, 3]}\n' * 9)
    (home / "tokens.txt").write_text("1 2 3\n4 0 1\n")
    proof = {"strategy": "black-box", "bound": 0.5, "cells": 1}
    (home / "certificate.json").write_text(
        json.dumps(
            {
                "format": {"name": "prooflens-certificate", "version": 1},
                "model": {"name": "ck", "sha256": "0" * 64},
                "domain": {"kind": "box"},
                "statement": "so",
                "kind": "error",
                "strategies": [proof],
            }
        )
    )
    (home / "p.cr").write_text('n = # "a"\nmany = n > 1\nboth = many && !(n == 3)\n')
    (home / "program.txt").write_text(PROGRAM)
    (home / "labels.csv").write_text("a,b\n1,x\n2,y\n")
    labels = {"a": np.arange(3), "b": np.ones((3, 2))}
    np.savez(home / "labels.npz", **labels)
    save_file(labels, home / "labels.safetensors")
    ids = np.arange(54).reshape(9, 6) % 9
    np.save(home / "ids.npy", ids)
    save_file({"input_ids": ids}, home / "ids.safetensors")


PROGRAM = """deep = count(key.token == "a") - count(key.token == "b")  // how deep
s = least(key.token where key.token > token)
allow "a" if deep >= 1 && !(s in {"a", "b"})
allow "b" if token == "a" || deep % 2 == 0
"""
