"""A ledger with one claim that was made up for the purpose, and how it is run."""

from analyses.papers.ledger import read_ledger
from analyses.papers.run import Order, run_claims

TABLE = """
[claims.depth-made-up]
paper = "depth"
source = "nowhere"
statement = "One and one is two."
rule = "Reproduced if the sum is 2."
refuted_by = "Another sum than that."
run = "made_up_claims:addition"
yours = ["broken"]
[claims.depth-made-up.quick]
seeds = [3, 4]
first = 1
"""


BEFORE = """
[claims.depth-made-up.before]
rule = "Reproduced if the sum is 3."
profile = "quick"
status = "partly"
key = "sum 2.5"
reason = "One and one is no 3."
[claims.depth-made-up.before.settings]
seeds = [1]
first = 2
"""


def ledger(tmp_path, text=TABLE):
    path = tmp_path / "claims.toml"
    path.write_text(text)
    return read_ledger(path)


def run(claims, out, **how):
    told = []
    order = Order(**how)
    results, failures = run_claims(
        list(claims), out, order, told=lambda claim, came, kept: told.append(kept)
    )
    return results, failures, told
