"""Running claims by a ledger, their results and the report, with a claim that is made up."""

import json
from unittest.mock import patch

import pytest
from made_up import BEFORE, TABLE, ledger, run
from typer.testing import CliRunner

from analyses.cli.claims import app
from analyses.papers.claims_report import write_report
from analyses.papers.results import RESULT, read_result
from analyses.papers.run import Failure, Order, run_claims
from interp.errors import ArgumentError, OutputError

pytestmark = pytest.mark.usefixtures("module")


def test_missing_function_is_told_before_any_work(tmp_path, module):
    known = ledger(tmp_path, TABLE + TABLE.replace("made-up", "other").replace(":addition", ":no"))
    with pytest.raises(ArgumentError, match="depth-other"):
        run(known.values(), tmp_path / "out")
    assert module.calls == []


def test_result_round_trip(tmp_path, module):
    known = ledger(tmp_path)
    (result,), failures, _ = run(known.values(), tmp_path / "out")
    assert failures == []
    assert (result.status, result.key, result.seeds) == ("reproduced", "sum 2", (3, 4))
    assert result.numbers == {"sum": [2, "nan"]}
    assert read_result(tmp_path / "out" / "depth-made-up") == result
    assert result.table("sums")["sum"].tolist() == [2, 2]
    names = {path.name for path in result.folder.iterdir()}
    files = {RESULT, "environment.json", "sums.csv", "line.png", "line.svg", "thumbnail.png"}
    assert names == files
    assert module.calls[0].options == {"first": 1}


def test_seeds_continue_upwards_and_options_are_replaced(tmp_path, module):
    known = ledger(tmp_path)
    (result,), _, _ = run(known.values(), tmp_path / "out", seeds=4, options=(("first", 5),))
    assert result.seeds == (3, 4, 5, 6)
    assert result.status == "not reproduced"


def test_options_that_no_claim_knows_are_refused(tmp_path, module):
    known = ledger(tmp_path).values()
    with pytest.raises(ArgumentError, match=r"--option frist .* did you mean first\?"):
        run(known, tmp_path / "out", options=(("frist", 5), ("broken", False)))
    assert module.calls == []
    assert not (tmp_path / "out").exists()


def test_a_profile_that_cannot_answer_is_not_checked_either(tmp_path, module):
    def check(setting):
        raise ArgumentError(f"first is {setting.options['first']}")

    module.check = check
    (result,), _, _ = run(ledger(tmp_path).values(), tmp_path / "out", profile="zoo")
    assert result.status == "not run"
    assert "shipped models alone" in result.words
    assert module.calls == []
    with pytest.raises(ArgumentError, match="first is 1"):
        run(ledger(tmp_path).values(), tmp_path / "out")


def test_a_verdict_is_not_replaced_by_not_run(tmp_path, module):
    known, out = ledger(tmp_path), tmp_path / "out"
    run(known.values(), out)
    (result,), _, told = run(known.values(), out, profile="zoo")
    assert (result.status, result.profile) == ("reproduced", "quick")
    assert told == [True]
    assert len(module.calls) == 1


def test_what_was_not_run_is_tried_again(tmp_path, module):
    known, out = ledger(tmp_path), tmp_path / "out"
    run(known.values(), out, profile="zoo")
    (result,), _, told = run(known.values(), out, resume=True)
    assert result.status == "reproduced"
    assert told == [False]


def test_models_that_are_not_shipped_are_named(tmp_path, module):
    zoo = '[claims.depth-made-up.zoo]\nmodels = ["no-such-model"]\nfirst = 1\n'
    (result,), _, _ = run(ledger(tmp_path, TABLE + zoo).values(), tmp_path / "out", profile="zoo")
    assert result.status == "not run"
    assert "no-such-model" in result.words
    assert module.calls == []


@pytest.mark.parametrize(("how", "words"), [
    ({"profile": "slow"}, "--profile must be one of"),
    ({"seeds": 0}, "--seeds must be at least 1"),
    ({"workers": 0}, "--workers must be at least 1, got 0"),
    ({"backend": "dask"}, "--backend must be local or ray"),
    ({"options": (("seeds", "x"),)}, "--option seeds must be a list"),
    ({"device": "abacus"}, "--device must be a device"),
])  # fmt: skip
def test_orders_are_refused_before_any_work(how, words):
    with pytest.raises(ArgumentError, match=words):
        Order(**how)


def test_resume_keeps_equal_results_only(tmp_path, module):
    known, out = ledger(tmp_path), tmp_path / "out"
    run(known.values(), out)
    assert run(known.values(), out, resume=True)[2] == [True]
    assert run(known.values(), out, overwrite=True, resume=True, seeds=1)[2] == [False]
    assert run(known.values(), out, overwrite=True)[2] == [False]
    assert len(module.calls) == 3


