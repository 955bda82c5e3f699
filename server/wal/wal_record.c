#include "server/wal/wal_record.h"

#include <assert.h>
#include <string.h>

#include "common/crc32c.h"

#define SECTION_BYTES 28u
#define N_BYTES_AT 4u
#define COMBINE_BYTES_MIN ((size_t)16 << 10) /* reading less again is cheaper */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the log is little-endian");

const char *wal_record_name(enum shard_event_type type)
{
    switch (type) {
#define X(event, number, text) \
    case event:                \
        return text;
        WAL_RECORD_LIST(X)
#undef X
    case SHARD_EVENT_TYPE_END:
        break;
    }
    return "unknown";
}

/* As it stands in a file; 0 for what is none. */
static uint32_t number_of(enum shard_event_type type)
{
    switch (type) {
#define X(event, number, text) \
    case event:                \
        return number;
        WAL_RECORD_LIST(X)
#undef X
    case SHARD_EVENT_TYPE_END:
        break;
    }
    return 0;
}

static enum shard_event_type type_of(uint32_t in_file)
{
    switch (in_file) {
#define X(event, number, text) \
    case number:               \
        return event;
        WAL_RECORD_LIST(X)
#undef X
    default:
        return SHARD_EVENT_TYPE_END;
    }
}

bool wal_record_knows(uint32_t type)
{
    return type_of(type) != SHARD_EVENT_TYPE_END;
}

/* --- the fields of a payload in their order: one list gives its size, writes it and reads it --- */

struct field_io {
    enum { FIELD_IO_SIZES, FIELD_IO_WRITES, FIELD_IO_READS } mode;
    uint8_t *dst;       /* FIELD_IO_WRITES */
    const uint8_t *src; /* FIELD_IO_READS */
    size_t at, end;     /* end: of what may be read */
    bool failed;        /* read beyond the end, or a field that cannot be */
};

static void raw(struct field_io *p, void *field, size_t n_bytes)
{
    if (p->mode == FIELD_IO_READS && (p->failed || n_bytes > p->end - p->at)) {
        p->failed = true;
        memset(field, 0, n_bytes);
        return;
    }
    if (p->mode == FIELD_IO_READS)
        memcpy(field, p->src + p->at, n_bytes);
    else if (p->mode == FIELD_IO_WRITES)
        memcpy(p->dst + p->at, field, n_bytes);
    p->at += n_bytes;
}

static void u32(struct field_io *p, uint32_t *field)
{
    raw(p, field, sizeof *field);
}

static void u64(struct field_io *p, uint64_t *field)
{
    raw(p, field, sizeof *field);
}

/* An enum as a u32 below `end`. */
#define ENUM_FIELD(io, field, end)            \
    do {                                      \
        uint32_t number_ = (uint32_t)(field); \
        u32(io, &number_);                    \
        if (number_ >= (uint32_t)(end))       \
            (io)->failed = true;              \
        else                                  \
            (field) = number_;                \
    } while (0)

/* Bytes that stay where they are. */
static void borrowed(struct field_io *p, const void **field, size_t n_bytes)
{
    if (p->mode == FIELD_IO_READS && (p->failed || n_bytes > p->end - p->at)) {
        p->failed = true;
        return;
    }
    if (p->mode == FIELD_IO_READS)
        *field = p->src + p->at;
    else if (p->mode == FIELD_IO_WRITES && n_bytes)
        memcpy(p->dst + p->at, *field, n_bytes);
    p->at += n_bytes;
}

/* Its length with the NUL, itself, the NUL, and zeros up to a multiple of 4. What is written is what
 * max_bytes with the NUL hold of it: whoever remembers it has no more room. */
static void text(struct field_io *p, const char **field, size_t max_bytes)
{
    const char *chars = p->mode != FIELD_IO_READS && *field ? *field : "";
    uint32_t n_bytes = (uint32_t)strnlen(chars, max_bytes - 1) + 1;
    uint8_t zeros[4] = { 0 };

    u32(p, &n_bytes);
    if (n_bytes < 1 || n_bytes > max_bytes) {
        p->failed = true;
        n_bytes = 1;
    }
    borrowed(p, (const void **)&chars, n_bytes - 1);
    raw(p, zeros, 1 + (4 - n_bytes % 4) % 4);
    if (p->mode != FIELD_IO_READS)
        return;
    if (!p->failed && (zeros[0] || strnlen(chars, n_bytes) != n_bytes - 1))
        p->failed = true;
    *field = p->failed ? "" : chars;
}

