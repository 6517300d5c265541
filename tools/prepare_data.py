#!/usr/bin/env python3
"""Turns texts and conversations into a token file that zinf trains on, and shows tokens as text.

  prepare_data.py build  --model DIR --out FILE [--format F] [--train-on-prompt] SOURCE...
  prepare_data.py encode --model DIR          text on stdin  -> ids as a JSON list
  prepare_data.py decode --model DIR          ids as a JSON list on stdin -> text
  prepare_data.py show   --model DIR          {"ids": [...], "targets": [...]} on stdin -> the sample, part by part

`zinf train` starts it when its token cache does not hold the data yet. Talk and errors go to stderr, results to stdout.
Exit codes: 0 done, 1 failed, 2 wrong input.
"""

import argparse
import json
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from data_prep import UserError, sources  # noqa: E402
from data_prep.chat import ChatTemplate, trained_tokens  # noqa: E402
from data_prep.token_file import TokenWriter  # noqa: E402
from data_prep.tokenizer import FolderTokenizer  # noqa: E402

BATCH_RECORDS = 1024
BATCH_CHARACTERS = 4 << 20
TEXT_PART = 1 << 18  # characters of a text file that are encoded as one; several go side by side


class Progress:
    """One line on stderr every two seconds."""

    def __init__(self, paths):
        self.sizes = [os.path.getsize(path) for path in paths]
        self.begin = self.last = time.monotonic()
        self.done_files = 0

    def show(self, writer, waiting=0, force=False):
        """waiting: tokens that the writer has not yet. Who waits for this tool takes it for hung when it says nothing."""
        now = time.monotonic()
        if now - self.last < 2 and not force:
            return
        self.last = now
        tokens, documents = writer.bounds[-1] + waiting, len(writer.bounds) - 1
        print(f"preparing data: {documents:,} documents, {tokens:,} tokens, {tokens / max(now - self.begin, 1e-3):,.0f} "
              f"tokens/s, file {min(self.done_files + 1, len(self.sizes))} of {len(self.sizes)}", file=sys.stderr, flush=True)


class Builder:
    def __init__(self, tokenizer, writer, train_on_prompt, append_eos):
        self.tokenizer = tokenizer
        self.writer = writer
        self.train_on_prompt = train_on_prompt
        self.end = self._end_ids(append_eos)
        self.template = None
        self.texts, self.chats, self.characters = [], [], 0
        self.empty = self.untrained = 0

    def _end_ids(self, append_eos):
        if not append_eos:
            return []
        eos = self.tokenizer.id_of("eos_token")
        if eos is None:
            raise UserError(f"the tokenizer in {self.tokenizer.folder} names no eos_token to append")
        return [eos]

    def add_text_file(self, path, progress):
        """A .txt file is one document."""
        ids, seen = [], False
        for _, text, last in sources.text_pieces(path):
            parts = sources.split_text(text, TEXT_PART) if self.tokenizer.byte_level else [text]
            for encoding in self.tokenizer.library.encode_batch_fast(parts, add_special_tokens=False):
                ids += encoding.ids
            seen = seen or bool(text.strip())
            progress.show(self.writer, waiting=len(ids))
        if not seen:
            raise UserError(f"{path} is empty: expected text")
        self.flush()
        ids = self.tokenizer.prefix + ids + self.tokenizer.suffix
        self.writer.add(ids + [token for token in self.end if ids[-1:] != [token]])

    def add(self, where, value):
        if isinstance(value, str):
            if not value.strip():
                self.empty += 1
                return
            if self.chats:
                self.flush()
            self.texts.append(value)
            self.characters += len(value)
        else:
            self.add_chat(where, value)
        if len(self.texts) + len(self.chats) >= BATCH_RECORDS or self.characters >= BATCH_CHARACTERS:
            self.flush()

    def add_chat(self, where, messages):
        if self.texts:
            self.flush()
        try:
            self.template = self.template or ChatTemplate(self.tokenizer)
            if self.train_on_prompt:
                rendered = self.template.render(messages), None
            else:
                rendered = self.template.render_with_spans(messages)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        self.chats.append(rendered)
        self.characters += len(rendered[0])

    def flush(self):
        for ids in self.tokenizer.encode_texts(self.texts):
            self.writer.add(ids + [token for token in self.end if ids[-1:] != [token]])
        encodings = self.tokenizer.encode_exactly([text for text, _ in self.chats])
        for encoding, (_, spans) in zip(encodings, self.chats):
            trained = None if spans is None else trained_tokens(encoding, spans)
            self.untrained += trained is not None and not any(trained)
            self.writer.add(encoding.ids, trained)
        self.texts, self.chats, self.characters = [], [], 0