def test_results_are_replaced_only_if_asked(tmp_path, module):
    known, out = ledger(tmp_path), tmp_path / "out"
    run(known.values(), out)
    rule = r"holds results already: depth-made-up \(quick: reproduced\).*--resume.*--overwrite"
    for how in ({}, {"resume": True, "seeds": 1}, {"resume": True, "options": (("first", 5),)}):
        with pytest.raises(OutputError, match=rule):
            run(known.values(), out, **how)
    assert len(module.calls) == 1
    assert read_result(out / "depth-made-up").status == "reproduced"


def test_other_options_than_the_ledgers_are_told(tmp_path, module):
    known, out = ledger(tmp_path), tmp_path / "out"
    (result,), _, _ = run(known.values(), out, seeds=1, options=(("first", 1), ("broken", False)))
    assert result.changed == {"seeds": [3, 4]}
    assert result.verdict == "reproduced, with other options"
    page = write_report(known, out).read_text()
    assert "Of these, 1 with other options than the ledger" in page
    assert "reproduced, with other options" in page
    (result,), _, _ = run(known.values(), out, overwrite=True)
    assert (result.changed, result.verdict) == ({}, "reproduced")


@pytest.mark.parametrize(("own", "values"), [
    ("1", ["hello", 1.5, [1], True]),
    ("{ steps = 2 }", [{}, {"steps": 0.5}, {"steps": 3, "rate": 1}, [3], -3]),
])  # fmt: skip
def test_options_of_another_type_or_table_are_refused(tmp_path, module, own, values):
    known = ledger(tmp_path, TABLE.replace("first = 1", f"first = {own}")).values()
    for value in values:
        with pytest.raises(ArgumentError, match="--option first must be like the ledger's"):
            run(known, tmp_path / "out", options=(("first", value),))
    assert module.calls == []


def test_a_claim_that_stopped_is_told_as_stopped(tmp_path, module):
    known, out = ledger(tmp_path), tmp_path / "out"
    run(known.values(), out, options=(("broken", True),))
    page = write_report(known, out).read_text()
    assert "Stopped with an error: the disk is full" in page
    assert "1 claim: 1 stopped." in page
    run(known.values(), out)
    assert "Stopped with an error" not in write_report(known, out).read_text()


def test_a_folder_without_results_has_no_report(tmp_path):
    done = CliRunner().invoke(app, ["report", "--out", str(tmp_path)])
    assert isinstance(done.exception, OutputError)
    assert "holds no results" in str(done.exception)


def test_failure_leaves_others_and_its_working_folder(tmp_path, module):
    other = TABLE.replace("made-up", "second").replace("first = 1", "first = 1\nbroken = true")
    known, out = ledger(tmp_path, other + TABLE), tmp_path / "out"
    results, failures, _ = run(known.values(), out)
    assert [r.claim for r in results] == ["depth-made-up"]
    assert failures == [Failure("depth-second", "the disk is full")]
    assert (out / ".work" / "depth-second" / "half").exists()
    (out / ".work" / "depth-second" / "begun").touch()
    run([known["depth-second"]], out, resume=True)
    assert module.calls[-1].resume
    assert (out / ".work" / "depth-second" / "begun").exists()
    run([known["depth-second"]], out, resume=True, seeds=1)
    assert not (out / ".work" / "depth-second" / "begun").exists(), "it is of other seeds"


@pytest.mark.parametrize(("old", "new", "status"), [
    ("the sum is 2", "the sum is 3", "reproduced"), ("first = 1", "first = 0", "not reproduced"),
])  # fmt: skip
def test_a_changed_rule_or_setting_is_kept_and_shown(tmp_path, old, new, status):
    out = tmp_path / "out"
    run(ledger(tmp_path).values(), out)
    changed = ledger(tmp_path, TABLE.replace(old, new))
    assert "have changed since" in write_report(changed, out).read_text()
    (result,), _, told = run(changed.values(), out, resume=True)
    assert (told, result.status) == ([False], status)
    before = result.before
    assert before["rule"] == "Reproduced if the sum is 2."
    assert (before["status"], before["settings"]) == ("reproduced", {"seeds": [3, 4], "first": 1})
    page = write_report(changed, out).read_text()
    assert "Before, profile quick: <em>reproduced</em> (sum 2)" in page
    assert "Settings: &#34;seeds&#34;: [3, 4], &#34;first&#34;: 1" in page
    assert "have changed since" not in page
    (again,), _, _ = run(changed.values(), out, overwrite=True)
    assert again.before == result.before


def test_a_users_own_options_are_no_history(tmp_path):
    known, out = ledger(tmp_path), tmp_path / "out"
    run(known.values(), out, options=(("first", 5),))
    (result,), _, _ = run(known.values(), out, overwrite=True)
    assert result.before == {}


