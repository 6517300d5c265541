"""Writes token files (docs/formats/token-file.md): whole or not at all."""

import os
import struct
from array import array

import numpy as np

from . import UserError

MAGIC = b"ZINFTOKS"
VERSION = 1
HEADER = struct.Struct("<8sIIQQQQQQQQ32s32s48x")


class TokenWriter:
    def __init__(self, path, vocabulary, width=0, source_hash="", tokenizer_hash=""):
        self.path = path
        self.temporary = f"{path}.{os.getpid()}.tmp"
        self.vocabulary = vocabulary
        self.width = width or (4 if vocabulary > 65536 else 2)
        if self.width == 2 and vocabulary > 65536:
            raise UserError(f"writing {path}: a vocabulary of {vocabulary} does not fit 16-bit tokens, "
                            "which hold ids 0 to 65535")
        self.hashes = (source_hash.encode(), tokenizer_hash.encode())
        self.bounds = array("Q", [0])
        self.mask = bytearray()  # whole bytes only; the open bits wait in self.open_bits
        self.open_bits = np.empty(0, np.uint8)
        self.trained = 0
        self.file = open(self.temporary, "wb", buffering=1 << 20)
        self.file.write(b"\0" * HEADER.size)

    def add(self, ids, trained=None):
        """One document: its ids, and which of them are trained on (None: all)."""
        ids = np.asarray(ids, np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self.vocabulary):
            at = int(np.argmax((ids < 0) | (ids >= self.vocabulary)))
            raise UserError(f"writing {self.path}: token {self.bounds[-1] + at} has id {ids[at]}, "
                            f"outside the vocabulary of {self.vocabulary}")
        self.file.write(ids.astype("<u2" if self.width == 2 else "<u4").tobytes())
        bits = np.ones(ids.size, np.uint8) if trained is None else np.asarray(trained, np.uint8)
        self.trained += int(bits.sum())
        bits = np.concatenate([self.open_bits, bits])
        whole = bits.size // 8 * 8
        self.mask += np.packbits(bits[:whole], bitorder="little").tobytes()
        self.open_bits = bits[whole:]
        self.bounds.append(self.bounds[-1] + ids.size)

    def finish(self):
        tokens = self.bounds[-1]
        self.mask += np.packbits(self.open_bits, bitorder="little").tobytes()
        tokens_end = HEADER.size + tokens * self.width
        documents_at = (tokens_end + 7) // 8 * 8
        documents_end = documents_at + 8 * len(self.bounds)
        masked = self.trained < tokens
        size = documents_end + (len(self.mask) if masked else 0)
        self.file.write(b"\0" * (documents_at - tokens_end))
        self.file.write(np.asarray(self.bounds, "<u8").tobytes())
        if masked:
            self.file.write(self.mask)
        self.file.seek(0)
        self.file.write(HEADER.pack(MAGIC, VERSION, self.width, self.vocabulary, tokens, len(self.bounds) - 1,
                                    HEADER.size, documents_at, documents_end if masked else 0, self.trained, size,
                                    *self.hashes))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.rename(self.temporary, self.path)

    def discard(self):
        self.file.close()
        if os.path.exists(self.temporary):
            os.unlink(self.temporary)