static void worker(struct field_io *p, struct shard_event_worker *w)
{
    text(p, &w->job, TABLE_SPEC_NAME_MAX);
    u32(p, &w->rank);
    u64(p, &w->incarnation);
}

static void fields_section(struct field_io *p, struct section *section)
{
    struct section s = *section;
    uint32_t key_bytes = (uint32_t)s.key_bytes, value_bytes = (uint32_t)s.value_bytes;

    u32(p, &s.table_id);
    ENUM_FIELD(p, s.op, SECTION_OP_END);
    ENUM_FIELD(p, s.codec, CODEC_ID_END);
    u32(p, &s.k);
    u32(p, &s.n_keys);
    u32(p, &key_bytes);
    u32(p, &value_bytes);
    s.key_bytes = key_bytes;
    s.value_bytes = value_bytes;
    if (!section_op_has_steps(s.op))
        s.steps = 0;
    else
        u64(p, &s.steps);
    /* A push asks for nothing. */
    s.state = s.present = false;
    s.scan_bytes = 0;
    s.cursor = 0;
    if (p->mode == FIELD_IO_READS)
        *section = s;
}

/* The heads of all sections, then their bytes: keys, values, keys, values ... */
static void fields_sections(struct field_io *p, struct push *push)
{
    u32(p, &push->n_sections);
    if (push->n_sections > SECTIONS_MAX) {
        p->failed = true;
        return;
    }
    for (uint32_t i = 0; i < push->n_sections; i++)
        fields_section(p, &push->sections[i]);
    for (uint32_t i = 0; i < push->n_sections && !p->failed; i++) {
        borrowed(p, (const void **)&push->sections[i].keys, push->sections[i].key_bytes);
        borrowed(p, (const void **)&push->sections[i].values, push->sections[i].value_bytes);
    }
}

static void fields_push(struct field_io *p, struct shard_event *e, struct push *push)
{
    uint32_t status = (uint32_t)e->push.status, none = 0;
    /* What is read into holds nothing yet. */
    uint32_t tick = p->mode == FIELD_IO_READS ? 0 : push->tick;

    worker(p, &e->push.worker);
    u32(p, &status);
    u64(p, &push->seq);
    u64(p, &push->clock);
    u32(p, &push->n_samples);
    u32(p, &tick);
    if (tick > 1)
        p->failed = true;
    if (p->mode == FIELD_IO_READS)
        push->tick = tick;
    e->push.status = (int)status;
    if (e->push.status)
        u32(p, &none);
    else
        fields_sections(p, push);
    if (none)
        p->failed = true; /* what was refused has no sections here */
    e->push.push = push;
}

/* What is wrong with a table's record, or NULL. */
static const char *fields_table(struct field_io *p, struct shard_event *e,
                                struct shard_file_table *table, struct err *reason)
{
    uint8_t bytes[SHARD_FILE_TABLE_BYTES];
    uint32_t format = SHARD_FILE_TABLE_FORMAT;

    if (p->mode == FIELD_IO_WRITES)
        shard_file_encode_table(bytes,
                                &(struct shard_file_table){
                                    .spec = *e->table.spec,
                                    .payload_bytes = shard_file_payload_bytes(e->table.spec) });
    u32(p, &e->table.id);
    u32(p, &format);
    raw(p, bytes, sizeof bytes);
    if (p->mode != FIELD_IO_READS || p->failed)
        return NULL;
    if (format != SHARD_FILE_TABLE_FORMAT)
        return "a table's specification of an unknown format";
    e->table.spec = &table->spec;
    return shard_file_decode_table(bytes, SHARD_FILE_TABLE_FORMAT, table, reason);
}

static void fields_join(struct field_io *p, struct shard_event *e, struct membership_join *join)
{
    text(p, &join->job, TABLE_SPEC_NAME_MAX);
    text(p, &join->name, sizeof((struct worker *)0)->name);
    u32(p, &join->rank);
    u32(p, &join->n_workers);
    u64(p, &join->incarnation);
    ENUM_FIELD(p, join->mode, TABLE_SPEC_MODE_END);
    u32(p, &join->bound);
    u64(p, &join->clock);
    u64(p, &join->last_acked);
    u64(p, &e->join.now_ms);
    /* Not in records of jobs without, which older programs read. */
    if (p->mode == FIELD_IO_READS ? p->at < p->end : join->n_backups > 0) {
        u32(p, &join->n_backups);
        p->failed = p->failed || !join->n_backups;
    }
    e->join.join = join;
}

