"""Bodies of requests: JSON to checked rows, or one line that says what is wrong.

Types and signs are checked by pydantic; what depends on the model (vocabulary, longest row) and
relations of two fields are checked here.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ecorl.engines.protocol import Int64
from ecorl.records import Stage
from ecorl.serve.refusals import Refused
from ecorl.serve.settings import ServedModel

MAX_ID_LENGTH = 200
"""Characters of a row's id. Assumed: room for a path and a number."""

_TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
_Id = Annotated[str, Field(max_length=MAX_ID_LENGTH)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class _RewardRow(_Strict):
    id: _Id | None = None
    token_ids: list[_TokenId] = Field(min_length=1)
    n_completion: int = Field(default=0, ge=0)


class _LogprobRow(_Strict):
    id: _Id | None = None
    token_ids: list[_TokenId] = Field(min_length=1)
    n_completion: int = Field(ge=0)


class _RewardBody(_Strict):
    rows: list[_RewardRow] = Field(min_length=1)


class _LogprobBody(_Strict):
    rows: list[_LogprobRow] = Field(min_length=1)
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class ScoreRows:
    """The rows of one request.

    Attributes:
        ids: what the client calls each row; None where it did not say.
        token_ids: one ``[length] int64`` array a row.
        n_completion: completion tokens at the end of each row.
        temperature: logits are divided by it.
    """

    ids: tuple[str | None, ...]
    token_ids: tuple[Int64, ...]
    n_completion: tuple[int, ...]
    temperature: float = 1.0

    def __len__(self) -> int:
        return len(self.ids)


def parse_rows(body: bytes, served: ServedModel, max_rows: int) -> ScoreRows:
    """The rows of a body.

    Args:
        body: JSON.
        served: the model, which decides what a row may be.
        max_rows: rows of a request at most.

    Raises:
        Refused: 400, naming the first mistake.
    """
    model = _LogprobBody if served.stage is Stage.REFERENCE else _RewardBody
    try:
        parsed = model.model_validate_json(body)
    except ValidationError as error:
        raise _explained(error, model, served, max_rows) from None
    rows: Sequence[_RewardRow | _LogprobRow] = parsed.rows
    if len(rows) > max_rows:
        raise _bad("rows", f"({len(rows)} rows)", _allowed("rows", served, max_rows))
    _check_ids(rows)
    arrays = tuple(
        _checked(f"rows[{i}]", row.token_ids, row.n_completion, served)
        for i, row in enumerate(rows)
    )
    return ScoreRows(
        ids=tuple(row.id for row in rows),
        token_ids=arrays,
        n_completion=tuple(row.n_completion for row in rows),
        temperature=parsed.temperature if isinstance(parsed, _LogprobBody) else 1.0,
    )


def _check_ids(rows: Sequence[_RewardRow | _LogprobRow]) -> None:
    first: dict[str, int] = {}
    for i, row in enumerate(rows):
        if row.id is not None and first.setdefault(row.id, i) != i:
            allowed = f"an id that no other row of the request has (rows[{first[row.id]}] has it)"
            raise _bad(f"rows[{i}].id", _shown(row.id), allowed)


def _checked(where: str, ids: list[int], n_completion: int, served: ServedModel) -> Int64:
    """Token ids ``[length] int64`` of a row that the model can take."""
    if len(ids) > served.max_row_tokens:
        allowed = f"at most {served.max_row_tokens} tokens"
        raise _bad(f"{where}.token_ids", f"({len(ids)} tokens)", allowed)
    row = np.asarray(ids, np.int64)
    outside = np.flatnonzero(row >= served.vocab_size)
    if outside.size:
        place = int(outside[0])
        allowed = _allowed("token_id", served, 0)
        raise _bad(f"{where}.token_ids[{place}]", str(row[place]), allowed)
    # A log-prob is read at the token before it: the first token of a row has none.
    most = len(row) - 1 if served.stage is Stage.REFERENCE else len(row)
    if n_completion > most:
        why = "; the first needs a token before it" if most < len(row) else ""
        allowed = f"a whole number from 0 to {most} (the row's length is {len(row)}{why})"
        raise _bad(f"{where}.n_completion", _shown(n_completion), allowed)
    return row


def _explained(
    error: ValidationError, model: type[BaseModel], served: ServedModel, max_rows: int
) -> Refused:
    """The first mistake as one line."""
    first = error.errors(include_url=False)[0]
    kind, loc = first["type"], first["loc"]
    if kind == "json_invalid":
        why = _one_line(str(first["ctx"]["error"]))
        return _bad("body", f"({why})", "JSON in UTF-8")
    if kind == "extra_forbidden":
        known = sorted(_model_at(loc[:-1], model).model_fields)
        return _bad(_path(loc), _shown(first["input"]), f"one of the keys {', '.join(known)}")
    names = [part for part in loc if isinstance(part, str)]
    name = names[-1] if names else "body"
    if name == "token_ids" and isinstance(loc[-1], int):
        name = "token_id"
    elif name == "rows" and isinstance(loc[-1], int):
        name = "row"
    value = "(not given)" if kind == "missing" else _shown(first["input"])
    return _bad(_path(loc), value, _allowed(name, served, max_rows))


def _model_at(loc: Sequence[int | str], model: type[BaseModel]) -> type[BaseModel]:
    if not loc:
        return model
    return _LogprobRow if model is _LogprobBody else _RewardRow


def _allowed(name: str, served: ServedModel, max_rows: int) -> str:
    keys = "id (optional), token_ids, n_completion"
    if served.stage is not Stage.REFERENCE:
        keys += " (optional)"
    return {
        "body": 'an object {"rows": [...]}',
        "rows": f"a list of 1 to {max_rows} rows",
        "row": f"an object with the keys {keys}",
        "id": f"text of at most {MAX_ID_LENGTH} characters",
        "token_ids": f"a list of 1 to {served.max_row_tokens} token ids",
        "token_id": f"a whole number from 0 to {served.vocab_size - 1}",
        "n_completion": "a whole number of at least 0 and within the row",
        "temperature": "a finite number above 0",
    }[name]


def _path(loc: Sequence[int | str]) -> str:
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = part if part.isidentifier() and len(part) <= MAX_ID_LENGTH else _shown(part)
            text += f".{plain}" if text else plain
    return text or "body"


def _shown(value: Any) -> str:
    """A value on one line, cut where it is long."""
    return _one_line(reprlib.repr(value))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _bad(field: str, value: str, allowed: str) -> Refused:
    return Refused(400, f"{field} = {value}: allowed is {allowed}", "bad_request")