def test_what_would_refute_a_claim_and_its_history_are_on_the_page(tmp_path):
    known, out = ledger(tmp_path, TABLE + BEFORE), tmp_path / "out"
    unanswered = write_report(known, out).read_text()
    run(known.values(), out)
    for page in (unanswered, write_report(known, out).read_text()):
        assert "Another sum than that." in page
        assert page.count("Before, profile quick: <em>partly</em> (sum 2.5)") == 1
        assert "Changed because: One and one is no 3." in page
        assert "Rule: Reproduced if the sum is 3." in page


@pytest.mark.parametrize(("seeds", "told", "other"), [
    ([3, 4], "Undecided: Rounding.", "Fragile, and decided"),
    ([*range(7)], "Fragile, and decided by 7 seeds: Rounding.", "ndecided"),
])  # fmt: skip
def test_few_seeds_leave_a_fragile_verdict_undecided(tmp_path, seeds, told, other):
    text = TABLE.replace("seeds = [3, 4]", f"seeds = {seeds}")
    text = text.replace('yours = ["broken"]', 'yours = ["broken"]\nfragile = "Rounding."')
    known, out = ledger(tmp_path, text), tmp_path / "out"
    run(known.values(), out)
    page = write_report(known, out).read_text()
    assert told in page
    assert other not in page
    assert ("1 reproduced. Of these, 1 undecided." in page) == (len(seeds) < 7)


def test_report_is_one_file_with_everything(tmp_path):
    known, out = ledger(tmp_path, TABLE + TABLE.replace("made-up", "absent")), tmp_path / "out"
    run([known["depth-made-up"]], out)
    page = write_report(known, out).read_text()
    assert "&lt;b&gt;in every seed&lt;/b&gt;" in page
    assert "2 claims: 1 reproduced, 1 not run." in page
    assert page.count("<img") == 2
    told = page.count('alt="a rising line ')
    assert told == 2, "the figure and the small one that leads to it, with the verdict's numbers"
    assert "://" not in page, "numbers of pictures may spell anything else"
    assert 'id="depth-absent"' in page


def test_newer_and_foreign_results_are_refused(tmp_path):
    folder = tmp_path / "depth-made-up"
    folder.mkdir()
    (folder / RESULT).write_text(json.dumps({"format": 2}))
    with pytest.raises(OutputError, match="newer format"):
        read_result(folder)
    (folder / RESULT).write_text("{}")
    with pytest.raises(OutputError, match="it has no 'format'"):
        read_result(folder)


def test_the_cheapest_claim_is_run_first_or_of_several_at_once_the_longest(tmp_path, module):
    def lasting(name, seconds):
        table = TABLE.replace("made-up", name)
        return table.replace("yours", f"seconds = {{ quick = {seconds} }}\nyours", 1)

    known = ledger(tmp_path, lasting("slow", 900) + lasting("fast", 2.5) + lasting("middle", 30))
    results, _, _ = run(known.values(), tmp_path / "out")
    assert [result.claim for result in results] == ["depth-fast", "depth-middle", "depth-slow"]
    with patch("analyses.papers.run._attempts", return_value=iter([])) as attempts:
        run_claims([*known.values()], tmp_path / "two", Order(workers=2), told=lambda *_: None)
    started = [job[0].id for job in attempts.call_args.args[0]]
    assert started == ["depth-slow", "depth-middle", "depth-fast"]


@pytest.mark.parametrize("seconds", ["{ quick = 0 }", "{ zoo = 3 }", '{ quick = "9" }', "9"])
def test_seconds_of_no_profile_are_refused(tmp_path, seconds):
    with pytest.raises(ArgumentError, match=r"made-up.* must (be above 0|be a|give seconds)"):
        ledger(tmp_path, TABLE.replace("yours", f"seconds = {seconds}\nyours", 1))


def test_several_claims_at_once_give_what_one_after_another_give(tmp_path):
    real = TABLE.replace("made_up_claims:addition", "analyses.papers.depth.programs:run")

    def programs(name, blocks):
        options = f"blocks = {blocks}\nexhaustive = 4\nrandom = 5\nlongest = 20"
        return real.replace("made-up", name).replace("first = 1", options)

    text = programs("one", "[1]") + programs("two", "[2]") + programs("bad", '["x"]')
    known = ledger(tmp_path, text)
    found = {}
    for workers in (1, 2):
        results, failures, told = run(known.values(), tmp_path / f"{workers}", workers=workers)
        assert [failure.claim for failure in failures] == ["depth-bad"]
        assert "traceback.txt" in failures[0].words
        assert told == [False] * 3
        found[workers] = {result.claim: (result.words, result.numbers) for result in results}
    assert sorted(found[1]) == ["depth-one", "depth-two"]
    assert found[1] == found[2]