def build(options):
    paths = sources.expand(options.sources)
    tokenizer = FolderTokenizer(options.model)
    writer = TokenWriter(options.out, tokenizer.vocabulary, options.token_width // 8, options.source_hash,
                         options.tokenizer_hash)
    try:
        builder = Builder(tokenizer, writer, options.train_on_prompt, options.append_eos)
        progress = Progress(paths)
        for path in paths:
            if sources.is_plain_text(path, options.format):
                builder.add_text_file(path, progress)
            else:
                before = len(writer.bounds), builder.empty
                for where, value in sources.records(path, options.format):
                    builder.add(where, value)
                    progress.show(writer)
                builder.flush()
                if (len(writer.bounds), builder.empty) == before:
                    raise UserError(f"{path} is empty: expected at least one record")
            progress.done_files += 1
            progress.show(writer)
        if writer.bounds[-1] == 0:
            raise UserError(f"{paths[0]}{' and the others' if len(paths) > 1 else ''}: every document is empty")
        writer.finish()
    except BaseException:
        writer.discard()
        raise
    progress.show(writer, force=True)
    if builder.empty:
        print(f"preparing data: {builder.empty} empty documents left out", file=sys.stderr)
    if builder.untrained:
        print(f"preparing data: {builder.untrained} conversations have no assistant turn to learn from", file=sys.stderr)


def encode(options):
    text = sources.decode_utf8(sys.stdin.buffer.read(), "stdin", 1)
    print(json.dumps(FolderTokenizer(options.model).encode_texts([text])[0]))


def decode(options):
    sys.stdout.write(FolderTokenizer(options.model).decode(json.load(sys.stdin)))


def show(options):
    """Each run of tokens with the same treatment on a line: predicted ones after "learn", others after "read"."""
    sample = json.load(sys.stdin)
    tokenizer = FolderTokenizer(options.model)
    ids, targets = sample["ids"], sample["targets"]
    learnt = [False] + [target >= 0 for target in targets]  # position i's target is token i + 1
    ids = ids + [targets[-1]] if targets and targets[-1] >= 0 else ids
    begin = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or learnt[end] != learnt[begin]:
            text = json.dumps(tokenizer.decode(ids[begin:end]), ensure_ascii=False)
            print(f"{'learn' if learnt[begin] else 'read '} {end - begin:5d} tokens  {text}")
            begin = end


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for function in (build, encode, decode, show):
        command = commands.add_parser(function.__name__)
        command.set_defaults(function=function)
        command.add_argument("--model", required=True, help="Hugging Face folder with the tokenizer")
        if function is build:
            command.add_argument("--out", required=True, help="token file to write")
            command.add_argument("--format", default="auto", choices=("auto", *sources.FORMATS))
            command.add_argument("--train-on-prompt", action="store_true", help="learn all turns, not the assistant's only")
            command.add_argument("--append-eos", action="store_true", help="end every text with the tokenizer's eos_token")
            command.add_argument("--token-width", type=int, default=0, choices=(0, 16, 32), help="bits per token; 0: as needed")
            command.add_argument("--source-hash", default="")
            command.add_argument("--tokenizer-hash", default="")
            command.add_argument("sources", nargs="+", help="files or patterns: .txt .jsonl .json .parquet, also .gz")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        options.function(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
