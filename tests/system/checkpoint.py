"""Reads checkpoints as server/store/README.md describes them, independently of the C code."""
import json
import pathlib
import struct

HEADER_BYTES, TABLE_BYTES, CHUNK_BYTES, FOOTER_BYTES, ROW_HEAD_BYTES = 40, 284, 20, 32, 24


def newest(data_dir):
    """The newest checkpoint of a data directory that has a manifest."""
    dirs = [d for d in sorted((pathlib.Path(data_dir) / "checkpoints").iterdir()) if (d / "MANIFEST").exists()]
    assert dirs, f"no checkpoint in {data_dir}"
    return dirs[-1]


def read_part(path, tables):
    """Adds one shard's rows to tables: {name: {key: bytes of weights and optimizer state}}."""
    data = path.read_bytes()
    assert data[:8] == b"PSDPART\n"
    n_tables = struct.unpack_from("<I", data, HEADER_BYTES - 8)[0]
    at, specs = HEADER_BYTES, []
    for _ in range(n_tables):
        record = data[at:at + TABLE_BYTES]
        assert record[:4] == b"TABL"
        name = record[4:132].split(b"\0")[0].decode()
        specs.append((name, struct.unpack_from("<I", record, TABLE_BYTES - 8)[0]))
        tables.setdefault(name, {})
        at += TABLE_BYTES
    while data[at:at + 4] == b"ROWS":
        table, n_rows, n_bytes = struct.unpack_from("<III", data, at + 4)
        name, row_floats = specs[table]
        row_bytes = ROW_HEAD_BYTES + 4 * row_floats
        assert n_bytes == n_rows * row_bytes
        at += CHUNK_BYTES
        for i in range(n_rows):
            row = data[at + i * row_bytes:at + (i + 1) * row_bytes]
            key = struct.unpack_from("<Q", row)[0]
            assert key not in tables[name], f"{name} has key {key} twice"
            tables[name][key] = row[ROW_HEAD_BYTES:]
        at += n_bytes
    assert data[at:at + 4] == b"END\n" and at + FOOTER_BYTES == len(data)


def read_tables(data_dirs):
    """All tables of the newest checkpoints of these data directories (one a node)."""
    tables = {}
    for data_dir in data_dirs:
        for part in sorted(newest(data_dir).glob("shard-*.psc")):
            read_part(part, tables)
    return tables


def manifest(data_dir):
    text = (newest(data_dir) / "MANIFEST").read_text()
    return json.loads(text[:text.rindex("}") + 1])
