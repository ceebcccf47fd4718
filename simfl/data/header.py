"""The first line of a table's file: enough to refuse a wrong name at once, before anything heavy is loaded."""

import codecs
import csv
import gzip
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from simfl.errors import DataError, FileError

_ENDINGS: Final = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv"} | dict.fromkeys(
    (".libsvm", ".svm", ".svmlight"), "libsvm"
)
# How a text in another encoding begins, and its name for iconv. The longer marks first: they begin as the shorter do.
_MARKS: Final = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32"} | dict.fromkeys(
    (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "UTF-16"
)
_IN_WORDS: Final = {"latin1": "Latin-1, as Excel writes it", "UTF-16": "UTF-16, as Excel writes it"}
_LONGEST_LINE: Final = 1 << 16  # bytes: so much of the first line is looked at
_PACKED: Final = (".gz", ".bz2", ".zip", ".xz", ".zst")


def kind_of(path: Path) -> str:
    """csv, parquet or libsvm: the ending or the first line says it."""
    if path.is_dir():
        raise FileError(f"{path} is a folder. Give a CSV, Parquet or LIBSVM file.")
    if not path.is_file():
        raise FileError(f"There is no file {path}. Check the name and the folder ({Path.cwd()}).")
    if path.suffix.lower() in _PACKED:
        raise FileError(f"{path} is packed. Unpack it first (as in `gunzip {path.name}`), or save it as Parquet.")
    with reading(path):
        if _ENDINGS.get(path.suffix.lower()) != "parquet":
            _refuse_other_than_text(path)
        return _ENDINGS.get(path.suffix.lower()) or ("libsvm" if _looks_like_libsvm(path) else "csv")


class Asked(NamedTuple):
    """The columns that options name."""

    labels: tuple[str, ...]
    event: str | None = None
    by: str | None = None
    drop: tuple[str, ...] = ()
    weight: str | None = None

    @property
    def by_option(self) -> list[tuple[str, str]]:
        """Each with its option."""
        single = [("--event", self.event), ("--by", self.by), ("--weight", self.weight)]
        named = [("--label", name) for name in self.labels] + [("--drop", name) for name in self.drop]
        return named + [(option, name) for option, name in single if name is not None]


def check_columns(path: Path, asked: Asked) -> None:
    """Refuse options that name a column that a CSV file does not have, by its first line alone."""
    if kind_of(path) == "csv":
        check_named(path, columns_of(path), asked)


def check_named(path: Path | str, names: Sequence[str], asked: Asked) -> None:
    """Refuse options that name a column that is not there, and a table without a label."""
    here = f"Its columns are: {', '.join(names[:30])}{', ...' if len(names) > 30 else ''}."
    if not asked.labels:
        raise DataError(f"Say which column of {path} is the label: --label COLUMN. {here}")
    for option, name in asked.by_option:
        if name not in names:
            raise DataError(f"{path} has no column {name!r} ({option}). {here}")


def columns_of(path: Path) -> list[str]:
    """The names in the first line of a CSV file. Names that occur twice are refused."""
    with reading(path), path.open(encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file, delimiter=separator(path)), [])
    repeated = sorted(name for name, times in Counter(names).items() if times > 1 and name)
    if repeated:
        raise DataError(f"{path} has several columns named {repeated}. Rename them: nobody can tell which is meant.")
    return names


def separator(path: Path) -> str:
    """What stands between the columns of a CSV file."""
    with path.open(encoding="utf-8-sig") as file:
        head = file.readline()
    try:
        return csv.Sniffer().sniff(head, delimiters=",;\t|").delimiter
    except csv.Error:
        return ","


@contextmanager
def reading(path: Path, how: str = "") -> Iterator[None]:
    """Turn what goes wrong while a file is read into one sentence."""
    try:
        yield
    except FileError:
        raise  # a sentence already
    except UnicodeDecodeError as error:
        raise FileError(_not_utf8(path, error)) from None
    except (OSError, ValueError) as error:  # pandas' ParserError is a ValueError
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise FileError(f"{path} cannot be read{how}: {first_line}.") from None


def _not_utf8(path: Path, error: UnicodeDecodeError) -> str:
    return _save_as_utf8(path, f"is not UTF-8 text (byte {error.object[error.start]:#04x}): it may be", "latin1")


def _save_as_utf8(path: Path, fact: str, encoding: str) -> str:
    how = f"Save it as UTF-8, or: iconv -f {encoding} -t utf8 {shlex.quote(path.name)} > utf8.csv"
    return f"{path} {fact} {_IN_WORDS.get(encoding, encoding)}. {how}"


def _refuse_other_than_text(path: Path) -> None:
    """Refuse a file whose first line is packed, or in an encoding with NULs: they would be invisible in the names."""
    with path.open("rb") as file:
        start = file.readline(_LONGEST_LINE)
    if start.startswith(gzip.compress(b"")[:2]):
        raise FileError(f"{path} is packed with gzip. Unpack it first, or give it the ending .gz.")
    if start.startswith(b"PK\x03\x04"):
        what = "a ZIP archive or an Excel workbook"
        raise FileError(f"{path} is {what}. Unpack it first, or save the sheet as CSV (UTF-8).")
    encoding = next((name for mark, name in _MARKS.items() if start.startswith(mark)), None) or _by_its_nulls(start)
    if encoding:
        raise FileError(_save_as_utf8(path, "is not UTF-8 text: it is", encoding))
    if b"\0" in start:
        raise FileError(f"{path} has NUL bytes in its first line: it is no text. Give a CSV, Parquet or LIBSVM file.")


def _by_its_nulls(start: bytes) -> str | None:
    """UTF-16 without a mark: one byte of every plain letter is NUL."""
    first, second = (part.count(0) > len(part) / 2 for part in (start[::2], start[1::2]))
    return None if first == second else "UTF-16BE" if first else "UTF-16LE"


def _looks_like_libsvm(path: Path) -> bool:
    """Whether the first row with features reads: label, then number:value pairs (and perhaps a query id)."""
    with path.open(encoding="utf-8") as file:
        for line in islice(file, 1000):
            row = line.split("#")[0].strip()
            if re.fullmatch(r"[-+.\deE]*", row):
                continue  # a comment, an empty row, or a row without features
            return re.fullmatch(r"\S+(\s+qid:\d+)?(\s+\d+:\S+)+", row) is not None
    return False
