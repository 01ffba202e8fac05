"""Parquet files as pyarrow writes them.

    make_parquet.py fixtures DIR        writes the files that parquet_test.cpp reads, and texts.json with what they hold
    make_parquet.py compare LOCKSTEP    writes several hundred files in a temporary folder, prepares each with LOCKSTEP and compares
                                        every document with what pyarrow reads
"""

import itertools
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = "the step rank gradient of a pipeline stage loss é 中文 😀 ß\n".split(" ")


def texts(rows, seed, nulls):
    draw = random.Random(seed)
    out = []
    for i in range(rows):
        if nulls and draw.random() < nulls:
            out.append(None)
        elif draw.random() < 0.2:
            out.append("the same again")
        else:
            out.append(" ".join(draw.choices(WORDS, k=draw.randrange(0, 40))))
    return out


FIXTURES = {
    "plain": dict(compression="NONE", use_dictionary=False, data_page_version="1.0"),
    "dictionary_snappy": dict(compression="SNAPPY", data_page_version="1.0"),
    "gzip_v2": dict(compression="GZIP", data_page_version="2.0"),
    "zstd_v2_plain": dict(compression="ZSTD", use_dictionary=False, data_page_version="2.0"),
    "delta_length": dict(compression="SNAPPY", use_dictionary=False, column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY"}),
    "delta_byte_array": dict(compression="ZSTD", use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}),
    "row_groups": dict(compression="SNAPPY", row_group_size=7),
    "small_pages": dict(compression="SNAPPY", data_page_size=64, write_batch_size=4),
}


def fixtures(folder):
    values = texts(40, 1, 0.2)
    (folder / "texts.json").write_text(json.dumps(values))
    ids = pa.array(range(len(values)))
    table = pa.table({"id": ids, "text": pa.array(values, pa.string()), "tags": pa.array([["a", "b"]] * len(values))})
    for name, options in FIXTURES.items():
        pq.write_table(table, folder / f"{name}.parquet", **options)
    filled = pa.array([v or "" for v in values], pa.large_string())
    schema = pa.schema([pa.field("text", pa.large_string(), nullable=False)])
    pq.write_table(pa.table([filled], schema=schema), folder / "required.parquet")
    nested = pa.StructArray.from_arrays([ids, pa.array(values)], ["id", "body"], mask=pa.array([v is None for v in values]))
    pq.write_table(pa.table({"id": ids, "meta": nested}), folder / "nested.parquet")
    pq.write_table(table, folder / "brotli.parquet", compression="BROTLI")
    odd = [pa.nulls(3), pa.array(["a", "b", "c"]), pa.array(["d", "e", "f"])]
    pq.write_table(pa.table(odd, names=["nothing", "twice", "twice"]), folder / "odd_columns.parquet")


def documents(folder):
    """Texts of the documents of a folder that was prepared with --tokenizer bytes --heldout 0."""
    manifest = json.loads((folder / "manifest.json").read_text())
    out = []
    for shard in manifest["train"]["shards"]:
        data = (folder / shard["file"]).read_bytes()
        width, tokens = struct.unpack_from("<IQ", data, 12)
        assert width == 2
        ids = struct.unpack_from(f"<{tokens}H", data, 64)
        text = bytearray()
        for i in ids:
            if i == 256:
                out.append(text.decode())
                text = bytearray()
            else:
                text.append(i)
    return out


def compare(lockstep):
    count = 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        choices = itertools.product(
            ["NONE", "SNAPPY", "GZIP", "ZSTD"],
            ["1.0", "2.0"],
            ["dictionary", "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"],
            [0, 0.3, 1],
            [(1, 1000), (1000, 100), (5000, 100000)],
        )
        for compression, version, encoding, nulls, (rows, group) in choices:
            values = texts(rows, count, nulls)
            if all(not v for v in values):
                values[0] = "one that is not empty"
            options = dict(compression=compression, data_page_version=version, row_group_size=group, data_page_size=4096)
            if encoding == "dictionary":
                options.update(dictionary_pagesize_limit=random.Random(count).choice([200, 1 << 20]))
            else:
                options.update(use_dictionary=False, column_encoding={"text": encoding, "id": "PLAIN"})
            table = pa.table({"id": pa.array(range(rows)), "text": pa.array(values, pa.string())})
            file, out = scratch / f"{count}.parquet", scratch / f"{count}"
            pq.write_table(table, file, **options)
            command = [lockstep, "data", "prepare", str(file), "--out", str(out), "--tokenizer", "bytes", "--heldout", "0"]
            done = subprocess.run(command, capture_output=True, timeout=60)
            assert done.returncode == 0, (compression, version, encoding, nulls, rows, group, done.stderr.decode())
            expected = [v for v in pq.read_table(file)["text"].to_pylist() if v]
            assert documents(out) == expected, (compression, version, encoding, nulls, rows, group)
            count += 1
    print(f"{count} files: every document is the one that pyarrow reads (pyarrow {pa.__version__})")


if __name__ == "__main__":
    if sys.argv[1] == "fixtures":
        fixtures(pathlib.Path(sys.argv[2]))
    else:
        compare(sys.argv[2])
