"""The ledger: what it must say, and that the shipped one says it."""

import hashlib

import pytest
from made_up import BEFORE, TABLE, ledger, run
from typer.testing import CliRunner

from analyses.cli.claims import app
from analyses.papers.base import Verdict
from analyses.papers.ledger import Claim, read_ledger, select_claims
from interp.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("module")


def test_rule_hash_is_of_the_words(tmp_path):
    (claim,) = ledger(tmp_path).values()
    assert claim.rule_sha256 == hashlib.sha256(b"Reproduced if the sum is 2.").hexdigest()
    (wrapped,) = ledger(tmp_path, TABLE.replace("if the", "if\n  the").replace(
        '"Reproduced', '"""Reproduced').replace('2."', '2."""')).values()  # fmt: skip
    assert wrapped.rule_sha256 == claim.rule_sha256


def test_all_problems_of_a_ledger_at_once(tmp_path):
    text = TABLE.replace('paper = "depth"', 'paper = "dept"').replace("seeds = [3, 4]", "seeds = 3")
    with pytest.raises(ArgumentError) as error:
        ledger(tmp_path, text.replace('run = "made_up', 'ran = 1\nrun = "made up'))
    for part in ("paper must be one of", "must start with dept-", "quick.seeds", ".ran", ".run"):
        assert part in str(error.value)


def test_before_keeps_rule_settings_and_verdict(tmp_path):
    (claim,) = ledger(tmp_path, TABLE + BEFORE).values()
    before = claim.before
    assert before is not None
    assert (before.rule, before.status, before.key) == (
        "Reproduced if the sum is 3.", "partly", "sum 2.5",
    )  # fmt: skip
    assert before.settings == {"seeds": [1], "first": 2}
    assert before.settings_text == '"seeds": [1], "first": 2'
    assert claim.profiles["quick"]["first"] == 1


@pytest.mark.parametrize(("old", "new", "words"), [
    ('refuted_by = "Another sum than that."\n', "", "refuted_by must be given"),
    ('reason = "One and one is no 3."\n', "", "before.reason must be given"),
    ('status = "partly"', 'status = "proved"', "before.status must be one of reproduced"),
    ('"quick"\nstatus', '"slow"\nstatus', "before.profile must be one of zoo"),
    ("[claims.depth-made-up.before.settings]\nseeds = [1]\nfirst = 2\n", "",
     "before.settings must be given"),
    ("first = 2\n", "[claims.depth-made-up.before.more]\n", "before.more must be a known key"),
    ("[claims.depth-made-up.before]", "[[claims.depth-made-up.before]]", "before must be a table"),
])  # fmt: skip
def test_a_claim_without_what_refutes_it_or_half_of_before_is_refused(tmp_path, old, new, words):
    text = TABLE + BEFORE
    assert old in text
    with pytest.raises(ArgumentError, match=words):
        ledger(tmp_path, text.replace(old, new))


def test_unreadable_ledger(tmp_path):
    with pytest.raises(ArgumentError, match="cannot be read"):
        ledger(tmp_path, "claims = [")


def test_choosing(tmp_path):
    known = ledger(tmp_path)
    assert [claim.id for claim in select_claims(known, [], ["depth"], False)] == ["depth-made-up"]
    with pytest.raises(ArgumentError, match=r"must be in the ledger, got 'x'.*--paper must be"):
        select_claims(known, ["x"], ["y"], False)
    with pytest.raises(ArgumentError, match="in one way"):
        select_claims(known, [], [], False)


def test_verdict_needs_a_known_status_numbers_and_words():
    with pytest.raises(ArgumentError, match=r"status must be one of.*numbers must be.*words must"):
        Verdict("proved", "")
    assert Verdict("not run", "No text was given.").numbers == {}


def test_shipped_ledger_names_functions_that_exist():
    known = read_ledger()
    assert len(known) >= 3
    for claim in known.values():
        assert callable(claim.function), claim.id
        assert isinstance(claim, Claim)


@pytest.mark.parametrize("profile", ["zoo", "quick"])
def test_the_shipped_ledger_can_be_run_whole(tmp_path, monkeypatch, profile):
    def answer(setting):
        return Verdict("partly", "Nothing was computed.", numbers={"seeds": len(setting.seeds)})

    monkeypatch.setattr(Claim, "function", property(lambda claim: answer))
    known = read_ledger()
    results, failures, _ = run(known.values(), tmp_path / "out", profile=profile)
    assert failures == []
    assert len(results) == len(known)
    assert not any(result.changed for result in results)


def test_list_prints_every_claim():
    done = CliRunner().invoke(app, ["list", "--rules"])
    assert done.exit_code == 0
    for claim in read_ledger().values():
        assert claim.id in done.output
        lasting = [f"{profile} ({seconds:.0f} s)" for profile, seconds in claim.seconds.items()]
        assert all(told in done.output for told in lasting)
        assert claim.rule in done.output
        assert claim.refuted_by in done.output
        assert claim.before is None or claim.before.reason in done.output


def test_every_claim_tells_how_long_its_quick_profile_takes():
    quick = [claim for claim in read_ledger().values() if "quick" in claim.profiles]
    assert [claim.id for claim in quick if "quick" not in claim.seconds] == []


def test_options_of_the_command_line_are_toml_values():
    from analyses.cli.claims import _options

    assert _options(["steps=5", "text=corpus.txt", "ks=[1, 2]"]) == (
        ("steps", 5), ("text", "corpus.txt"), ("ks", [1, 2]),
    )  # fmt: skip
    with pytest.raises(ArgumentError, match="KEY=VALUE"):
        _options(["steps"])
