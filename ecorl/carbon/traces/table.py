"""A file of delimited text as a table, whose mistakes are told with file, line and column."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ecorl.carbon.series import FloatArray
from ecorl.errors import DataError

MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "-"})
"""What stands in a cell that has no value, in lower case."""

_NAME_WITH_NUMBER = re.compile(r"\d{1,3}[ _-]?[a-z]", re.IGNORECASE)
_DELIMITERS = "\t;,"


@dataclass(frozen=True, slots=True)
class CsvTable:
    """The rows of a file.

    Attributes:
        path: the file.
        columns: names of the columns, as the header has them.
        rows: cells of each row, as many as there are columns.
        lines: 1-based line on which each row ends.
        has_header: whether the names were in the file.
        has_decimal_commas: whether a comma in a number stands for the decimal point.
    """

    path: Path
    columns: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]
    has_header: bool
    has_decimal_commas: bool

    def cells(self, column: int) -> list[str]:
        """Texts of a column, without blanks around them.

        Args:
            column: its number.
        """
        return [row[column].strip() for row in self.rows]

    def numbers(self, column: int) -> FloatArray:
        """Values of a column, NaN where a cell is empty or says that there is none.

        Args:
            column: its number.

        Raises:
            DataError: when a cell is no finite number.
        """
        cells = self.cells(column)
        try:
            values = np.array([float(self._plain(c)) for c in cells], np.float64)
        except ValueError:
            values = np.array([self._number(i, column) for i in range(len(cells))], np.float64)
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            raise self.mistake(int(infinite[0]), column, "is not finite")
        return values

    def mistake(self, row: int, column: int, why: str) -> DataError:
        """The error for a cell.

        Args:
            row: number of its row.
            column: number of its column.
            why: what is wrong with it, and what was expected.
        """
        cell = self.rows[row][column].strip()
        where = f"{self.path}:{self.lines[row]}: {self.columns[column]}"
        return DataError(f"{where} = {cell!r}: {why}")

    def header_mistake(self, column: int, why: str) -> DataError:
        """The error for the name of a column.

        Args:
            column: its number.
            why: what is wrong with it, and what was expected.
        """
        return DataError(f"{self.path}:1: column {column + 1} = {self.columns[column]!r}: {why}")

    def _plain(self, cell: str) -> str:
        if not cell:
            return "nan"
        # Python takes underscores between digits; no file means them.
        if "_" in cell:
            raise ValueError(cell)
        return cell.replace(",", ".") if self.has_decimal_commas else cell

    def _number(self, row: int, column: int) -> float:
        cell = self.rows[row][column].strip()
        if cell.lower() in MISSING:
            return math.nan
        try:
            return float(self._plain(cell))
        except ValueError as error:
            raise self.mistake(row, column, "is not a number") from error


def read_table(path: Path, unnamed: Sequence[str]) -> CsvTable:
    """Read a file of text whose cells are parted by commas, semicolons or tabs.

    Args:
        path: the file, UTF-8.
        unnamed: names of the columns for a file that begins with values instead of a header: one
            whose first row has so many cells and a digit at the beginning of the first of them,
            other than that of a name such as 5min_end.

    Raises:
        DataError: when the file cannot be read, is empty, or has a row of another length.
    """
    text = _text(path)
    first, _, _ = text.lstrip("\r\n").partition("\n")
    delimiter = next((d for d in _DELIMITERS if d in first), ",")
    rows, lines = _rows(path, text, delimiter)
    if not rows:
        raise DataError(f"{path}:1: the file is empty")
    # A name may hold a line break; an error is one line.
    head = [" ".join(cell.split()) for cell in rows[0]]
    begins_with_value = head[0][:1].isdigit() and not _NAME_WITH_NUMBER.match(head[0])
    has_header = len(head) != len(unnamed) or not begins_with_value
    columns = tuple(head) if has_header else tuple(unnamed)
    if has_header:
        rows, lines = rows[1:], lines[1:]
    if not rows:
        raise DataError(f"{path}:2: there are no rows below the header")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(columns):
            raise DataError(f"{path}:{line}: {len(row)} cells, expected {len(columns)}")
    return CsvTable(path, columns, rows, lines, has_header, delimiter != ",")


def _text(path: Path) -> str:
    try:
        # The mark that some programs put before the first byte is no part of a name.
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8 text ({error.reason})") from error


def _rows(path: Path, text: str, delimiter: str) -> tuple[list[list[str]], list[int]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    rows, lines = [], []
    try:
        for row in reader:
            # A blank line has no cells.
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}") from error
    return rows, lines
