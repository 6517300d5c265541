"""Reads .txt, .jsonl, .json (also .gz) and .parquet files as records, one after the other.

A record is (where, value): where = "file:line" for messages; value = a text, or a list of {role, content} messages.
"""

import contextlib
import glob
import gzip
import json
import os
import zlib

from . import UserError

FORMATS = ("text", "messages", "conversations", "alpaca")
TEXT_PIECE = 64 << 20
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "model": "assistant",
         "system": "system", "function": "tool", "observation": "tool", "tool": "tool"}


def expand(patterns):
    paths = []
    for pattern in patterns:
        literal = os.path.isfile(pattern) or not glob.has_magic(pattern)  # a name may hold a bracket
        found = [pattern] if literal else sorted(glob.glob(pattern, recursive=True))
        if not found:
            raise UserError(f"no file matches {pattern}")
        paths += found
    for path in paths:
        if not os.path.isfile(path):
            raise UserError(f"{path} is not a file" if os.path.exists(path) else f"{path} does not exist")
    return paths


def kind_of(path):
    """The name by which a file's kind is known: ".jsonl" of DATA.JSONL and of data.jsonl.gz."""
    return os.path.splitext(path.lower().removesuffix(".gz"))[1]


@contextlib.contextmanager
def open_bytes(path):
    try:
        file = gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb")
    except OSError as error:
        raise UserError(f"can't open {path}: {error.strerror}") from error
    with file:
        try:
            yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{path} can't be unpacked: {error}; it is damaged or no gzip file") from error


def decode_utf8(data, path, first_line):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise UserError(f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; "
                        "convert the file (iconv -f latin1 -t utf-8)") from error


def split_point(data):
    """Where a long text may be cut without changing its tokens (of byte-level tokenizers, whose words never reach
    over such a place): before a line end that follows a letter or digit."""
    at = len(data)
    while (at := data.rfind("\n" if isinstance(data, str) else b"\n", 1, at)) > 0:
        if data[at - 1:at].isalnum():
            return at
    return len(data)


def split_text(text, size):
    """The text in parts of at most `size` characters where possible, to be encoded side by side."""
    parts = []
    begin = 0
    while len(text) - begin > size:
        part = text[begin:begin + size]
        cut = split_point(part)
        if cut == len(part):
            break
        parts.append(part[:cut])
        begin += cut
    return parts + [text[begin:]]


def text_pieces(path):
    """A text file in pieces of at most about 64 MiB, as (line, text, is it the document's last piece)."""
    with open_bytes(path) as file:
        line, rest = 1, b""
        while True:
            data = rest + file.read(TEXT_PIECE)
            last = len(data) < TEXT_PIECE
            cut = len(data) if last else split_point(data)
            piece, rest = data[:cut], data[cut:]
            text = decode_utf8(piece, path, line)
            if line == 1 and text.startswith("\ufeff"):
                text = text[1:]
            yield line, text, last
            if last:
                return
            line += piece.count(b"\n")


def parse_json(where, text):
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not JSON: {error}") from error
    except RecursionError as error:
        raise UserError(f"{where}: JSON that is nested too deeply") from error
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            code = ord(error.object[error.start])
            raise UserError(f"{where}: \\u{code:04x} is half a character (a lone surrogate); its other half is missing") from error
    return value


def json_records(path):
    if kind_of(path) == ".json":
        with open_bytes(path) as file:
            data = decode_utf8(file.read(), path, 1)
        if data.lstrip().startswith("["):
            for number, value in enumerate(parse_json(path, data)):
                yield f"{path}: record {number + 1}", value
            return
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            text = decode_utf8(line, path, number)
            if text.strip():
                yield f"{path}:{number}", parse_json(f"{path}:{number}", text)


def parquet_records(path):
    import pyarrow
    import pyarrow.parquet
    try:
        file = pyarrow.parquet.ParquetFile(path)
        number = 0
        for batch in file.iter_batches(batch_size=1024):
            for value in batch.to_pylist():
                number += 1
                yield f"{path}: row {number}", value
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: {error}") from error


def guess_format(where, record):
    for key, name in (("messages", "messages"), ("conversations", "conversations"), ("instruction", "alpaca"),
                      ("text", "text")):
        if key in record:
            return name
    raise UserError(f"{where}: expected a field text, messages, conversations or instruction, "
                    f"found {', '.join(sorted(record)) or 'none'}")


def field(where, record, name, kind=str):
    if name not in record:
        raise UserError(f"{where}: expected a field {name!r}, found {', '.join(sorted(record)) or 'none'}")
    if not isinstance(record[name], kind):
        raise UserError(f"{where}: field {name!r} is {type(record[name]).__name__}, expected {kind.__name__}")
    return record[name]


def plain_message(where, message, role_key, content_key):
    if not isinstance(message, dict):
        raise UserError(f"{where}: a message is {type(message).__name__}, expected an object")
    role = field(where, message, role_key)
    if role not in ROLES:
        raise UserError(f"{where}: unknown role {role!r}; known are {', '.join(sorted(ROLES))}")
    content = message.get(content_key)
    if isinstance(content, list):  # the form with several parts
        parts = [part.get("text", "") for part in content if isinstance(part, dict)]
        content = "".join(parts) if all(isinstance(part, str) for part in parts) else None
    if content is None and message.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise UserError(f"{where}: a message of {role!r} has no text in {content_key!r}")
    others = {key: value for key, value in message.items() if key not in (role_key, content_key)}
    return {"role": ROLES[role], "content": content, **others}


def conversation(where, record, form):
    """Any of the chat formats as a list of {role, content}."""
    messages = []
    if form != "messages" and record.get("system"):
        messages.append({"role": "system", "content": field(where, record, "system")})
    if form == "alpaca":
        for turn in field(where, record, "history", list) if record.get("history") else []:
            if not (isinstance(turn, list) and len(turn) == 2 and all(isinstance(part, str) for part in turn)):
                raise UserError(f"{where}: history must be a list of [instruction, response] pairs")
            messages += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
        extra = field(where, {"input": "", **record}, "input")
        prompt = field(where, record, "instruction") + (f"\n\n{extra}" if extra else "")
        return messages + [{"role": "user", "content": prompt},
                           {"role": "assistant", "content": field(where, record, "output")}]
    turns = field(where, record, form, list)
    if not turns:
        raise UserError(f"{where}: the conversation is empty")
    for turn in turns:
        sharegpt = isinstance(turn, dict) and "from" in turn
        messages.append(plain_message(where, turn, *(("from", "value") if sharegpt else ("role", "content"))))
    return messages


def records(path, form):
    """(where, text or messages) of a .jsonl, .json or .parquet file."""
    for where, record in (parquet_records if kind_of(path) == ".parquet" else json_records)(path):
        if not isinstance(record, dict):
            raise UserError(f"{where}: expected an object, found {type(record).__name__}")
        record = {key: entry for key, entry in record.items() if entry is not None}
        if form == "auto":
            form = guess_format(where, record)
        if form == "text":
            yield where, field(where, record, "text")
        else:
            yield where, conversation(where, record, form)


def is_plain_text(path, form):
    if kind_of(path) in (".jsonl", ".json", ".parquet", ".ndjson"):
        return False
    if form in ("auto", "text"):
        return True
    raise UserError(f"{path}: format {form} needs a .jsonl, .json or .parquet file")
