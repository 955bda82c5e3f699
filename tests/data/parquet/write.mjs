// Writes the Parquet files of this folder, and rows.tsv.gz with the same rows as text. Each writer has its own
// encodings: DuckDB, Rust's arrow (parquet-wasm) and hyparquet-writer. README.md says which versions wrote the files.
//
//     npm install @duckdb/node-api parquet-wasm hyparquet-writer && node write.mjs
//
// The rows are made up here, by a generator of random numbers with a fixed seed.
import { writeFileSync, readFileSync, unlinkSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { createRequire } from "node:module";
import { DuckDBInstance } from "@duckdb/node-api";
import { parquetWriteBuffer } from "hyparquet-writer";

const wasm = createRequire(import.meta.url)("parquet-wasm/node");
const N = 160;

let state = 12345;
function random(n) {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
}

const cities = ["Oslo", "Kyiv", "São Paulo", "東京", "x", "New York", "Ulaanbaatar-on-the-Tuul", ""];
const rows = [];
for (let i = 0; i < N; i++)
    rows.push({
        label: random(4) === 0 ? 1 : 0,
        count: random(6) === 0 ? "" : random(3) ? random(200) : random(100000000) - 1000,
        total: `${random(1000)}${random(1000000)}`,
        rate: random(9) === 0 ? "" : random(4096) / 16 - 8,
        price: random(1000000) / 1000,
        flag: random(2),
        city: random(10) === 0 ? "" : cities[random(cities.length)],
        token: `${i % 3 ? "user" : "a longer token, of which there is one: "}-${random(1 << 30).toString(36)}`,
        item: `${random(3) ? "" : "-"}${1 + random(9)}${random(1000000)}`,
        big: `184467440737095${10000 + random(6)}`,
        small: random(250),
        weight: [1, 0.5, 1e16, 1e-5, 123.25, 3][random(6)],
        spread: random(5) === 0 ? "" : random(random(2) ? 10 : 100000) - 2,
        history: random(5) === 0 ? "" : Array.from({ length: 1 + random(6) }, () => random(50) - 5).join("|"),
        tags: random(4) === 0 ? "" : Array.from({ length: 1 + random(3) }, () => cities[random(7)]).join("|"),
    });

// A real number as DuckDB and Python write it.
const real = (x) => (Number.isInteger(x) && x < 1e16 ? `${x}.0` : x === 1e16 ? "1e+16" : x === 1e-5 ? "1e-05" : `${x}`);
const text = (name, x) => (x !== "" && ["rate", "price", "weight"].includes(name) ? real(x) : `${x}`);
const names = Object.keys(rows[0]);
const tsv = [names.join("\t"), ...rows.map((r) => names.map((n) => text(n, r[n])).join("\t"))].join("\n") + "\n";
writeFileSync("rows.tsv.gz", gzipSync(tsv, { level: 9 }));

// ---- DuckDB ----

writeFileSync("rows.tsv", tsv);
const duckdb = await (await DuckDBInstance.create(":memory:")).connect();
await duckdb.run(`create table rows as select
    label::int as label, nullif(count, '')::int as count, total::bigint as total, nullif(rate, '')::float as rate,
    price::double as price, flag = '1' as flag, case when city = '' and n % 2 = 0 then null else city end as city, token,
    item::bigint as item, big::ubigint as big, small::utinyint as small, weight::double as weight,
    nullif(spread, '')::int as spread,
    case when history = '' then case n % 3 when 0 then null when 1 then [] else [null] end
         when n % 7 = 0 then list_append(string_split(history, '|')::bigint[], null)
         else string_split(history, '|')::bigint[] end as history,
    case when tags = '' then case n % 3 when 0 then null when 1 then [] else [''] end
         else string_split(tags, '|') end as tags,
    date '2026-01-01' + n::int as day, 1.25::decimal(9, 2) as amount, {'a': n} as pair, [[n]] as nested,
    map {'k': n} as pairs, timestamp '2026-01-01 00:00:00' as at, uuid() is null as never
    from (select *, row_number() over () as n
          from read_csv('rows.tsv', delim = '\t', header = true, all_varchar = true, nullstr = '---', quote = '',
                        parallel = false))`);
unlinkSync("rows.tsv");
const plain = names.map((n) => `"${n}"`).join(", ");
const duck = (file, options, columns) =>
    duckdb.run(`copy (select ${columns ?? plain} from rows) to '${file}' (format parquet, ${options})`);
await duck("duckdb-snappy.parquet", "codec 'snappy'", "*");
await duck("duckdb-zstd.parquet", "codec 'zstd'");
await duck("duckdb-gzip.parquet", "codec 'gzip'");
await duck("duckdb-v2.parquet", "codec 'snappy', parquet_version 'V2', dictionary_size_limit 1");
await duck("duckdb-lz4.parquet", "codec 'lz4_raw'", "label, city");

// ---- arrow ----

await duck("plain.parquet", "codec 'uncompressed'");
const table = () => wasm.readParquet(new Uint8Array(readFileSync("plain.parquet")));
const rust = (file, set) =>
    writeFileSync(file, wasm.writeParquet(table(), set(new wasm.WriterPropertiesBuilder()).build()));
const { Compression: C, Encoding: E, WriterVersion: V, EnabledStatistics: S } = wasm;
// Dictionaries that become too large in the middle of a column, small pages, several row groups.
rust("arrow-v1.parquet", (p) =>
    p.setWriterVersion(V.V1).setCompression(C.SNAPPY).setMaxRowGroupSize(70).setDataPageSizeLimit(128)
     .setWriteBatchSize(8).setDictionaryPageSizeLimit(300).setStatisticsEnabled(S.None));
rust("arrow-v2.parquet", (p) =>
    p.setWriterVersion(V.V2).setCompression(C.ZSTD).setMaxRowGroupSize(100).setDataPageSizeLimit(128)
     .setWriteBatchSize(8).setStatisticsEnabled(S.None));
rust("arrow-plain.parquet", (p) =>
    p.setWriterVersion(V.V1).setCompression(C.UNCOMPRESSED).setDictionaryEnabled(false).setEncoding(E.PLAIN)
     .setStatisticsEnabled(S.None).setMaxRowGroupSize(64).setDataPageSizeLimit(200).setWriteBatchSize(8));
rust("arrow-delta.parquet", (p) => {
    p = p.setWriterVersion(V.V2).setCompression(C.GZIP).setDictionaryEnabled(false).setStatisticsEnabled(S.None)
         .setDataPageSizeLimit(300).setWriteBatchSize(8);
    for (const n of ["label", "count", "total", "item", "big", "small", "spread"])
        p = p.setColumnEncoding(n, E.DELTA_BINARY_PACKED);
    for (const n of ["rate", "price", "weight"]) p = p.setColumnEncoding(n, E.BYTE_STREAM_SPLIT);
    p = p.setColumnEncoding("city", E.DELTA_LENGTH_BYTE_ARRAY);
    return p.setColumnEncoding("token", E.DELTA_BYTE_ARRAY);
});
unlinkSync("plain.parquet");

// ---- hyparquet ----

const column = (name, type, of) => ({ name, type, data: rows.map((r) => (r[name] === "" ? null : of(r[name]))) });
writeFileSync("hyparquet.parquet", Buffer.from(parquetWriteBuffer({
    codec: "SNAPPY", rowGroupSize: 60,
    columnData: [
        column("label", "INT32", Number), column("count", "INT32", Number), column("total", "INT64", BigInt),
        column("rate", "FLOAT", Number), column("price", "DOUBLE", Number), column("flag", "BOOLEAN", Boolean),
        column("city", "STRING", String), column("token", "STRING", String), column("item", "INT64", BigInt),
        column("small", "INT32", Number), column("weight", "DOUBLE", Number), column("spread", "INT32", Number),
    ],
})));
writeFileSync("hyparquet-half.parquet", Buffer.from(parquetWriteBuffer({
    columnData: [
        column("label", "INT32", Number),
        { name: "rate", type: "FLOAT16", data: rows.map((r) => (r.rate === "" ? null : Math.round(r.rate))) },
    ],
})));