static void fields_gone(struct field_io *p, struct shard_event *e)
{
    enum worker_state state = (enum worker_state)e->gone.state;

    worker(p, &e->gone.worker);
    ENUM_FIELD(p, state, WORKER_LOST + 1);
    e->gone.state = (int)state;
}

static void fields_rows(struct field_io *p, struct shard_event *e)
{
    uint32_t zero = 0;

    u32(p, &e->rows.table_id);
    ENUM_FIELD(p, e->rows.op, SHARD_ROWS_OP_END);
    u32(p, &e->rows.n_keys);
    u32(p, &zero);
    borrowed(p, (const void **)&e->rows.keys, (size_t)e->rows.n_keys * sizeof *e->rows.keys);
    if (e->rows.op == SHARD_ROWS_TOUCHES)
        borrowed(p, (const void **)&e->rows.touches, e->rows.n_keys);
}

static void fields_learned(struct field_io *p, struct shard_event *e,
                           struct learning_report *report)
{
    uint32_t has_one_class = p->mode == FIELD_IO_READS ? 0 : report->has_one_class;

    worker(p, &e->learned.worker);
    u64(p, &e->learned.unix_ms);
    u64(p, &report->samples);
    u32(p, &report->steps);
    raw(p, &report->loss, sizeof report->loss);
    raw(p, &report->samples_per_s, sizeof report->samples_per_s);
    raw(p, report->busy, sizeof report->busy);
    u32(p, &report->n_validations);
    raw(p, &report->auc, sizeof report->auc);
    raw(p, &report->logloss, sizeof report->logloss);
    u32(p, &has_one_class);
    if (has_one_class > 1)
        p->failed = true;
    report->has_one_class = has_one_class != 0;
    if (p->mode == FIELD_IO_READS) {
        report->kept_epoch = 0;
        report->kept_step = 0;
    }
    e->learned.report = report;
}

/* What an event points to: written from there, or read into it. */
struct decode_targets {
    struct push *push;
    struct shard_file_table *table;
    struct membership_join *join;
    struct learning_report *learned;
};

static const char *fields_event(struct field_io *p, struct shard_event *e,
                                const struct decode_targets *at, struct err *reason)
{
    switch (e->type) {
    case SHARD_EVENT_PUSH:
        fields_push(p, e, at->push);
        break;
    case SHARD_EVENT_TABLE:
    case SHARD_EVENT_SPEC:
        return fields_table(p, e, at->table, reason);
    case SHARD_EVENT_JOIN:
        fields_join(p, e, at->join);
        break;
    case SHARD_EVENT_GONE:
        fields_gone(p, e);
        break;
    case SHARD_EVENT_ADVANCE:
        worker(p, &e->advance.worker);
        u64(p, &e->advance.clock);
        break;
    case SHARD_EVENT_COMBINE:
        u64(p, &e->combine.run);
        u64(p, &e->combine.clock);
        break;
    case SHARD_EVENT_ROWS:
        fields_rows(p, e);
        break;
    case SHARD_EVENT_DROP:
        u32(p, &e->drop.id);
        break;
    case SHARD_EVENT_LEARNED:
        fields_learned(p, e, at->learned);
        break;
    case SHARD_EVENT_TYPE_END:
        break;
    }
    return NULL;
}

static void fields_header(struct field_io *p, struct wal_record *r, uint32_t *n_bytes)
{
    uint32_t type = number_of(r->event.type), zero = 0;

    u32(p, n_bytes);
    u64(p, &r->number);
    u64(p, &r->event.version);
    u64(p, &r->unix_ms);
    u32(p, &type);
    u32(p, &zero);
    r->event.type = type_of(type);
}

/* --- what is exported --- */

static size_t padded(size_t n_bytes)
{
    return (n_bytes + 7) & ~(size_t)7;
}

