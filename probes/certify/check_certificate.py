"""``python check_certificate.py certificate.json``: does it hold? Asked of Python alone.

This file stands beside the certificate and ``model.safetensors``, shares no code with prooflens and
follows no step of a proof: it runs the model on every input of the domain and bounds all rounding,
its own and (where the claim is about float32 or float64) that of whoever evaluates the model. A
claim holds if the truth, so computed, is no worse. One line of result; exit status 0: every claim
holds, 1: something does not, 2: this program cannot tell, and why.

*Not looked at*: strategies, covers, lemmas, costs, what was measured; a digest keeps them from
accidents, and nothing rests on them. *Trusted*: Python's float (IEEE 754 double precision), exp,
erfc and sqrt to 8 units of roundoff; that an evaluation has e^x to 48 and GELU to 8 units, no TF32.
"""

import hashlib
import json
import math
import struct
import sys
from fractions import Fraction
from itertools import accumulate, chain, combinations, pairwise
from operator import add, mul, sub
from pathlib import Path
from typing import Any

Ball = list[tuple[float, float]]  # values and radii: all that any evaluation of the model can give
Matrix = list[tuple[list[float], list[float], float]]  # a column, its absolute values, a bias
Word = tuple[int, ...]
Domain = tuple[str, Word, Word, int, Any]
"""Title; inputs before every word; letters; most letters of a word; word → (questions, answer)."""

OURS, TINY = 2.0**-53, 2.0**-1020  # unit roundoff of Python's floats, and what underflow loses
TYPES = {"real": (0.0, TINY), "float32": (2.0**-24, 2.0**-125), "float64": (OURS, TINY)}
UP = 1 + 2.0**-40  # covers the rounding of radii: sums of at most 2^11 numbers
LEAST, LARGEST, MOST_WORK = 1e-280, 2.0**60, 10**9  # no underflow, no overflow, about a minute
FREE = {"d_in", "d_out", "n_ctx", "d_model", "n_layers", "n_heads", "d_head", "ffn", "norm_eps"}
KNOWN = {
    *("input=tokens", "input=real", "score=dot", "score=none", "lag_bias=none", "lag_bias=table"),
    *("positions=none", "positions=learned", "norm=none", "norm=layernorm", "norm=rmsnorm"),
    *("activation=relu", "activation=gelu", "dtype=float32", "dtype=float64", "norm_gain=True"),
    *("norm_final=True", "normalizer=softmax", "residual=True", "causal=True", "input_ffn=[]"),
    *("tied_unembedding=False", "mask_self=False", "identity_mask_self=False", "identity_qk=False"),
    *("identity_ov=False", "identity_multiplier=1.0"),
}


class RefusedError(Exception):
    """The end of a check without success: the exit status, and why."""


def read_weights(data: bytes, dtype: str) -> dict[str, tuple[list[int], list[float]]]:
    """Return the shape and the numbers of each tensor of a safetensors file, all of one type."""
    (size,) = struct.unpack("<Q", data[:8])
    found, body = {}, data[8 + size :]
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            kind = {("F32", "float32"): "f", ("F64", "float64"): "d"}[entry["dtype"], dtype]
            part, size = body[slice(*entry["data_offsets"])], math.prod(entry["shape"])
            found[name] = (entry["shape"], list(struct.unpack(f"<{size}{kind}", part)))
    return found


