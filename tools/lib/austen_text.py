"""Takes the six novels out of Debian's package r-cran-janeaustenr and writes them as plain text, one file per novel.

Usage: austen_text.py Rdata.rdb DIR
R keeps the package's data as a series of blocks: a 4-byte big-endian length, then a zlib stream that holds one value
in R's portable (XDR) serialisation, here a vector of lines. Only that much of the format is read, every number checked.
"""

import pathlib
import re
import struct
import sys
import zlib

STRING_VECTOR = 16
CHARACTERS = 9


def blocks(data):
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        stream = zlib.decompressobj()
        value = stream.decompress(data[at + 4:])
        if len(value) != length:
            sys.exit(f"error: block at byte {at} has {len(value)} bytes, expected {length}")
        yield value
        at = len(data) - len(stream.unused_data)


def lines_of(value):
    if value[:2] != b"X\n":
        sys.exit(f"error: expected R's portable serialisation, found {value[:2]!r}")
    version, _, _ = struct.unpack_from(">3I", value, 2)
    at = 14
    if version == 3:  # the native encoding's name follows
        (length,) = struct.unpack_from(">I", value, at)
        at += 4 + length
    kind, count = struct.unpack_from(">2I", value, at)
    if kind & 0xFF != STRING_VECTOR:
        sys.exit(f"error: expected a vector of strings, found type {kind & 0xFF}")
    at += 8
    for _ in range(count):
        flags, length = struct.unpack_from(">2I", value, at)
        if flags & 0xFF != CHARACTERS:
            sys.exit(f"error: expected a string, found type {flags & 0xFF}")
        at += 8
        yield value[at:at + length].decode("utf-8")
        at += length


def paragraphs(lines):
    """Lines joined to paragraphs, which blank lines separate."""
    for block in re.split(r"\n\s*\n", "\n".join(lines)):
        text = " ".join(block.split())
        if text:
            yield text


def main():
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for value in blocks(pathlib.Path(sys.argv[1]).read_bytes()):
        text = list(paragraphs(lines_of(value)))
        name = re.sub(r"\W+", "_", text[0].lower().split(" by ")[0]).strip("_")
        path = folder / f"{name}.txt"
        path.write_text("\n\n".join(text) + "\n", encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size:,} bytes")


main()
