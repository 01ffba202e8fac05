#!/usr/bin/env python3
"""Writes the chapters of Jane Austen's six novels as text files, a folder a novel.

The novels are in the public domain. Debian and Ubuntu package them as r-cran-janeaustenr, in the lazy-load database of GNU R
(`Rdata.rdx`, an index; `Rdata.rdb`, compressed vectors of lines), which this script reads without R.

Usage: novels.py FOLDER_WITH_RDATA OUT
"""
import gzip
import pathlib
import re
import struct
import sys
import zlib


class Unserializer:
    """R's serialization format, versions 2 and 3, big-endian ("X\\n"): the kinds of values that a table of texts has."""

    def __init__(self, data):
        assert data[:2] == b"X\n", "not R's binary serialization"
        self.data, self.at, self.references = data, 2, []
        version = self.integer()
        self.at += 8  # versions of R that wrote it and that can read it
        if version == 3:
            encoding_bytes = self.integer()
            self.at += encoding_bytes

    def integer(self):
        self.at += 4
        return struct.unpack_from(">i", self.data, self.at - 4)[0]

    def value(self):
        flags = self.integer()
        kind, has_attributes, has_tag = flags & 255, flags & 512, flags & 1024
        if kind == 254 or kind == 242:  # NULL, the empty environment
            return None
        if kind == 255:  # a symbol seen before
            return self.references[(flags >> 8) - 1]
        if kind == 1:  # a symbol
            self.references.append(self.value())
            return self.references[-1]
        if kind == 2:  # a pair list, as a dictionary of its tags
            out = {}
            while kind == 2:
                if has_attributes:
                    self.value()
                tag = self.value() if has_tag else len(out)
                out[tag] = self.value()
                flags = self.integer()
                kind, has_attributes, has_tag = flags & 255, flags & 512, flags & 1024
            return out
        if kind == 9:  # one string
            length = self.integer()
            if length < 0:
                return ""
            self.at += length
            return self.data[self.at - length:self.at].decode("latin-1" if flags & (4 << 12) else "utf-8")
        if kind in (10, 13):  # logical values, integers
            out = [self.integer() for _ in range(self.integer())]
        elif kind in (16, 19):  # strings, a list
            out = [self.value() for _ in range(self.integer())]
        else:
            raise ValueError(f"a value of R's kind {kind} is not read here")
        if has_attributes:
            names = self.value().get("names")
            out = dict(zip(names, out)) if names else out
        return out


def chapters(lines):
    """The novel's text by chapter, paragraphs as single lines, without what stands before the first heading."""
    heading = re.compile(r"^\s*chapter\s+([ivxlc]+|\d+)\.?\s*$|^\s*letter\s+\d+\s*$", re.IGNORECASE)
    out = []
    for line in lines:
        if heading.match(line):
            out.append([])
        elif out:
            out[-1].append(line.strip())
    texts = ("\n".join(part) for part in out)
    return [re.sub(r"(?<!\n)\n(?!\n)", " ", t).strip() + "\n" for t in texts if t.strip()]


def main(folder, out):
    index = Unserializer(gzip.decompress((folder / "Rdata.rdx").read_bytes())).value()["variables"]
    database = (folder / "Rdata.rdb").read_bytes()
    for name, (start, length) in index.items():
        to = out / name
        to.mkdir(parents=True, exist_ok=True)
        lines = Unserializer(zlib.decompress(database[start + 4:start + length])).value()  # 4 bytes: the size
        for i, text in enumerate(chapters(lines), 1):
            (to / f"{i:02}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
