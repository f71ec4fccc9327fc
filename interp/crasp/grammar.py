"""The grammar of one line, and the message for a line that does not follow it.

    loosest   φ || φ
              φ && φ
              t == t   !=   <   >   <=   >=        (do not chain)
              t if φ else t                        (groups to the right)
              t + t    t − t                       (group to the left)
              k * t                                (groups to the right)
    tightest  !φ   #φ   #[guard] φ   #> φ   −t

So ``#"a" == 0 && "b"`` is ``((#"a") == 0) && "b"``, and counting a conjunction takes brackets:
``#("a" && "b")``. A statement never spans lines, so one mistake does not hide those of other lines.
"""

from __future__ import annotations

from functools import cache

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from interp.crasp.mistakes import Mistake

__all__ = ["RESERVED", "parse_line"]

RESERVED = frozenset({"if", "else", "true", "false", "min", "max", "import"})

_GRAMMAR = r"""
start: IMPORT NAME -> imported
     | NAME "=" or -> assigned

?or: and | or _OR and -> or_
?and: compared | and _AND compared -> and_
?compared: choice | choice RELATION choice -> comparison
?choice: sum | sum "if" or "else" choice -> choice
?sum: product | sum "+" product -> sum | sum "-" product -> difference
?product: prefixed | prefixed "*" product -> multiple
?prefixed: atom
    | "!" prefixed -> not_
    | "-" prefixed -> minus
    | "#" prefixed -> count
    | "#>" prefixed -> count_future
    | "#" "[" NAME "]" prefixed -> count_guarded
?atom: "(" or ")"
    | "true" -> true
    | "false" -> false
    | NAME -> name
    | NUMBER -> number
    | QUOTED -> symbol
    | "min" "(" or "," or ")" -> smaller
    | "max" "(" or "," or ")" -> larger

_OR: "||"
_AND: "&&"
IMPORT: /#import\b/
RELATION: "==" | "!=" | "<=" | ">=" | "<" | ">"
NAME: /[A-Za-z_][A-Za-z_0-9]*/
NUMBER: /[0-9]+/
QUOTED: /"[^"\r\n]*"/
COMMENT: /\/\/[^\r\n]*/
%ignore COMMENT
%ignore /[ \t]+/
"""

_SHOWN = {
    "$END": "the end of the line",
    "COMMA": ",",
    "ELSE": "else",
    "EQUAL": "=",
    "NAME": "a name",
    "RPAR": ")",
    "RSQB": "]",
    "LPAR": "(",
}
_OPERATORS = {"RELATION", "_OR", "_AND", "PLUS", "MINUS", "STAR", "IF"}
_INSTEAD = {
    "&": "and is written &&",
    "|": "or is written ||",
    "'": 'tokens stand in double quotes, as in "a"',
    '"': "this quote is not closed",
    "?": "a choice is written t if φ else t",
    "/": "comments begin with //",
    "~": "not is written !",
}
_WORDS = {"and": "and is written &&", "or": "or is written ||", "not": "not is written !"}


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", propagate_positions=True)


def parse_line(source: str, line: int) -> Tree[Token] | Mistake | None:
    """The line's parse tree, or its mistake; None for an empty line or a comment."""
    if not source.strip(" \t") or source.lstrip(" \t").startswith("//"):
        return None
    try:
        return _parser().parse(source)
    except UnexpectedCharacters as error:
        found = source[error.column - 1]
        advice = _INSTEAD.get(found, "it is no part of the language")
        return Mistake(line, error.column, f"unexpected {found}: {advice}", source)
    except UnexpectedToken as error:
        return _unexpected(error, source, line)


def _unexpected(error: UnexpectedToken, source: str, line: int) -> Mistake:
    token = error.token
    if token.type == "$END":  # borrows its place from the last token
        message = f"the line ends where {_expected(error)} is expected"
        return Mistake(line, int(token.end_column or 1), message, source)
    advice = _advice(token, error)
    message = f"unexpected {token}: {advice or _expected(error) + ' is expected'}"
    return Mistake(line, int(token.column or 1), message, source, len(token))


def _advice(token: Token, error: UnexpectedToken) -> str | None:
    """Advice for a frequent slip; None for other mistakes."""
    if token in RESERVED and "NAME" in error.accepts and "NUMBER" not in error.accepts:
        return f"{token} is a word of the language, choose another name"
    if token.type == "EQUAL" and "EQUAL" not in error.accepts:
        return "comparing is written =="
    if token.type == "RELATION" and "_AND" in error.accepts:
        return "comparisons do not chain, write a < b && b < c"
    return _WORDS.get(str(token))


def _expected(error: UnexpectedToken) -> str:
    accepts = set(error.accepts)
    if "NUMBER" in accepts:
        return "a formula or a number"
    shown = ["an operator"] if accepts & _OPERATORS else []
    shown += sorted(_SHOWN[kind] for kind in accepts & set(_SHOWN))
    if "IMPORT" in accepts:
        return "NAME = EXPRESSION or #import NAME"
    return " or ".join(shown)
