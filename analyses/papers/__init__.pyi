from analyses.papers.base import Setting as Setting
from analyses.papers.base import Verdict as Verdict
from analyses.papers.depth.ceiling import table_bound as table_bound
from analyses.papers.ledger import Claim as Claim
from analyses.papers.ledger import read_ledger as read_ledger
from analyses.papers.results import Result as Result
from analyses.papers.results import read_result as read_result
from analyses.papers.template.gpt2_scalars import add_scalars as add_scalars
