"""Reads checkpoints as server/checkpoint/shard_file.h and manifest.h describe them, independently of the C code."""
import json
import pathlib
import struct

HEADER_BYTES, TABLE_BYTES, CHUNK_BYTES, FOOTER_BYTES, ROW_HEAD_BYTES = 96, 336, 20, 56, 16
FP32, BF16, FP16 = 0, 1, 2


def newest(data_dir):
    """The newest checkpoint of a data directory that has a manifest and was not archived."""
    dirs = [d for d in sorted((pathlib.Path(data_dir) / "checkpoints").iterdir())
            if d.suffix != ".aside" and (d / "MANIFEST").exists()]
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


def read_head(data):
    """A file's header: (version, n_tables, base), and its tables' (name, dim, storage, payload bytes)."""
    assert data[:8] == b"PSDPART\n"
    assert struct.unpack_from("<I", data, 8)[0] in (3, 4)
    version, n_tables = struct.unpack_from("<QI", data, 24)
    first, base, base_version = struct.unpack_from("<QQQ", data, 56)
    assert (base == 0 or base_version <= version) and first >= 0
    specs = []
    for at in range(HEADER_BYTES, HEADER_BYTES + n_tables * TABLE_BYTES, TABLE_BYTES):
        record = data[at:at + TABLE_BYTES]
        if record[:4] == b"DROP":
            specs.append((None, 0, 0, 0))
            continue
        assert record[:4] == b"TABL"
        name = record[4:132].split(b"\0")[0].decode()
        dim, storage = struct.unpack_from("<I", record, 136)[0], struct.unpack_from("<I", record, 260)[0]
        specs.append((name, dim, storage, struct.unpack_from("<I", record, TABLE_BYTES - 8)[0]))
    return base, specs


def read_part(path, tables):
    """Adds one shard's rows to tables, {name: {key: bytes of weights, in fp32, and optimizer state}}: those of the file
    that it is a delta to, without the keys that went, then its own. A row may stand in a file twice: the last one counts."""
    data = path.read_bytes()
    base, specs = read_head(data)
    if base:
        read_part(path.parent.parent / f"{base:020}" / path.name, tables)
    for name, *_ in specs:
        if name is not None:
            tables.setdefault(name, {})
    at = HEADER_BYTES + len(specs) * TABLE_BYTES
    while data[at:at + 4] != b"END\n":
        tag = data[at:at + 4]
        table, n_items, n_bytes = struct.unpack_from("<III", data, at + 4)
        at += CHUNK_BYTES
        if tag == b"GONE":
            for key in struct.unpack_from(f"<{n_items}Q", data, at):
                tables[specs[table][0]].pop(key, None)
        elif tag == b"ROWS":
            name, dim, storage, payload_bytes = specs[table]
            row_bytes = ROW_HEAD_BYTES + payload_bytes
            assert n_bytes == n_items * row_bytes
            for row in (data[i:i + row_bytes] for i in range(at, at + n_bytes, row_bytes)):
                tables[name][struct.unpack_from("<Q", row)[0]] = floats_of(row[ROW_HEAD_BYTES:], storage, dim)
        else:
            assert tag == b"STAT"
        at += n_bytes
    assert at + FOOTER_BYTES == len(data)


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
