"""Build the classes of keys, for every query: by position, by token, or at a latent's lag.

Every class is boolean ``[row, query, key]`` (``[1, query, key]`` if rows do not differ), and causal
by default. :mod:`interp.attention.attention_to_keys` has the list and measures the attention that
they get.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import Problems, is_count


def positional_key_sets(
    rows: int, length: int, window: int, *, causal: bool = True
) -> dict[str, Bool[Tensor, "row q k"]]:
    """Build the key sets that depend on positions alone.

    For query i, ``previous`` has key i − 1, ``own`` has key i, ``first`` has key 0 (for i ≥ 1), and
    ``local`` has keys j with 0 ≤ i − j < window, or |i − j| < window if not causal.

    Args:
        rows: Number of rows; all have the same masks.
        length: Number of positions.
        window: Number of positions in ``local``, counted back from and including the query's own.
        causal: Whether queries attend to no later keys; only ``local`` depends on it.

    Returns:
        Name → Boolean mask, true for keys in the set.

    Raises:
        ArgumentError: if the window is smaller than 1.
    """
    problems = Problems("positional_key_sets")
    problems.need(window >= 1, "window", "must be at least 1", window, "1 is the own position")
    problems.raise_if_any()
    place = torch.arange(length)
    lag = place[:, None] - place
    found = {
        "previous": lag == 1,
        "own": lag == 0,
        "first": (place == 0) & (lag > 0),
        "local": (lag.abs() < window) & (lag >= 0 if causal else True),
    }
    return {name: keys.expand(rows, -1, -1) for name, keys in found.items()}


def token_key_sets(
    tokens: Int[Tensor, "row pos"], *, causal: bool = True
) -> dict[str, Bool[Tensor, "row q k"]]:
    """Build the key sets that depend on tokens: ``same`` and ``after_same``.

    ``same`` has the keys before the query whose token equals the query's (later ones too, if not
    causal), and ``after_same`` has the keys right after those. The query itself belongs to neither,
    so of two equal neighbours the second has no ``after_same`` in the first.

    Args:
        tokens: Token ids, ``[row, pos]``.
        causal: Whether to leave out keys after the query.

    Returns:
        Name → Boolean mask, true for keys in the set.
    """
    others = ~torch.eye(tokens.shape[1], dtype=torch.bool)
    others = others.tril() if causal else others
    equal = (tokens[:, :, None] == tokens[:, None, :]) & others
    after = torch.zeros_like(equal)
    after[:, :, 1:] = equal[:, :, :-1]
    return {"same": equal, "after_same": after & others}


def lag_key_set(lags: Tensor, *, causal: bool = True) -> Bool[Tensor, "row q k"]:
    """Build the key set that has the one key i − t_i of each query i.

    Queries whose key would lie outside of the row, or whose lag is not a whole number, have no key.

    Args:
        lags: The lags t_i, ``[row, pos]``, each ≥ 0 if causal.
        causal: Whether to leave out keys after the query.
    """
    place = torch.arange(lags.shape[1])
    at = place - lags.to(torch.float64)
    keys = at[..., None] == place
    return keys.tril() if causal else keys


def repeated_tokens(
    rows: int, length: int, vocabulary: int, *, seed: int = 0, bos: int | None = None
) -> Int[Tensor, "row pos"]:
    """Draw random tokens that repeat, each row with its own period between length/4 and length/2.

    With one period for all rows, a head that attends by position alone would look like induction.

    Args:
        rows, length: The number of rows and the number of positions.
        vocabulary: Tokens are drawn from 0 … vocabulary − 1, without ``bos``.
        seed: Seed of the random draws.
        bos: A token that each row begins with, before the repeated ones; None for none.

    Raises:
        ArgumentError: if a number is out of range.
    """
    problems = Problems("repeated_tokens")
    given = {"rows": rows, "length": length, "vocabulary": vocabulary, "seed": seed}
    given |= {} if bos is None else {"bos": bos}
    for name, value in given.items():
        problems.need(is_count(value), name, "must be a whole number", value, "give one")
    problems.raise_if_any()
    problems.need(length >= 9, "length", "must be at least 9", length, "two periods must fit")
    problems.need(vocabulary >= 4, "vocabulary", "must be at least 4", vocabulary, "enlarge it")
    inside, rule = bos is None or bos < vocabulary, f"must be below {vocabulary}"
    problems.need(inside, "bos", rule, bos, "give one of the vocabulary's tokens")
    problems.raise_if_any()
    generator = torch.Generator().manual_seed(seed)
    start = 0 if bos is None else 1
    n = length - start
    drawn = torch.randint(vocabulary - start, (rows, n), generator=generator)
    if bos is not None:
        drawn = drawn + (drawn >= bos)
    period = torch.randint(n // 4, n // 2 + 1, (rows, 1), generator=generator)
    repeated = drawn.gather(1, torch.arange(n) % period)
    if bos is None:
        return repeated
    return torch.cat((torch.full((rows, 1), bos), repeated), dim=1)
