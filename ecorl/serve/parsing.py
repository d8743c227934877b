"""Parses request bodies from JSON into checked rows; a mistake becomes a one-line HTTP 400.

pydantic checks types, signs, lengths and token ids, with models built for the served model;
relations between two fields are checked here. Time and memory are bounded by the largest valid
request, whatever is sent: a body with more values is refused before it is parsed, and the parsing
of a list stops at its first mistake.

`TextParser` reads texts, as the clients of remote rewards ask for them: OpenRLHF, ROLL, verl.

    {"query": ["..."], "prompts": ["..."], "labels": ["..."]}    the request
    {"rewards": 0.5, "scores": 0.5, "extra_logs": {}}            its answer

A query is a prompt with its completion, decoded with the special tokens. A reward needs nothing
else: prompts, labels (of any JSON type: a data set's answers may be objects) and further keys are
ignored.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError, create_model

from ecorl.engines.models.text_tokenizer import DoubledBegin, TextTokenizer
from ecorl.engines.protocol import Int64
from ecorl.records import Stage
from ecorl.serve.http_errors import HttpError
from ecorl.serve.settings import ServedModel

_Parsed = TypeVar("_Parsed", bound=BaseModel)

MAX_ID_LENGTH = 200
"""Most characters of a row's id. Assumed: enough for a path and a number."""

_HARMLESS = 1 << 13
"""Number of values below which a body is always parsed, so that its message names the mistake.
Assumed."""

