"""Reads checkpoints as server/store/README.md describes them, independently of the C code."""
import json
import pathlib
import struct

HEADER_BYTES, TABLE_BYTES, CHUNK_BYTES, FOOTER_BYTES, ROW_HEAD_BYTES = 40, 336, 20, 32, 16
FP32, BF16, FP16 = 0, 1, 2


def newest(data_dir):
    """The newest checkpoint of a data directory that has a manifest."""
    dirs = [d for d in sorted((pathlib.Path(data_dir) / "checkpoints").iterdir()) if (d / "MANIFEST").exists()]
    assert dirs, f"no checkpoint in {data_dir}"
    return dirs[-1]


def floats_of(payload, storage, dim):
    """A row's payload with its weights as fp32, whatever they are stored as: bytes of weights and optimizer state."""
    if storage == FP32:
        return payload
    halves = struct.unpack_from(f"<{dim}H", payload)
    if storage == BF16:
        weights = struct.pack(f"<{dim}I", *(half << 16 for half in halves))
    else:
        weights = struct.pack(f"<{dim}f", *struct.unpack_from(f"<{dim}e", payload))
    return weights + payload[(2 * dim + 3) // 4 * 4:]


def read_part(path, tables):
    """Adds one shard's rows to tables: {name: {key: bytes of weights, in fp32, and optimizer state}}."""
    data = path.read_bytes()
    assert data[:8] == b"PSDPART\n"
    assert struct.unpack_from("<I", data, 8)[0] == 2
    n_tables = struct.unpack_from("<I", data, HEADER_BYTES - 8)[0]
    at, specs = HEADER_BYTES, []
    for _ in range(n_tables):
        record = data[at:at + TABLE_BYTES]
        assert record[:4] == b"TABL"
        name = record[4:132].split(b"\0")[0].decode()
        dim, storage = struct.unpack_from("<I", record, 136)[0], struct.unpack_from("<I", record, 260)[0]
        specs.append((name, dim, storage, struct.unpack_from("<I", record, TABLE_BYTES - 8)[0]))
        tables.setdefault(name, {})
        at += TABLE_BYTES
    while data[at:at + 4] == b"ROWS":
        table, n_rows, n_bytes = struct.unpack_from("<III", data, at + 4)
        name, dim, storage, payload_bytes = specs[table]
        row_bytes = ROW_HEAD_BYTES + payload_bytes
        assert n_bytes == n_rows * row_bytes
        at += CHUNK_BYTES
        for i in range(n_rows):
            row = data[at + i * row_bytes:at + (i + 1) * row_bytes]
            key = struct.unpack_from("<Q", row)[0]
            assert key not in tables[name], f"{name} has key {key} twice"
            tables[name][key] = floats_of(row[ROW_HEAD_BYTES:], storage, dim)
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