class Model:
    """A transformer, run position by position on balls, in an arithmetic of TYPES."""

    def __init__(self, spec: dict[str, Any], weights: dict[str, Any], arithmetic: str) -> None:
        options = {f"{key}={value}" for key, value in spec.items() if key not in FREE}
        if (strange := options - KNOWN) or len(spec["ffn"]) > 1 or spec["norm_eps"] < 0:
            raise RefusedError(2, f"{', '.join(strange) or 'such an FFN'} is not covered")
        self.spec, (self.unit, self.tiny) = spec, TYPES[arithmetic]
        d, h, w, left = spec["d_model"], spec["n_heads"], spec["d_head"], dict(weights)

        def read(name: str, *shape: int) -> list[float]:
            found, numbers = left.pop(name, ([], []))
            if found != list(shape) or not all(map(math.isfinite, numbers)):
                raise RefusedError(2, f"{name} must be finite and of shape {shape}, it has {found}")
            return numbers

        def rows(name: str, *shape: int) -> list[list[float]]:
            flat = read(name, *shape)
            return [flat[i : i + shape[-1]] for i in range(0, len(flat), shape[-1])]

        def matrix(name: str, *shape: int, heads: bool = False) -> Matrix:
            flat, step = read(name % "W", *shape), shape[-1]
            bias, size = (
                read(name % "b", *(shape[::2] if heads else shape[-1:])),
                len(flat) // (h if heads else 1),
            )
            starts = [k + i for k in range(0, len(flat), size) for i in range(step)]
            columns = [flat[i : i - i % size + size : step] for i in starts]
            return [(c, list(map(abs, c)), b) for c, b in zip(columns, bias, strict=True)]

        def norm(name: str) -> tuple[list[float], Ball]:
            gain = read(f"{name}.w", d) if spec["norm"] != "none" else [1.0] * d
            shift = read(f"{name}.b", d) if spec["norm"] == "layernorm" else [0.0] * d
            return gain, [(b, 0.0) for b in shift]

        self.embedding, learned = rows("embed.W_E", spec["d_in"], d), spec["positions"] == "learned"
        self.places = rows("pos_embed.W_pos", spec["n_ctx"], d) if learned else []
        self.layers: list[dict[str, Any]] = []
        for at in (f"blocks.{n}." for n in range(spec["n_layers"])):
            layer: dict[str, Any] = {
                "O": matrix(f"{at}attn.%s_O", h, w, d),
                "ln1": norm(f"{at}ln1"),
            }
            for kind in "QKV" if spec["score"] == "dot" else "V":
                layer[kind] = matrix(f"{at}attn.%s_{kind}", h, d, w, heads=True)
            if spec["lag_bias"] == "table":
                layer["table"] = rows(f"{at}attn.terms.table.bias", h, spec["n_ctx"])
            for n in spec["ffn"]:
                into, out = matrix(f"{at}mlp.%s_in", d, n), matrix(f"{at}mlp.%s_out", n, d)
                layer |= {"in": into, "out": out, "ln2": norm(f"{at}ln2")}
            self.layers.append(layer)
        self.final, self.unembedding = norm("ln_final"), matrix("unembed.%s_U", d, spec["d_out"])
        if left:
            raise RefusedError(2, f"the weights {', '.join(left)} are not understood")
        self.work = 2 * sum(len(numbers) for _, numbers in weights.values())

    def error(self, n: int, size: float) -> float:
        """Return the most that n roundings of such terms add, theirs and ours (Higham, §3.1)."""
        return sum(n * u / (1 - n * u) for u in (self.unit, OURS)) * size * UP + n * self.tiny

    def add_rounding(self, x: Ball, n: int = 1) -> Ball:
        """Return a ball after n more roundings."""
        return [(v, r * UP + self.error(n, abs(v) + r)) for v, r in x]

    def add(self, a: Ball, b: Ball) -> Ball:
        """Return the sum of two balls."""
        return self.add_rounding([(v + w, r + s) for (v, r), (w, s) in zip(a, b, strict=True)])

    def linear(self, x: Ball, matrix: Matrix) -> Ball:
        """Return x W + b."""
        n, values = len(x) + 1, [v for v, _ in x]
        g, lost = self.error(n, 1.0), n * self.tiny
        spread = [r + g * (abs(v) + r) for v, r in x]
        offs = [(sum(map(mul, spread, size)) + g * abs(b)) * UP + lost for _, size, b in matrix]
        pairs = zip(matrix, offs, strict=True)
        found = [(sum(map(mul, values, w), b), r) for (w, _, b), r in pairs]
        if not all(abs(v) + r < LARGEST for v, r in found):
            raise RefusedError(2, "numbers inside of the model may overflow")
        return found

    def normalize(self, norm: tuple[list[float], Ball], x: Ball) -> Ball:
        """Return x after LayerNorm, RMSNorm or no norm."""
        kind, n, eps = self.spec["norm"], len(x), self.spec["norm_eps"]
        if kind == "none":
            return x
        if kind == "layernorm":
            mean, off = sum(v for v, _ in x) / n, sum(r for _, r in x) / n
            off += self.error(n + 2, sum(abs(v) for v, _ in x) / n + off)
            x = self.add_rounding([(v - mean, r + off) for v, r in x])
        lost = 2 * n * self.tiny  # squares that underflow, and an ε that does
        high = sum((abs(v) + r) ** 2 for v, r in x) / n * UP + eps + lost
        low = sum(max(abs(v) - r, 0.0) ** 2 for v, r in x) / n / UP - lost
        a, b = high**-0.5 / UP, (max(low, 0.0) + max(eps - lost, 0.0)) ** -0.5 * UP
        middle, half = (a + b) / 2, (b - a) / 2 * UP
        x = [(v * middle, half * (abs(v) + r) + middle * r) for v, r in x]
        pairs = zip(self.add_rounding(x, n // 2 + 6), norm[0], strict=True)
        return self.add(self.add_rounding([(v * f, r * abs(f)) for (v, r), f in pairs]), norm[1])

    def score(self, q: Ball, k: Ball) -> tuple[float, float]:
        """Return ⟨q, k⟩ / √d, as a value and a radius."""
        n, pairs = len(q), list(zip(q, k, strict=True))
        value = sum(v * w for (v, _), (w, _) in pairs) / math.sqrt(n)
        most = sum((abs(v) + r) * (abs(w) + s) for (v, r), (w, s) in pairs)
        off = sum((abs(v) + r) * s + r * abs(w) for (v, r), (w, s) in pairs) * UP
        return value, (off + self.error(n + 4, most)) / math.sqrt(n) * UP + self.tiny

    def ends(self, scores: Ball) -> Ball:
        """Return the least and the largest e^{score − top} of each key, all rounding included."""
        top, off = max(s for s, _ in scores), max(r for _, r in scores)
        more = self.error(2, top - min(s for s, _ in scores) + 2 * off) + self.error(48, 1.0)
        if not off + more < 100:
            raise RefusedError(2, "rounding alone can turn the attention")
        found = [(math.exp(s - top - r - more), math.exp(s - top + r + more)) for s, r in scores]
        return [(max(a / UP - self.tiny, 0.0), b * UP + self.tiny) for a, b in found]

    def fetch(self, scores: Ball, values: list[Ball]) -> Ball:
        """Return a head's output Σ_j A_j v_j = c + Σ_j A_j (v_j − c), c the top key's value."""
        ends, n, ours = self.ends(scores), len(scores), 8 * len(scores) * OURS
        low, high = math.fsum(a for a, _ in ends), math.fsum(b for _, b in ends)
        least = [a / (a + max(high - b, 0.0) + ours) / UP - self.tiny for a, b in ends]
        most = [b / (b + max(low - a - ours, 0.0)) * UP + self.tiny for a, b in ends]
        middle = [(a + b) / 2 for a, b in zip(least, most, strict=True)]
        half = [(b - a) / 2 * UP for a, b in zip(least, most, strict=True)]
        best, found = middle.index(max(middle)), []
        for channel in zip(*values, strict=True):
            v, c = [x for x, _ in channel], channel[best][0]
            apart, own = [x - c for x in v], sum(map(mul, most, (r for _, r in channel)))
            size = sum(map(mul, most, map(abs, v))) + own
            off = sum(map(mul, half, map(abs, apart))) + own + ours * (size + abs(c))
            found.append((c + sum(map(mul, middle, apart)), off * UP + self.error(2 * n + 3, size)))
        return found

    def enter(self, token: int, place: int) -> Ball:
        """Return what enters the first layer at a position, for an input ±1 or a token's id."""
        real = self.spec["input"] == "real"
        x = [(token * w if real else w, 0.0) for w in self.embedding[0 if real else token]]
        return self.add(x, [(v, 0.0) for v in self.places[place]]) if self.places else x

    def step(self, x: Ball, cache: list[list[Any]]) -> Ball:
        """Return the stream after all layers, and add the position to ``cache``."""
        for layer, past in zip(self.layers, cache, strict=True):
            seen, z, w = self.normalize(layer["ln1"], x), [], self.spec["d_head"]
            past.append({kind: self.linear(seen, layer[kind]) for kind in "QKV" if kind in layer})
            for head in range(self.spec["n_heads"]):
                own, scores = slice(head * w, head * w + w), [(0.0, 0.0)] * len(past)
                if "Q" in layer:
                    scores = [self.score(past[-1]["Q"][own], each["K"][own]) for each in past]
                if "table" in layer:
                    bias = [(b, 0.0) for b in layer["table"][head][len(past) - 1 :: -1]]
                    scores = self.add(scores, bias) if "Q" in layer else bias
                z += self.fetch(scores, [each["V"][own] for each in past])
            x = self.add(x, self.linear(z, layer["O"]))
            if "in" in layer:
                pre = self.linear(self.normalize(layer["ln2"], x), layer["in"])
                x = self.add(x, self.linear([self.activate(*each) for each in pre], layer["out"]))
        return x

    def activate(self, v: float, r: float) -> tuple[float, float]:
        """Return ReLU, or GELU x Φ(x), whose second derivative is below .798, and a radius."""
        if self.spec["activation"] == "relu":
            return max(v, 0.0), r if v + r > 0 else 0.0
        below = math.erfc(-v / math.sqrt(2)) / 2
        slope = abs(below + v * math.exp(-v * v / 2) / math.sqrt(2 * math.pi))
        off = r * (slope + 0.8 * r + 64 * OURS * (1 + abs(v))) * UP
        return v * below, off + self.error(8, abs(v) + r) + 8 * OURS * abs(v)

    def right(self, x: Ball, answer: int) -> bool:
        """Return whether one output exceeds all others, by differences of columns."""
        x, (best, _, c) = self.normalize(self.final, x), self.unembedding[answer]
        (values, radii), most = zip(*x, strict=True), [abs(v) + r for v, r in x]
        for w, _, b in self.unembedding[:answer] + self.unembedding[answer + 1 :]:
            apart = list(map(sub, best, w))
            size = sum(map(mul, most, (abs(s) + abs(t) for s, t in zip(best, w, strict=True))))
            off = sum(map(mul, radii, map(abs, apart))) * UP + LEAST
            off += self.error(len(x) + 4, size + abs(c) + abs(b))
            if not sum(map(mul, values, apart)) + c - b > off:
                return False
        return True


def domain_of(told: dict[str, Any]) -> Domain:
    """Return the domain that a certificate names."""
    task, kind = told["task"], f"{told['kind']} {told['task']['kind']}"
    n, name = told.get("length", task.get("length")), task.get("language", "")
    rules: dict[str, Any] = {
        "parity": lambda *x: math.prod(x),
        "majority": lambda *x: 1 if sum(x) > 0 else -1,
        "multiplexer": lambda x, first, second: first if x > 0 else second,
    }
    if kind == "rows maximum":
        v, ask_row = task["vocabulary"], lambda x: (int(len(x) == n), max(x))
        return f"maximum of all {v}^{n} rows", (), (*range(v),), n, ask_row
    if kind == "signs fixed_memory" and task["readout"] in rules:
        lags, rule = (0, *task["lags"]), rules[task["readout"]]
        title = f"{task['readout']} of lags {lags} on all 2^{n} sequences of {n} inputs ±1"
        known = lambda x: len(x) > max(lags)  # noqa: E731
        answer = lambda x: rule(*(x[-1 - lag] for lag in lags)) if known(x) else 0  # noqa: E731
        return title, (), (-1, 1), n, lambda x: (int(known(x)), answer(x))
    k = int(name[2:]) if name[:2] == "L_" else 0
    prefixes, whole = kind == "strings prefix_prediction", kind == "strings membership"
    if not (k > 1 and prefixes) and not (whole and (k > 1 or name == "dyck-1")):
        raise RefusedError(2, f"the domain {kind} {name} is not run through here")
    lengths = [i for i in range(1, n + 1) if any(low <= i <= high for low, high in task["bins"])]
    title = f"{kind} of {name}, lengths {task['bins']} up to {n}"

    def ask(x: Word) -> tuple[int, int] | None:
        """Return weight and answer of a word of 1, 2: ( and ), or a and b in j blocks."""
        heights, j = [*accumulate(3 - 2 * i for i in x)], 1 + sum(a != b for a, b in pairwise(x))
        if not prefixes:
            inside = (x[0], j) == (1, k) if k else min(heights) >= 0 == heights[-1]
            return int(len(x) in lengths), int(inside)
        ways = sum(math.comb(i - len(x), k - j) for i in lengths if i >= len(x) and j <= k)
        return (ways, int(j == k)) if ways and x[0] == 1 else None

    return title, (0,), (1, 2), lengths[-1], ask


def run_through(model: Model, domain: Domain) -> float | Fraction:
    """Return the largest error, or the share of right answers, over all inputs."""
    (title, start, letters, longest, ask), real = domain, model.spec["input"] == "real"
    if len(letters) ** (longest + 1) * model.work > MOST_WORK:
        raise RefusedError(2, f"{title}: too many to run through")
    cache: list[list[Any]] = [[] for _ in model.layers]
    worst, right, total, words = 0.0, 0, 0, [start[:0]]
    while words:  # depth first: the cache has the word's beginning
        word = words.pop()
        weight, answer = ask(word) or (0, 0) if word else (0, 0)
        if inputs := (*start, *word):
            for past in cache:
                del past[len(inputs) - 1 :]
            x = model.step(model.enter(inputs[-1], len(inputs) - 1), cache)
        if weight and real:
            ((v, r),) = model.linear(model.normalize(model.final, x), model.unembedding)
            worst = max(worst, (abs(v - answer) + r) * UP)
        elif weight:
            right += weight * model.right(x, answer)
        total += weight
        longer = [(*word, letter) for letter in letters] if len(word) < longest else []
        words += [each for each in longer if ask(each)]
    return worst + 0 / total if real else Fraction(right, total)  # where nothing is asked: no


def count(base: list[float], rest: list[tuple[list[list[float]], list[float]]]) -> int:
    """Return how many choices of one term of each of ``rest`` keep all sums positive."""
    if min(map(sum, zip(base, *(least for _, least in rest), strict=True))) > LEAST:
        return math.prod(len(terms) for terms, _ in rest)
    return sum(count([*map(add, base, t)], rest[1:]) for terms, _ in rest[:1] for t in terms)


def split_rows(model: Model, v: int, n: int) -> Fraction:
    """The share of rows of a maximum that one head in one layer, and nothing else, answers rightly.

    With q the last token, m the largest, e = e^{score}: the logit of m exceeds that of c exactly if

        Σ_p e_p(t_p) [D_q(m) − D_q(c) + O_p(t_p, m) − O_p(t_p, c)] > 0.

    Each position takes its worst token by itself; if that is too bad, one is taken token by token.
    """
    (layer,), bare = model.layers, [(w, size, 0.0) for w, size, _ in model.unembedding]
    x, paths, right = [model.enter(t, p) for p in range(n) for t in range(v)], [], 0
    keys = [model.linear(each, layer["K"]) for each in x]
    for each in x:
        value = model.add_rounding(model.linear(each, layer["V"]), 2 * n + 4)  # that of the mean
        paths.append(model.linear(model.add_rounding(model.linear(value, layer["O"])), bare))
    off = max(r + 16 * OURS * abs(u) for path in paths for u, r in path)
    for q, stream in enumerate(x[-v:]):
        query = model.linear(stream, layer["Q"])
        ends = model.ends([model.score(query, key) for key in keys])
        own = model.linear(model.add_rounding(stream), model.unembedding)
        slack = 2 * (off + max(r + 16 * OURS * abs(u) for u, r in own)) * UP
        for m in range(q, v):
            terms: list[list[list[float]]] = [[] for _ in range(n)]  # position, token ≤ m, c
            for at, ((low, high), path) in enumerate(zip(ends, paths, strict=True)):
                if at % v <= m:
                    lead = own[m][0] + path[m][0] - slack
                    gaps = [lead - own[c][0] - path[c][0] for c in range(v) if c != m]
                    up = [(low if g > 0 else high) * g - high * abs(g) * 64 * OURS for g in gaps]
                    terms[at // v].append(up)
            rest = [(t[:m], [min(c) for c in zip(*t[:m], strict=True)]) for t in terms[:-1]]
            for copies in chain(*(combinations(range(n - 1), k) for k in range(q != m, n))):
                others = [rest[p] for p in range(n - 1) if p not in copies]
                if m or not others:
                    fixed = terms[-1][q], *(terms[p][m] for p in copies)
                    right += count([*map(sum, zip(*fixed, strict=True))], others)
    return Fraction(right, v**n)


def digest(certificate: dict[str, Any]) -> str:
    """Return the SHA-256 of everything else in a certificate."""
    text = json.dumps(certificate | {"digest": None}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check(file: Path) -> str:
    """Check a certificate's file; return what holds, in words."""
    told = json.loads(file.read_text(encoding="utf-8"))
    claims = [p for p in told["strategies"] if not p["vacuous"]]
    if told["format"] != {"name": "prooflens-certificate", "version": 1} or not claims:
        raise RefusedError(2, "it is of another version, or claims nothing")
    if told["digest"] != digest(told):
        raise RefusedError(1, "it was changed after it was written: its digest differs")
    weights = file.with_name("model.safetensors").read_bytes()
    if told["model"]["sha256"] != hashlib.sha256(weights).hexdigest():
        raise RefusedError(1, "it is about other weights: their SHA-256 differs")
    spec, error, words = told["model"]["spec"], told["kind"] == "error", []
    domain = title, start, letters, longest, _ = domain_of(told["domain"])
    out, wide, v = spec["d_out"], spec["d_in"] if not start else spec["d_out"], len(letters)
    if longest + len(start) > spec["n_ctx"] or {out, wide} != {1 if error else v}:
        raise RefusedError(1, "the domain, or what is bounded, is not for a model of this kind")
    shape = [spec[key] for key in ("n_layers", "n_heads", "score", "lag_bias", "norm", "ffn")]
    split = not error and not start and shape == [1, 1, "dot", "none", "none", []]
    for arithmetic in sorted({p["arithmetic"] for p in claims}):
        if arithmetic not in ("real", spec["dtype"]) or error != (spec["input"] == "real"):
            raise RefusedError(1, f"nothing can be said of its {told['kind']} in {arithmetic}")
        model = Model(spec, read_weights(weights, spec["dtype"]), arithmetic)
        found = split_rows(model, v, longest) if split else run_through(model, domain)
        for claim in (p for p in claims if p["arithmetic"] == arithmetic):
            stands = found <= claim["bound"] if error else found >= claim["bound"]
            if not stands or claim["kind"] != told["kind"]:
                raise RefusedError(1, f"{claim['strategy']} says {claim['bound']}, it is {found}")
        words.append(f"{float(found):.9g} in {arithmetic} arithmetic")
    claimed = [f"{p['strategy']} {p['bound']:.9g}" for p in claims]
    return f"{told['kind']}, {title}: found {', '.join(words)}; claimed {', '.join(claimed)}"


def main(arguments: list[str]) -> int:
    """Print one line with the result; return the exit status."""
    try:
        words, status = check(Path(*arguments)), 0
    except RefusedError as refused:
        status, words = refused.args
    except Exception as error:  # whatever is broken: one line
        status, words = 2, f"{type(error).__name__}: {error}"
    sys.stdout.write(f"{('holds', 'FAILS', 'cannot tell')[status]}: {words}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
