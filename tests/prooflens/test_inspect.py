"""Inspecting models from both sides: a trained one is recognised head by head, a random one is not.

The expected roles are not taken from the code under test: they come from direct loops over the
shipped checkpoint's own attention, and from the loss with single heads cut off by hand.
"""

import json
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from interp.errors import ArgumentError, OutputError
from interp.models.export import export_gpt2
from interp.models.pretrained import Pretrained, load_pretrained
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import ActivationStore
from probes.inspection import losses
from probes.measure import Measurements
from probes.roles.trials import text_trial, token_trials
from prooflens.inspection import Inspected, inspect, inspection_folder
from trained import zoo

MODELS = ("induction-attention", "induction-mlp")
SPEC = TransformerSpec(
    d_in=32, d_out=32, n_ctx=32, d_model=64, n_layers=2, n_heads=4, d_head=16, ffn=(96,),
    norm="layernorm", positions="learned", activation="gelu",
)  # fmt: skip

SMALL = replace(SPEC, d_model=32, n_layers=1, n_heads=2)


def inspect_small(folder: Path, out: Path, **options: Any) -> Inspected:
    return inspect(folder, count=16, out=out, **options)


@torch.no_grad()
def direct_attention(name: str) -> dict[tuple[int, int], dict[str, float]]:
    """Mean attention to the token before, and to the one after the last equal one, by loops."""
    shipped = zoo.load(name)
    batch = shipped.task.sample(12, seed=99)
    _, cache = shipped.model.run_with_cache(batch.inputs)
    found: dict[tuple[int, int], dict[str, float]] = {}
    for layer in range(shipped.model.cfg.n_layers):
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"]
        for head in range(pattern.shape[1]):
            before, after = [], []
            for row in range(12):
                tokens = batch.inputs[row].tolist()
                for i in range(1, len(tokens)):
                    before.append(float(pattern[row, head, i, i - 1]))
                    equal = [j for j in range(i) if tokens[j] == tokens[i]]
                    if equal:
                        after.append(sum(float(pattern[row, head, i, j + 1]) for j in equal))
            found[layer, head] = {"previous-token": sum(before) / len(before),
                                  "induction": sum(after) / len(after)}  # fmt: skip
    return found