/* Sizes or writes a record; changes only copies. */
static void write_fields(struct field_io *p, const struct wal_record *record)
{
    struct shard_event event = record->event;
    struct membership_join join = { 0 };
    struct learning_report learned = { 0 };
    struct decode_targets at = { .join = &join, .learned = &learned };

    if (event.type == SHARD_EVENT_PUSH)
        at.push = (struct push *)(uintptr_t)event.push.push;
    if (event.type == SHARD_EVENT_JOIN)
        join = *event.join.join;
    if (event.type == SHARD_EVENT_LEARNED)
        learned = *event.learned.report;
    (void)fields_event(p, &event, &at, NULL);
    assert(!p->failed);
}

size_t wal_record_bytes(const struct wal_record *record)
{
    struct field_io p = { .mode = FIELD_IO_SIZES, .at = WAL_RECORD_HEADER_BYTES };

    write_fields(&p, record);
    return padded(p.at);
}

void wal_record_encode(uint8_t *dst, const struct wal_record *record)
{
    struct wal_record copy = *record;
    struct field_io p = { .mode = FIELD_IO_WRITES, .dst = dst, .at = WAL_RECORD_HEADER_BYTES };
    uint32_t n_bytes;

    write_fields(&p, record);
    n_bytes = (uint32_t)(p.at - WAL_RECORD_HEADER_BYTES);
    memset(dst + p.at, 0, padded(p.at) - p.at);
    p.at = N_BYTES_AT;
    fields_header(&p, &copy, &n_bytes);
}

static uint32_t load_u32(const uint8_t *at)
{
    uint32_t value;

    memcpy(&value, at, sizeof value);
    return value;
}

size_t wal_record_seal(uint8_t *bytes, uint32_t *crc)
{
    size_t end = WAL_RECORD_HEADER_BYTES + load_u32(bytes + N_BYTES_AT);
    uint32_t own = crc32c_extend(0, bytes + N_BYTES_AT, end - N_BYTES_AT);

    memcpy(bytes, &own, sizeof own);
    if (end < COMBINE_BYTES_MIN) {
        *crc = crc32c_extend(*crc, bytes, padded(end));
        return padded(end);
    }
    *crc = crc32c_extend(*crc, bytes, N_BYTES_AT);
    *crc = crc32c_combine(*crc, own, end - N_BYTES_AT);
    *crc = crc32c_extend(*crc, bytes + end, padded(end) - end);
    return padded(end);
}

static bool is_zeros(const uint8_t *bytes, size_t n)
{
    uint8_t any = 0;

    for (size_t i = 0; i < n; i++)
        any |= bytes[i];
    return any == 0;
}

/* Is it whole? *ret_end: of its payload. */
static const char *check(const uint8_t *src, size_t n_bytes, size_t *ret_end)
{
    uint64_t end;

    if (n_bytes < WAL_RECORD_HEADER_BYTES)
        return "a record's header is cut off";
    end = (uint64_t)WAL_RECORD_HEADER_BYTES + load_u32(src + N_BYTES_AT);
    if (end > WAL_RECORD_BYTES_MAX || padded((size_t)end) > n_bytes)
        return "a record is longer than what it stands in";
    if (crc32c_extend(0, src + N_BYTES_AT, (size_t)end - N_BYTES_AT) != load_u32(src))
        return "a record fails its checksum";
    if (!is_zeros(src + end, padded((size_t)end) - (size_t)end))
        return "a record's padding is not zeros";
    *ret_end = (size_t)end;
    return NULL;
}

const char *wal_record_decode(const uint8_t *src, size_t n_bytes,
                              struct wal_record_storage *storage, struct wal_record *ret,
                              size_t *ret_bytes, struct err *reason)
{
    const struct decode_targets at = { &storage->push, &storage->table, &storage->join,
                                       &storage->learned };
    struct field_io p = { .mode = FIELD_IO_READS, .src = src, .at = N_BYTES_AT };
    const char *wrong = check(src, n_bytes, &p.end);
    uint32_t payload;

    *ret = (struct wal_record){ 0 };
    storage->push.n_sections = 0;
    storage->join = (struct membership_join){ 0 };
    if (wrong)
        return wrong;
    fields_header(&p, ret, &payload);
    if (ret->event.type == SHARD_EVENT_TYPE_END)
        return "a record of an unknown type";
    wrong = fields_event(&p, &ret->event, &at, reason);
    if (!wrong && (p.failed || p.at != p.end))
        wrong = "a record's fields do not fit its length";
    *ret_bytes = padded(p.end);
    return wrong;
}
