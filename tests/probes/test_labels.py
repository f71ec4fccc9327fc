"""Labels of one's own are probed as latents are."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from interp.errors import ArgumentError
from interp.store import ActivationStore, extract
from probes.labels import Labelled, read_labels, with_labels
from probes.positions import at_positions
from probes.probe_table import probe_table
from trained import zoo

HOOK = "blocks.0.hook_resid_post"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ActivationStore:
    shipped = zoo.load("fixed-memory-multiplexer")
    folder = tmp_path_factory.mktemp("stores") / "s"
    return extract(shipped.model, shipped.task, [HOOK], folder, rows=60, batch=25)


def test_a_label_that_is_a_latent_scores_as_the_latent(
    store: ActivationStore, tmp_path: Path
) -> None:
    latent = store.latents()["f"]
    np.savez(tmp_path / "labels.npz", mine=latent)
    source, inputs = with_labels(store, None, read_labels(tmp_path / "labels.npz"))
    assert set(source.latents()) == {"mine"}
    told = probe_table(source, inputs, [HOOK], None, seed=3)
    own = probe_table(store, None, [HOOK], ["f"], seed=3)
    assert told["score"].tolist() == own["score"].tolist()
    part, _ = at_positions(source, None, "5:9")
    assert set(part.latents()) == {"mine"}
    assert (part.latents(slice(3, 7))["mine"] == latent[3:7]).all()


def test_of_a_models_batch_labels_take_the_latents_place() -> None:
    shipped = zoo.load("fixed-memory-multiplexer")
    batch = shipped.task.sample(20, seed=0)
    model, labelled = with_labels(shipped.model, batch, {"row": np.arange(20)})
    assert model is shipped.model
    assert labelled.latents["row"].shape == batch.mask.shape
    assert (labelled.latents["row"][:, 0].numpy() == np.arange(20)).all()
    assert (labelled.inputs == batch.inputs).all()


def test_text_is_classes_and_files_agree(tmp_path: Path) -> None:
    table = pd.DataFrame({"word": ["b", "a", "b"], "size": [0.5, 1.5, 2.5], "n": [3, 1, 2]})
    table.to_csv(tmp_path / "l.csv", index=False)
    found = read_labels(tmp_path / "l.csv")
    assert found["word"].tolist() == [1, 0, 1]
    assert found["size"].dtype.kind == "f"
    assert found["n"].dtype.kind == "i"
    save_file(found, tmp_path / "l.safetensors")
    again = read_labels(tmp_path / "l.safetensors")
    assert {name: value.tolist() for name, value in again.items()} == {
        name: value.tolist() for name, value in found.items()
    }


def test_what_does_not_fit_is_refused_all_at_once(store: ActivationStore, tmp_path: Path) -> None:
    wrong = {"few": np.zeros(7), "odd": np.full(60, np.nan), "words": np.array(["a"] * 60)}
    with pytest.raises(ArgumentError, match=r"few must have 60 rows.*odd must be finite.*words"):
        with_labels(store, None, wrong)
    with pytest.raises(ArgumentError, match=r"must end in \.csv, \.npz, \.safetensors, got"):
        read_labels(tmp_path / "l.pkl")
    with pytest.raises(ArgumentError, match="cannot be read"):
        read_labels(tmp_path / "l.csv")
    (tmp_path / "l.csv").write_text("a\n1\n\n", encoding="utf-8")
    assert read_labels(tmp_path / "l.csv")["a"].tolist() == [1]
    (tmp_path / "l.csv").write_text("a,b\n1,\n", encoding="utf-8")
    with pytest.raises(ArgumentError, match="column 'b' has an empty cell"):
        read_labels(tmp_path / "l.csv")
    np.savez(tmp_path / "l.npz", a=np.array([{}], dtype=object))
    with pytest.raises(ArgumentError, match="cannot be read"):
        read_labels(tmp_path / "l.npz")
    assert isinstance(with_labels(store, None, {"n": np.arange(60)})[0], Labelled)