_Id = Annotated[str, Field(max_length=MAX_ID_LENGTH)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class _Row(_Strict):
    id: _Id | None = None
    token_ids: list[int]
    n_completion: int = Field(default=0, ge=0)


class _LogprobRow(_Row):
    n_completion: int = Field(ge=0)


class _Body(_Strict):
    rows: list[Any]


class _LogprobBody(_Body):
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class ScoreRows:
    """The rows of one request.

    Attributes:
        ids: the client's id of each row, or None.
        token_ids: one ``[length] int64`` array for each row.
        n_completion: number of completion tokens at the end of each row.
        temperature: the logits are divided by it.
    """

    ids: tuple[str | None, ...]
    token_ids: tuple[Int64, ...]
    n_completion: tuple[int, ...]
    temperature: float = 1.0

    def __len__(self) -> int:
        return len(self.ids)


class BodyParser:
    """Parses request bodies for one model.

    Args:
        served: the model, which determines the fields and limits of a row.
        max_rows: most rows of a request.
    """

    def __init__(self, served: ServedModel, max_rows: int) -> None:
        self._served, self._max_rows = served, max_rows
        is_reference = served.stage is Stage.REFERENCE
        token_id = Annotated[int, Field(ge=0, lt=served.vocab_size)]
        token_ids = Annotated[
            list[token_id], FailFast(), Field(min_length=1, max_length=served.max_row_tokens)
        ]
        self._row: type[_Row] = create_model(
            "Row", __base__=_LogprobRow if is_reference else _Row, token_ids=(token_ids, ...)
        )
        rows = Annotated[
            list[self._row],  # type: ignore[name-defined]
            FailFast(),
            Field(min_length=1, max_length=max_rows),
        ]
        self._body: type[_Body] = create_model(
            "Body", __base__=_LogprobBody if is_reference else _Body, rows=(rows, ...)
        )

    def parse(self, body: bytes | bytearray) -> ScoreRows:
        """Parse a JSON body into the rows of a request.

        Raises:
            HttpError: 400 with the first mistake.
        """
        self._check_size(body)
        parsed = _validated(self._body, body, self._explained)
        rows: Sequence[_Row] = parsed.rows
        _check_keys(body, parsed)
        _check_ids(rows)
        arrays = tuple(self._array(f"rows[{i}]", row) for i, row in enumerate(rows))
        return ScoreRows(
            ids=tuple(row.id for row in rows),
            token_ids=arrays,
            n_completion=tuple(row.n_completion for row in rows),
            temperature=parsed.temperature if isinstance(parsed, _LogprobBody) else 1.0,
        )

    def _check_size(self, body: bytes | bytearray) -> None:
        """Refuse a body with more values than a valid request has, before it costs memory and time.

        Commas, brackets and colons stand for the number of values; ids may hold each of them too.
        """
        n_rows, n_tokens = self._max_rows, self._served.max_row_tokens
        for name, marks, most_a_row in (
            ("commas", (b",",), n_tokens + 3 + MAX_ID_LENGTH),
            ("brackets", (b"[", b"{"), 2 + MAX_ID_LENGTH),
            ("colons", (b":",), 3 + MAX_ID_LENGTH),
        ):
            n = sum(body.count(mark) for mark in marks)
            if n > max(_HARMLESS, 2 + n_rows * most_a_row):
                allowed = f"at most {n_rows} rows of at most {n_tokens} token ids"
                raise bad_request("body", f"({n} {name})", allowed)

    def _array(self, where: str, row: _Row) -> Int64:
        """Check a row's number of completion tokens and return its ids ``[length] int64``."""
        ids = np.asarray(row.token_ids, np.int64)
        # A token's log-prob is computed at the token before it: the first token of a row has none.
        most = len(ids) - 1 if self._served.stage is Stage.REFERENCE else len(ids)
        if row.n_completion > most:
            why = "; the first needs a token before it" if most < len(ids) else ""
            allowed = f"a whole number from 0 to {most} (the row's length is {len(ids)}{why})"
            raise bad_request(f"{where}.n_completion", shown(row.n_completion), allowed)
        return ids

    def _explained(self, error: ValidationError) -> HttpError:
        """The first mistake as a one-line HTTP error."""
        first = error.errors(include_url=False)[0]
        kind, loc = first["type"], first["loc"]
        if kind == "json_invalid":
            why = one_line(str(first["ctx"]["error"]))
            return bad_request("body", f"({why})", "JSON in UTF-8")
        if kind == "extra_forbidden":
            known = sorted((self._row if loc[:-1] else self._body).model_fields)
            return bad_request(
                _path(loc), shown(first["input"]), f"one of the keys {', '.join(known)}"
            )
        names = [part for part in loc if isinstance(part, str)]
        name = names[-1] if names else "body"
        if kind == "too_long":
            unit = "tokens" if name == "token_ids" else "rows"
            value = f"({first['ctx']['actual_length']} {unit})"
            return bad_request(_path(loc), value, self._allowed(name))
        if name == "token_ids" and isinstance(loc[-1], int):
            name = "token_id"
        elif name == "rows" and isinstance(loc[-1], int):
            name = "row"
        value = "(not given)" if kind == "missing" else shown(first["input"])
        return bad_request(_path(loc), value, self._allowed(name))

    def _allowed(self, name: str) -> str:
        keys = "id (optional), token_ids, n_completion"
        if self._served.stage is not Stage.REFERENCE:
            keys += " (optional)"
        return {
            "body": 'an object {"rows": [...]}',
            "rows": f"a list of 1 to {self._max_rows} rows",
            "row": f"an object with the keys {keys}",
            "id": f"text of at most {MAX_ID_LENGTH} characters",
            "token_ids": f"a list of 1 to {self._served.max_row_tokens} token ids",
            "token_id": f"a whole number from 0 to {self._served.vocab_size - 1}",
            "n_completion": "a whole number of at least 0 and within the row",
            "temperature": "a finite number above 0",
        }[name]


class _Twice:
    """Stands for a JSON object in which a key occurs more than once."""

    def __init__(self, key: str) -> None:
        self.key = key


def _check_keys(body: bytes | bytearray, parsed: _Body) -> None:
    """Refuse a body in which an object has a key twice: JSON leaves open which value counts.

    The parser keeps the last one. Every pair of key and value has a colon, so that no key occurs
    twice in a body that has as many colons as pairs were kept. Where colons within ids make the
    count unclear, the body is parsed a second time.
    """
    rows: Sequence[_Row] = parsed.rows
    n_kept = len(parsed.model_fields_set) + sum(len(row.model_fields_set) for row in rows)
    n_colons = body.count(b":")
    n_in_ids = sum(row.id.count(":") for row in rows if row.id is not None)
    if n_colons == n_kept or (n_colons == n_kept + n_in_ids and b"\\" not in body):
        return
    # The numbers are not needed here; parsed as truth values they take no extra memory.
    read = json.loads(body, object_pairs_hook=_once, parse_int=bool, parse_float=bool)
    if isinstance(read, _Twice):
        raise _repeated((read.key,))
    for i, row in enumerate(read["rows"]):
        if isinstance(row, _Twice):
            raise _repeated(("rows", i, row.key))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Twice:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    counts = Counter(key for key, _ in pairs)
    return _Twice(counts.most_common(1)[0][0])


def _repeated(path: Sequence[int | str]) -> HttpError:
    return bad_request(_path(path), "(given more than once)", "each key once")


def _check_ids(rows: Sequence[_Row]) -> None:
    first: dict[str, int] = {}
    for i, row in enumerate(rows):
        if row.id is not None and first.setdefault(row.id, i) != i:
            allowed = f"an id that no other row of the request has (rows[{first[row.id]}] has it)"
            raise bad_request(f"rows[{i}].id", shown(row.id), allowed)


def _validated(
    model: type[_Parsed], body: bytes | bytearray, explained: Callable[[ValidationError], HttpError]
) -> _Parsed:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        refusal = explained(error)
    raise refusal  # out here it does not keep the other error and its input alive


def _path(loc: Sequence[int | str]) -> str:
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = part if part.isidentifier() and len(part) <= MAX_ID_LENGTH else shown(part)
            text += f".{plain}" if text else plain
    return text or "body"


def shown(value: Any) -> str:
    """A value on one line, shortened when it is long."""
    return one_line(reprlib.repr(value))


def one_line(text: str) -> str:
    """A text with each run of white space as one space."""
    return " ".join(text.split())


def bad_request(field: str, value: str, allowed: str) -> HttpError:
    """The error for a mistake in a request: the field, its value and what is allowed."""
    return HttpError(400, f"{field} = {value}: allowed is {allowed}", "bad_request")


_SLACK = 4
"""A text is refused before it is tokenised when it has more than so many times the characters of
the longest row of the longest tokens: a normaliser may join a few characters to one. Assumed."""

_MOST_VALUES = 1 << 18
"""A body with more values than so many, its ignored ones included, is refused before it is parsed:
each takes about 100 bytes then. Assumed: enough for 256 texts with 1,000 values beside each."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


class _TextBody(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, hide_input_in_errors=True)

    query: list[str]


class TextParser:
    """Parses requests for rewards of texts into rows of token ids.

    Args:
        served: the model.
        tokenizer: its own tokenizer.
        max_rows: most texts of a request.
    """

    def __init__(self, served: ServedModel, tokenizer: TextTokenizer, max_rows: int) -> None:
        self._served, self._tokenizer, self._max_rows = served, tokenizer, max_rows
        self._begin = DoubledBegin(f"the model {served.name}", served.begin)
        self._max_characters = _SLACK * served.max_row_tokens * tokenizer.longest
        text = Annotated[str, Field(min_length=1)]
        texts = Annotated[list[text], FailFast(), Field(min_length=1, max_length=max_rows)]
        self._body: type[_TextBody] = create_model("Body", __base__=_TextBody, query=(texts, ...))

    def parse(self, body: bytes | bytearray) -> ScoreRows:
        """Parse and tokenise a JSON body.

        Raises:
            HttpError: 400 with the first mistake.
        """
        _check_values(body)
        parsed = _validated(self._body, body, self._explained)
        arrays = tuple(self._tokenised(f"query[{i}]", text) for i, text in enumerate(parsed.query))
        n = len(arrays)
        return ScoreRows((None,) * n, arrays, (0,) * n)

    def _tokenised(self, where: str, text: str) -> Int64:
        """Token ids of a text, ``[length] int64``."""
        most = self._served.max_row_tokens
        allowed = f"text of 1 to {most} tokens"
        if len(text) > self._max_characters:
            raise bad_request(where, f"({len(text)} characters)", allowed)
        ids = self._tokenizer.ids(text)
        if not 1 <= len(ids) <= most:
            raise bad_request(where, f"({len(ids)} tokens)", allowed)
        if max(ids) >= self._served.vocab_size:
            known = f"0 to {self._served.vocab_size - 1}: the tokenizer is not this model's"
            raise bad_request(where, f"(text with token id {max(ids)})", known)
        self._begin.look(ids, where)
        return np.asarray(ids, np.int64)

    def _explained(self, error: ValidationError) -> HttpError:
        """The first mistake as a one-line HTTP error."""
        first = error.errors(include_url=False)[0]
        kind, loc = first["type"], first["loc"]
        if kind == "json_invalid":
            return bad_request("body", f"({one_line(str(first['ctx']['error']))})", "JSON in UTF-8")
        name = str(loc[0]) if loc else "body"
        allowed = {
            "body": 'an object {"query": [...]}',
            "query": f"a list of 1 to {self._max_rows} texts",
        }[name]
        value = "(not given)" if kind == "missing" else shown(first["input"])
        if kind == "too_long" and loc == ("query",):
            value = f"({first['ctx']['actual_length']} texts)"
        if len(loc) > 1 and isinstance(loc[1], int):
            name, allowed = f"{name}[{loc[1]}]", "text, not empty"
        return bad_request(name, value, allowed)


def _check_values(body: bytes | bytearray) -> None:
    """Refuse a body with too many values; commas and brackets outside of texts stand for them."""
    if len(body) <= _MOST_VALUES:
        return
    outside = _STRING.sub(b"", body)
    n = sum(outside.count(mark) for mark in (b",", b"[", b"{"))
    if n > _MOST_VALUES:
        raise bad_request("body", f"({n} values)", f"at most {_MOST_VALUES} values")