@torch.no_grad()
def direct_rise(name: str, layer: int, head: int) -> float:
    """Rise of the loss on the repeat when a head writes nothing but its mean."""
    shipped = zoo.load(name)
    batch, model = shipped.task.sample(64, seed=98), shipped.model

    def loss(logits: torch.Tensor) -> float:
        picked = torch.log_softmax(logits[batch.mask], -1)
        return -float(picked.gather(1, batch.targets[batch.mask][:, None]).mean())

    def cut(value: torch.Tensor, hook: Any) -> torch.Tensor:
        value = value.clone()
        value[:, :, head] = value[:, :, head].mean(0)
        return value

    without = model.run_with_hooks(batch.inputs, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", cut)])
    return loss(without) - loss(model(batch.inputs))


@pytest.fixture(scope="module")
def trained_model(request: Any, tmp_path_factory: Any) -> tuple[str, Path, Inspected]:
    folder = tmp_path_factory.mktemp(request.param)
    export_gpt2(zoo.load(request.param).model, folder / "model", bos=0)
    return request.param, folder, inspect_small(folder / "model", folder / "out")


both = pytest.mark.parametrize("trained_model", MODELS, indirect=True)
one = pytest.mark.parametrize("trained_model", MODELS[1:], indirect=True)


@both
def test_an_exported_induction_model_is_recognised_head_by_head(
    trained_model: tuple[str, Path, Inspected],
) -> None:
    name, _, found = trained_model
    attention = direct_attention(name)
    confirmed = found.roles[found.roles["status"] == "confirmed"]
    for role in ("previous-token", "induction"):
        mine = {(r.layer, r.head) for r in confirmed[confirmed["role"] == role].itertuples()}
        strong = {place for place, a in attention.items()
                  if a[role] > 0.5 and direct_rise(name, *place) > 0.1}  # fmt: skip
        weak = {place for place, a in attention.items() if a[role] < 0.2}
        assert strong
        assert strong <= mine, role
        assert not weak & mine, role
        assert {layer for layer, _ in strong} == ({0} if role == "previous-token" else {1})
    repeated = found.measured["trials"].set_index("trial").loc["repeated"]
    assert repeated["accuracy"] > 0.98
    assert repeated["p"] < 1e-3


@both
def test_no_role_is_rejected_beside_a_loss_that_passes(
    trained_model: tuple[str, Path, Inspected],
) -> None:
    """Whoever loses nothing but what was not seen is a candidate."""
    check_rejections(trained_model[2])


def check_rejections(found: Inspected) -> None:
    for row in found.roles[found.roles["status"] == "rejected"].itertuples():
        tests = json.loads(row.tests)
        alone = [t for t in tests if t["kind"] == "cause" and "the loss" in t["name"]]
        failed = [test for test in alone if not (test["score"] or 0) >= test["floor"]]
        transfer = [test for test in tests if test["kind"] == "transfer"]
        assert failed or transfer, f"{row.role} L{row.layer}H{row.head}: {row.evidence}"


def test_a_model_of_random_weights_has_no_roles(tmp_path: Path) -> None:
    export_gpt2(SequenceTransformer(SPEC, seed=5), tmp_path / "model", bos=0)
    assert inspect(tmp_path / "model", count=16).roles.empty


@pytest.mark.slow
def test_of_large_models_heads_without_behaviour_are_not_ablated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_gpt2(SequenceTransformer(SMALL, seed=5), tmp_path / "model", bos=0)
    monkeypatch.setattr(losses, "_MANY", 1)
    found = inspect_small(tmp_path / "model", tmp_path / "out")
    assert "loss_increase" not in set(found.heads["metric"])
    assert any(note.startswith("3 of 3 heads and FFNs") for note in found.notes)
    assert "No head has the behaviour" in found.lines[-1]
    every = inspect_small(tmp_path / "model", tmp_path / "out", resume=True, effects=True)
    lost = every.heads[every.heads["metric"] == "loss_increase"]
    assert len(lost) == 3 * len(every.measured.about["trials"])
    assert not any("were not ablated" in note for note in every.notes)


@one
def test_an_interrupted_inspection_goes_on(
    trained_model: tuple[str, Path, Inspected], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder, whole = trained_model

    def interrupt(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(losses, "ablate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            inspect_small(folder / "model", out)
    store = ActivationStore(out / "store")
    assert "roles" in store.measurements
    assert "heads" not in store.measurements
    assert Measurements.from_store(store) is None, "it has no facts yet: nothing is drawn from it"
    monkeypatch.setattr("probes.measure.examine", interrupt)
    again = inspect_small(folder / "model", out, resume=True)
    pd.testing.assert_frame_equal(again.roles, whole.roles)
    pd.testing.assert_frame_equal(again.heads, whole.heads)


@one
def test_the_page_holds_everything_and_fetches_nothing(
    trained_model: tuple[str, Path, Inspected],
) -> None:
    _, folder, found = trained_model
    html = (folder / "out" / "report.html").read_text()
    assert 'class="sortable"' in html
    assert not re.findall(r"""(?:src|href)=["']?(?!data:|#)\w+:""", html)
    assert "default-src 'none'" in html
    assert "Every score with its null." in html
    assert "(profile language)" in html
    assert html.index(found.findings[0].split(":")[0]) < html.index("What would have to be doubted")
    drawn = {file.name for file in (folder / "out" / "figures").glob("*.png")}
    assert {"roles.png", "pairs.png", "attention-induction.png"} <= drawn
    assert any(words.startswith("induction: confirmed L1H") for words in found.lines)
    roles = pd.read_csv(folder / "out" / "roles.csv", keep_default_na=False)
    assert list(roles.columns) == list(found.roles.columns)
    scores = pd.read_csv(folder / "out" / "heads.csv")
    assert {"attention_mass", "copying", "positional", "loss_increase", "trace_share",
            "k_composition"} <= set(scores["metric"])  # fmt: skip


@one
def test_the_same_tables_give_the_same_page_without_the_model(
    trained_model: tuple[str, Path, Inspected], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder, found = trained_model

    def forbid_call(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("nothing is loaded or measured to draw a page")

    monkeypatch.setattr("prooflens.inspection.load", forbid_call)
    monkeypatch.setattr("prooflens.inspection.model_of", forbid_call)
    monkeypatch.setattr("prooflens.inspection.measure", forbid_call)
    inspect(folder / "out" / "store", out=tmp_path / "again")
    page = (folder / "out" / "report.html").read_bytes()
    assert (tmp_path / "again" / "report.html").read_bytes() == page
    assert found.html.encode() == page


PAGE = """
import sys
sys.modules["torch"] = None
import pickle
from pathlib import Path
from prooflens.pages.inspection import inspection_page
tables, about = pickle.loads(Path("found.pickle").read_bytes())
Path("page.html").write_text(inspection_page(tables, about, Path("figures")))
"""


@one
def test_a_page_is_drawn_without_torch(
    trained_model: tuple[str, Path, Inspected], tmp_path: Path
) -> None:
    """No engine can be entered where PyTorch cannot be imported."""
    _, folder, found = trained_model
    told = (dict(found.measured.tables), dict(found.measured.about))
    (tmp_path / "found.pickle").write_bytes(pickle.dumps(told))
    done = subprocess.run(
        [sys.executable, "-c", PAGE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    page = (folder / "out" / "report.html").read_bytes()
    assert (tmp_path / "page.html").read_bytes() == page


@one
def test_plot_draws_again_what_the_inspection_drew(
    trained_model: tuple[str, Path, Inspected], tmp_path: Path, told: Any
) -> None:
    _, folder, _ = trained_model
    told("store", folder / "out", "--figures", "--out", tmp_path / "again")
    drawn = {path.stem for path in (tmp_path / "again").glob("*.png")}
    assert drawn >= {"roles", "map-attention_mass-0", "map-copying-0", "map-loss_increase-0",
                     "histogram-attention_mass-0", "map-trace_share", "map-diag_ratio",
                     "pairs"}  # fmt: skip
    for path in (folder / "out" / "figures").glob("*.png"):
        if not path.stem.endswith("-narrow"):
            assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def write_llama(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, hidden_size=16,
        intermediate_size=20, vocab_size=50, max_position_embeddings=32, bos_token_id=1,
    )).save_pretrained(folder)  # fmt: skip


@pytest.mark.slow
def test_a_llama_without_tokenizer_runs_and_says_what_it_skips(
    tmp_path: Path, told: Any, refused: Any
) -> None:
    write_llama(tmp_path / "model")
    (tmp_path / "words.txt").write_text("some words")
    run = ("inspect", tmp_path / "model", "--out", tmp_path / "out", "--rows", 8)
    said = refused(*run, "--text", tmp_path / "words.txt")
    assert "text must be given to a model with a tokenizer" in said
    assert not (tmp_path / "out").exists()
    assert "No head has the behaviour of any role" in told(*run)
    assert (tmp_path / "out" / "report.html").is_file()
    assert "exists" in refused(*run)


def test_text_is_a_trial_where_there_is_a_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = [f"w{i}" for i in range(31)]
    made = Tokenizer(WordLevel({w: i for i, w in enumerate([*words, "?"])}, unk_token="?"))  # noqa: S106
    made.pre_tokenizer = Whitespace()
    export_gpt2(SequenceTransformer(SPEC), tmp_path / "model", bos=0)
    fast = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?")  # noqa: S106
    fast.save_pretrained(tmp_path / "model")
    model = load_pretrained(tmp_path / "model")
    text = " ".join(words[i % 31] for i in range(200))
    trial = text_trial(model, text, rows=5, length=21)
    assert trial is not None
    assert trial.batch.inputs.shape == (5, 21)
    # The model's config names a first token and its tokenizer adds none: rows are the tokenizer's.
    assert trial.batch.inputs[1, :3].tolist() == [21, 22, 23]
    assert torch.equal(trial.batch.targets[:, :-1], trial.batch.inputs[:, 1:])
    assert not trial.batch.mask[:, -1].any()
    with pytest.raises(ArgumentError, match="text must give at least 4 pieces"):
        text_trial(model, "w1 w2 w3")


def test_trials_fit_the_model_or_say_why_not() -> None:
    small = Pretrained(
        "m", "gpt2", model=SequenceTransformer(SPEC), vocabulary=12, n_ctx=12, bos=-1
    )
    trials, left_out = token_trials(small, rows=4)
    assert [t.name for t in trials] == ["repeated"]
    assert len(left_out) == 2
    with pytest.raises(ArgumentError, match=r"rows must be at least 4.*length must be"):
        token_trials(small, rows=1, length=3)
    tiny = Pretrained("m", "gpt2", model=SequenceTransformer(SPEC), vocabulary=3, n_ctx=4, bos=-1)
    with pytest.raises(ArgumentError, match=r"vocabulary of the model must be.*context of the"):
        token_trials(tiny)
    least = Pretrained("m", "gpt2", model=SequenceTransformer(SPEC), vocabulary=4, n_ctx=6, bos=0)
    assert token_trials(least, rows=4)[0][0].batch.inputs.max() < 4


def test_there_must_be_an_inspection_to_resume(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="holds no inspection to resume"):
        inspection_folder(tmp_path, resume=True, overwrite=False).__enter__()


@pytest.mark.slow
def test_a_model_of_few_positions_is_inspected(tmp_path: Path, run: Any, refused: Any) -> None:
    size = 6
    model = SequenceTransformer(replace(SMALL, n_ctx=size), seed=0)
    export_gpt2(model, tmp_path / "model", bos=0)
    ended = run("inspect", tmp_path / "model", "--rows", 8, "--out", tmp_path / "out")
    assert ended.code == 0
    assert f"rows have {size} tokens, the model's context, and not 64" in ended.out + ended.err
    said = refused("inspect", tmp_path / "model", "--length", 5, "--out", tmp_path / "new")
    assert f"length must be at least {size}, got 5" in said


def test_a_members_effect_is_its_own_and_its_groups_stands_beside(language: Inspected) -> None:
    found = language
    sure = found.roles[found.roles["status"] == "confirmed"]
    member = sure[sure["group"].astype(bool) & (sure["head"] >= 0)].iloc[0]
    own, whole = float(member["effect"]), float(member["effect_of_group"])
    beside = [one for one in json.loads(member["tests"]) if one["kind"] == "sufficiency"]
    (alone,) = (one for one in beside if one["name"].startswith("without"))
    assert own == alone["score"] < whole / 2
    group = sure[(sure["component"] == "group") & (sure["group"] == member["group"])]
    assert whole in group["effect"].tolist()
    assert group["effect_of_group"].isna().all()
    text = found.html
    table = text[text.index("<h2>Confirmed roles") : text.index("<h2>Every head")]
    assert "effect of group" in table
    name = f"L{member['layer']}H{member['head']}"
    row = next(r for r in table.split("<tr") if f">{name}<" in r and member["role"] in r)
    assert f'data-name="effect" data-key="{own!r}"' in row
    assert f'data-name="effect of group" data-key="{whole!r}"' in row
    assert f"{name} (" in "".join(found.lines)
    assert "with its group" in "".join(found.lines)
    assert "Attention of every head on one of the prompt rows" in text


def test_a_language_model_rejects_no_role_beside_a_loss_that_passes(language: Inspected) -> None:
    assert (language.roles["status"] == "rejected").any()
    check_rejections(language)


def test_the_caveat_of_text_is_in_the_finding(language: Inspected) -> None:
    found = language
    (said,) = [line for line in found.findings if line.startswith("Most rows are not repeats")]
    heads = found.heads[found.heads["trial"] == "text"]
    rows = heads[(heads["target"] == "first") & (heads["null"] == "positions")]
    sure = found.roles[(found.roles["role"] == "induction") & (found.roles["head"] >= 0)]
    sure = sure[sure["status"] == "confirmed"]
    places = set(zip(sure["layer"], sure["head"], strict=True))
    shares = [r.score for r in rows.itertuples() if (r.layer, r.head) in places]
    assert f"{sum(shares) / len(shares):.0%} to the first token" in said
    own = sure["text_attention"].mean()
    assert f"{own:.0%} of their attention" in said
    assert own + sum(shares) / len(shares) <= 1, "both are shares of all of their attention"
