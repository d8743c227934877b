"""Rewards of texts, as the clients of remote rewards ask for them: OpenRLHF, ROLL, verl.

    {"query": ["..."], "prompts": ["..."], "labels": ["..."]}    the request
    {"rewards": 0.5, "scores": 0.5, "extra_logs": {}}            its answer

A query is a prompt with its completion, decoded with the special tokens. A reward needs nothing
else: prompts, labels (of any JSON type: a data set's answers may be objects) and further keys are
ignored.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError, create_model

from ecorl.engines.models.text_tokenizer import DoubledBegin, TextTokenizer
from ecorl.engines.protocol import Int64
from ecorl.serve.http_errors import HttpError
from ecorl.serve.parsing import ScoreRows, bad_request, one_line, shown
from ecorl.serve.responses import NO_NUMBER, Answer, dump
from ecorl.serve.settings import ServedModel

_SLACK = 4
"""A text is refused before it is tokenised when it has more than so many times the characters of
the longest row of the longest tokens: a normaliser may join a few characters to one. Assumed."""

_MOST_VALUES = 1 << 18
"""A body with more values than so many, its ignored ones included, is refused before it is parsed:
each takes about 100 bytes then. Assumed: enough for 256 texts with 1,000 values beside each."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


class _Body(BaseModel):
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
        self._body: type[_Body] = create_model("Body", __base__=_Body, query=(texts, ...))

    def parse(self, body: bytes | bytearray) -> ScoreRows:
        """Parse and tokenise a JSON body.

        Raises:
            HttpError: 400 with the first mistake.
        """
        _check_size(body)
        refusal: HttpError | None = None
        try:
            parsed = self._body.model_validate_json(body)
        except ValidationError as error:
            refusal = self._explained(error)
        if refusal is not None:  # raised out here, it does not keep the input alive
            raise refusal
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


def _check_size(body: bytes | bytearray) -> None:
    """Refuse a body with too many values; commas and brackets outside of texts stand for them."""
    if len(body) <= _MOST_VALUES:
        return
    outside = _STRING.sub(b"", body)
    n = sum(outside.count(mark) for mark in (b",", b"[", b"{"))
    if n > _MOST_VALUES:
        raise bad_request("body", f"({n} values)", f"at most {_MOST_VALUES} values")


def as_rewards(answer: Answer) -> bytes:
    """Encode rewards the way OpenRLHF's client reads them.

    The client sends one text a request and hands what it gets to ``torch.tensor([rewards])``, for
    an experience whose rewards have the shape (1,). So one text is answered by a plain number: a
    list of one would give the shape (1, 1). Several texts are answered by lists. The values of
    ``extra_logs`` would become tensors too, and every sample needs the same ones: there are none.

    Args:
        answer: the results of the request.

    Raises:
        HttpError: 422 when a text has no reward; null would end the training far from its cause.
    """
    values: list[Any] = []
    for i, value in enumerate(answer.values):
        if value is None:
            raise HttpError(422, f"query[{i}] has no reward: {NO_NUMBER}", "no_number")
        values.append(value.tolist())
    rewards = values[0] if len(values) == 1 else values
    return dump({"rewards": rewards, "scores": rewards, "extra_logs": {}})
