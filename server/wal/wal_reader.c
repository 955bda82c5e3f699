#include "server/wal/wal_reader.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/crc32c.h"
#include "common/memory.h"
#include "server/wal/wal_block.h"

#define READ_BYTES ((size_t)256 << 10)
#define SECTOR_BYTES ((size_t)4096)
#define UNREADABLE_MAX \
    1024u /* sectors that a reader passes over; then it takes a file as ended */

struct wal_reader {
    const struct file_ops *files; /* borrowed */
    char dir[WAL_PATH_MAX];
    const struct wal_identity *identity; /* borrowed until opened; NULL: anybody's */
    struct wal_segments all;             /* owned */
    size_t at;                           /* the segment that is being read */
    int fd;                              /* of it, or -1 */
    struct wal_segment segment;
    bool has_segment; /* one header has been read: of `whose` */
    struct wal_identity segment_identity;
    bool has_guess; /* no header is whole: the owner as a damaged one has it */
    struct wal_identity guess;
    struct bytes in; /* what has been read of the file and not been used */
    uint64_t offset; /* of in's front, in the file */
    bool eof;
    uint64_t n_file_bytes;
    uint64_t
        unreadable_end; /* of the last sector of the file that answered -EIO; 0: none has */
    uint32_t n_unreadable;

    uint64_t from, next; /* wanted; the number that comes next */
    const uint8_t *records;
    size_t n_bytes, used; /* of the block that is being read, and of it */
    size_t block_bytes;   /* of it, in `in` */
    struct bytes scratch;
    struct wal_record record;
    struct wal_record_storage storage;
    uint64_t version_before; /* end.version before that record */
    enum { READER_READS, READER_ENDED } state;
    struct wal_end end;
    struct err *err;
};

const char *wal_reader_verdict_name(enum wal_verdict verdict)
{
    static const char *const names[] = { [WAL_CLEAN] = "clean",
                                         [WAL_TORN] = "torn",
                                         [WAL_GAP] = "gap",
                                         [WAL_DAMAGED] = "damaged",
                                         [WAL_STOPPED] = "stopped" };

    return (size_t)verdict < COUNT_OF(names) ? names[verdict] : "unknown";
}

/* --- bytes of the file --- */

static void close_file(struct wal_reader *r)
{
    if (r->fd >= 0)
        (void)!r->files->close(r->files->state, r->fd);
    r->fd = -1;
    r->in.start = r->in.end = 0;
    r->offset = r->unreadable_end = 0;
    r->eof = false;
}

static int open_file(struct wal_reader *r, uint64_t first)
{
    int status;

    close_file(r);
    status = wal_segment_path(r->dir, first, r->end.path, r->err);
    if (status)
        return status;
    status = r->files->open_read(r->files->state, r->end.path, &r->fd);
    if (status) {
        r->fd = -1;
        return err_set(r->err, status, "cannot open: %s: %s", status_text(status), r->end.path);
    }
    return 0;
}

static int fail_read(struct wal_reader *r, int status)
{
    return err_set(r->err, status, "cannot read: %s: %s", status_text(status), r->end.path);
}

/* The sector behind what is in cannot be read: it counts as zeros, which no checksum fits. */
static int pass_over_sector(struct wal_reader *r, uint8_t *space)
{
    uint64_t at = r->offset + bytes_len(&r->in);
    size_t n_bytes = SECTOR_BYTES - at % SECTOR_BYTES;
    int64_t n = 0;

    r->unreadable_end = at + n_bytes;
    if (r->n_unreadable < UNREADABLE_MAX) {
        r->n_unreadable++;
        n = r->files->skip(r->files->state, r->fd, n_bytes);
    }
    if (n < 0)
        return fail_read(r, (int)n);
    memset(space, 0, (size_t)n);
    bytes_commit(&r->in, (size_t)n);
    r->eof = n == 0;
    return 0;
}

/* Reads until `n_bytes` are in, or the file has ended. */
static int fill(struct wal_reader *r, size_t n_bytes)
{
    while (bytes_len(&r->in) < n_bytes && !r->eof) {
        uint8_t *space = bytes_reserve(&r->in, READ_BYTES);
        int64_t n;

        if (!space)
            return err_set(r->err, -ENOMEM, "no memory to read %s", r->end.path);
        n = r->files->read(r->files->state, r->fd, space, READ_BYTES);
        if (n == -EIO && r->files->skip) {
            int status = pass_over_sector(r, space);

            if (status)
                return status;
            continue;
        }
        if (n < 0)
            return fail_read(r, (int)n);
        r->eof = n == 0;
        bytes_commit(&r->in, (size_t)n);
        r->n_file_bytes += (uint64_t)n;
    }
    return 0;
}

static void use(struct wal_reader *r, size_t n_bytes)
{
    bytes_consume(&r->in, n_bytes);
    r->offset += n_bytes;
}

static bool is_last(const struct wal_reader *r)
{
    return r->at + 1 == r->all.n;
}

/* --- the end --- */

static void note_durable(struct wal_reader *r, uint64_t number)
{
    if (number > r->end.durable)
        r->end.durable = number;
}

static void end_at(struct wal_reader *r, enum wal_verdict verdict, uint64_t offset,
                   const char *why)
{
    static const char *const is[] = {
        [WAL_TORN] = "is torn", [WAL_GAP] = "has a gap", [WAL_DAMAGED] = "is damaged"
    };
    struct err text;

    r->end.verdict = verdict;
    r->end.offset = offset;
    r->end.last_present = r->next - 1;
    r->end.last = r->next > r->from ? r->next - 1 : r->from - 1;
    r->end.last_read = r->end.last;
    r->end.n_unread = (uint32_t)(r->all.n - r->at - 1);
    r->state = READER_ENDED;
    if (verdict == WAL_CLEAN || verdict == WAL_STOPPED)
        return;
    err_set(&text, 0,
            "the write-ahead log %s behind record %" PRIu64 ": %s: byte %" PRIu64 " of %s",
            is[verdict], r->end.last_present, why, offset, r->end.path);
    memcpy(r->end.text, text.text, sizeof r->end.text);
}

/* What a search behind bytes that are no block finds: the greatest number that any block says was durable, */
struct search {
    const uint32_t
        *seeds; /* of the segment's crc: as the header has it, and as it should have it */
    uint64_t durable;
    bool goes_on;  /* nobody wants what is missing here, */
    bool is_found; /* and a block at which the reader goes on is at the front of `in` */
};

static void scan_at(struct wal_reader *r, struct search *s)
{
    struct wal_block_head head;

    for (int i = 0; i < 2 && !s->is_found; i++) {
        if (wal_block_decode(bytes_front(&r->in), s->seeds[i], &head))
            continue;
        s->is_found =
            s->goes_on && head.n_records && head.first >= r->next && head.first <= r->from;
        if (s->is_found) {
            r->segment.crc = s->seeds[i];
            r->next = head.first;
            r->block_bytes = r->used = r->n_bytes = 0;
            r->end.version = 0;
        } else if (head.durable > s->durable) {
            s->durable = head.durable;
        }
    }
}

static int search_here(struct wal_reader *r, struct search *s)
{
    int status;

    while ((status = fill(r, WAL_BLOCK_HEADER_BYTES)) == 0 &&
           bytes_len(&r->in) >= WAL_BLOCK_HEADER_BYTES) {
        scan_at(r, s);
        if (s->is_found)
            return 0;
        use(r, 8);
    }
    return status;
}

/* The same of the segments behind: their headers say it. What is promised behind a gap says nothing of
 * what is before it: *ret_gap, where the record was not durable when the gap came about. */
static int promised_behind(struct wal_reader *r, uint64_t *ret, bool *ret_gap)
{
    char path[WAL_PATH_MAX];
    int status = 0;

    memcpy(path, r->end.path, sizeof path);
    *ret_gap = false;
    for (size_t i = r->at + 1; i < r->all.n && !status && !*ret_gap; i++) {
        struct wal_segment segment;

        status = open_file(r, r->all.firsts[i]);
        if (!status)
            status = fill(r, WAL_SEGMENT_HEADER_BYTES);
        if (status || bytes_len(&r->in) < WAL_SEGMENT_HEADER_BYTES ||
            wal_segment_decode(bytes_front(&r->in), &segment))
            continue;
        *ret_gap = segment.flags & WAL_SEGMENT_GAP && segment.durable < r->next;
        if (!*ret_gap && segment.durable > *ret)
            *ret = segment.durable;
    }
    memcpy(r->end.path, path, sizeof path);
    return status;
}

/* Record r->next should begin here, and does not. The end, unless nobody wants what is missing. */
static int end_badly(struct wal_reader *r, const uint32_t seeds[2], const char *why)
{
    struct search s = { .seeds = seeds,
                        .durable = r->end.durable,
                        .goes_on = r->next < r->from };
    uint64_t offset = r->offset, wanted = r->next > r->from ? r->next : r->from;
    bool gap = false, is_unreadable;
    int status = 0;

    if (s.goes_on && bytes_len(&r->in) >= 8)
        use(r, 8); /* what is here is no place to go on at */
    if (seeds)
        status = search_here(r, &s);
    if (status || s.is_found)
        return status;
    is_unreadable = r->unreadable_end > offset;
    status = promised_behind(r, &s.durable, &gap);
    if (status)
        return status;
    note_durable(r, s.durable);
    if (is_unreadable)
        end_at(r, WAL_DAMAGED, offset, "cannot be read: Input/output error");
    else
        end_at(r, s.durable >= wanted ? WAL_DAMAGED : gap ? WAL_GAP : WAL_TORN, offset, why);
    return 0;
}

/* --- segments --- */

static bool is_same(const struct wal_identity *a, const struct wal_identity *b)
{
    return a->node == b->node && a->shard == b->shard && a->n_shards == b->n_shards &&
           a->map_id == b->map_id;
}

static int check_identity(struct wal_reader *r)
{
    const struct wal_identity *found = &r->segment.identity, *want = r->identity;

    if (r->has_segment)
        want = &r->segment_identity;
    if (want && !is_same(found, want))
        return err_set(r->err, PS_ECLUSTER,
                       "the write-ahead log is of shard %u of %u, node %u, map %" PRIu64
                       "; expected shard %u of %u, node %u, map %" PRIu64 ": %s",
                       found->shard, found->n_shards, found->node, found->map_id, want->shard,
                       want->n_shards, want->node, want->map_id, r->end.path);
    r->has_segment = true;
    r->segment_identity = *found;
    return 0;
}

/* What a header that is damaged may have as its crc: as it stands, and as it should be. */
static void read_seeds(const uint8_t header[WAL_SEGMENT_HEADER_BYTES], uint32_t ret[2])
{
    memcpy(&ret[0], header + 76, 4);
    ret[1] = crc32c_extend(0, header, 76);
}

/* Which of the two does the block behind the header begin with? It has to be the one with record r->next. */
static bool find_seed(const struct wal_reader *r, const uint32_t seeds[2], uint32_t *ret)
{
    const uint8_t *block = bytes_front(&r->in) + WAL_SEGMENT_HEADER_BYTES;
    struct wal_block_head head;

    for (int i = 0; i < 2; i++) {
        *ret = seeds[i];
        if (!wal_block_decode(block, seeds[i], &head) && head.first == r->next)
            return true;
    }
    return false;
}

/* Is the segment of the owner that is expected, although one of the header's fields is damaged? If it is one of the
 * owner's, the checksum fits the owner that is expected. */
static bool is_of_owner(struct wal_reader *r, uint32_t crc)
{
    const struct wal_identity *want = r->has_segment ? &r->segment_identity : r->identity;
    uint8_t header[WAL_SEGMENT_HEADER_BYTES];
    struct wal_identity found;

    memcpy(header, bytes_front(&r->in), sizeof header);
    wal_segment_identity(header, &found);
    if (!want) {
        r->has_guess = true;
        r->guess = found;
        return true;
    }
    wal_segment_set_identity(header, want);
    return is_same(&found, want) || crc32c_extend(0, header, 76) == crc;
}

/* Blocks begin with the header's crc: those that fit it can be read as if the header were whole. */
static int pass_header(struct wal_reader *r, const char *why)
{
    uint32_t seeds[2] = { 0 }, crc;
    struct err text;
    int status = fill(r, WAL_SEGMENT_HEADER_BYTES + WAL_BLOCK_HEADER_BYTES);

    if (status)
        return status;
    if (bytes_len(&r->in) >= WAL_SEGMENT_HEADER_BYTES)
        read_seeds(bytes_front(&r->in), seeds);
    if (bytes_len(&r->in) < WAL_SEGMENT_HEADER_BYTES + WAL_BLOCK_HEADER_BYTES ||
        seeds[0] == seeds[1] || !find_seed(r, seeds, &crc) || !is_of_owner(r, crc))
        return end_badly(r, seeds, why);
    r->segment.crc = crc;
    err_set(&text, 0,
            "a segment of the write-ahead log is damaged, but its records are there: %s: "
            "byte 0 of %s",
            why, r->end.path);
    r->end.n_headers++;
    memcpy(r->end.header_text, text.text, sizeof r->end.header_text);
    r->end.version = 0;
    use(r, WAL_SEGMENT_HEADER_BYTES);
    return 0;
}

/* The segment at r->at: its header. */
static int open_segment(struct wal_reader *r)
{
    const char *wrong = "a segment's header is cut off";
    int status = open_file(r, r->all.firsts[r->at]);

    if (!status)
        status = fill(r, WAL_SEGMENT_HEADER_BYTES);
    if (status)
        return status;
    r->next = r->all.firsts[r->at];
    if (bytes_len(&r->in) >= WAL_SEGMENT_HEADER_BYTES)
        wrong = wal_segment_decode(bytes_front(&r->in), &r->segment);
    if (!wrong && r->segment.first != r->next)
        wrong = "the header names another record than the file's name";
    if (wrong)
        return pass_header(r, wrong);
    note_durable(r, r->segment.durable);
    r->end.version = r->segment.version;
    use(r, WAL_SEGMENT_HEADER_BYTES);
    return check_identity(r);
}

/* The segment has no more: does the next one go on where it ends? */
static int leave_segment(struct wal_reader *r)
{
    if (is_last(r)) {
        end_at(r, WAL_CLEAN, r->offset, NULL);
        return 0;
    }
    if (r->all.firsts[r->at + 1] != r->next)
        return end_badly(r, NULL, "records are missing between this segment and the next");
    r->at++;
    return open_segment(r);
}

/* --- blocks --- */

/* What does not fit is the end, unless the next segment begins here: then the writer knew. */
static int bad_block(struct wal_reader *r, const char *why)
{
    const uint32_t seeds[2] = { r->segment.crc, r->segment.crc };

    if (!is_last(r) && r->all.firsts[r->at + 1] == r->next)
        return leave_segment(r);
    return end_badly(r, seeds, why);
}

/* The block at the front of `in`, whole. */
static int read_block(struct wal_reader *r, const struct wal_block_head *head)
{
    size_t n_bytes = WAL_BLOCK_HEADER_BYTES + wal_block_padded(head->stored_bytes);
    int status = fill(r, n_bytes);

    if (status)
        return status;
    if (bytes_len(&r->in) < n_bytes)
        return bad_block(r, "a block is cut off");
    status = wal_block_open(head, bytes_front(&r->in) + WAL_BLOCK_HEADER_BYTES, &r->scratch,
                            &r->records);
    if (status == -ENOMEM)
        return err_set(r->err, status, "no memory to read %s", r->end.path);
    if (status)
        return bad_block(r, "a block fails its checksum");
    r->n_bytes = head->raw_bytes;
    r->used = 0;
    r->block_bytes = n_bytes;
    return 0;
}

/* The next so many bytes of the file, or all that it has, without what is not in yet. */
static int seek(struct wal_reader *r, size_t *left)
{
    size_t n_in = bytes_len(&r->in);
    int64_t n;

    if (*left <= n_in || !r->files->skip)
        return 0;
    n = r->files->skip(r->files->state, r->fd, *left - n_in);
    if (n < 0)
        return fail_read(r, (int)n);
    r->in.start = r->in.end = 0;
    r->offset += n_in + (uint64_t)n;
    r->n_file_bytes += (uint64_t)n;
    *left -= n_in + (size_t)n;
    return 0;
}

/* A block whose records nobody wants: its header is enough. */
static int skip_block(struct wal_reader *r, const struct wal_block_head *head)
{
    size_t left = WAL_BLOCK_HEADER_BYTES + wal_block_padded(head->stored_bytes);
    int status = seek(r, &left);

    while (left && !status) {
        size_t n;

        status = fill(r, 8);
        n = bytes_len(&r->in) & ~(size_t)7; /* what is behind stays aligned */
        if (status || !n)
            break;
        n = n < left ? n : left;
        use(r, n);
        left -= n;
    }
    if (status)
        return status;
    if (left)
        return end_badly(r, NULL, "a block is cut off");
    r->next += head->n_records;
    r->end.version = 0;
    return 0;
}

static int next_block(struct wal_reader *r)
{
    struct wal_block_head head;
    const char *wrong = "a block's header is cut off";
    int status = fill(r, WAL_BLOCK_HEADER_BYTES);

    if (status)
        return status;
    if (bytes_len(&r->in) == 0)
        return leave_segment(r);
    if (bytes_len(&r->in) >= WAL_BLOCK_HEADER_BYTES)
        wrong = wal_block_decode(bytes_front(&r->in), r->segment.crc, &head);
    if (!wrong && head.first != r->next)
        wrong = "a block begins with another record than the next";
    if (wrong)
        return bad_block(r, wrong);
    note_durable(r, head.durable);
    if (head.n_records && head.first + head.n_records <= r->from)
        return skip_block(r, &head);
    return read_block(r, &head);
}

/* --- records --- */

/* One record of the block: it is what comes next. */
static int read_record(struct wal_reader *r, const struct wal_record **ret)
{
    struct err reason;
    size_t n_bytes = 0;
    const char *wrong = wal_record_decode(r->records + r->used, r->n_bytes - r->used,
                                          &r->storage, &r->record, &n_bytes, &reason);

    if (!wrong && r->record.number != r->next)
        wrong = "a record has another number than the next";
    if (wrong)
        return bad_block(r, wrong);
    r->used += n_bytes;
    r->next++;
    r->version_before = r->end.version;
    if (r->record.event.type != SHARD_EVENT_ROWS)
        r->end.version = r->record.event.version;
    if (r->record.number >= r->from)
        *ret = &r->record;
    return 0;
}

int wal_reader_next(struct wal_reader *r, const struct wal_record **ret, struct err *err)
{
    int status = 0;

    *ret = NULL;
    r->err = err;
    while (!status && !*ret && r->state == READER_READS) {
        if (!is_last(r) && r->next >= r->all.firsts[r->at + 1]) {
            r->block_bytes = r->used = r->n_bytes = 0;
            status = leave_segment(r);
        } else if (r->used < r->n_bytes) {
            status = read_record(r, ret);
        } else {
            use(r, r->block_bytes);
            r->block_bytes = r->used = r->n_bytes = 0;
            status = next_block(r);
        }
    }
    return status;
}

void wal_reader_stop(struct wal_reader *r, uint64_t last)
{
    struct wal_end *end = &r->end;

    assert(last >= r->from - 1 && last < r->next);
    if (last + 1 < r->next)
        end->version = r->version_before;
    if (r->state == READER_READS) {
        uint64_t last_read = r->next - 1;

        r->next = last + 1;
        end_at(r, WAL_STOPPED, r->offset, NULL);
        end->last_read = last_read;
    }
    end->last = end->last_present = last;
    if (end->durable > last)
        end->durable = last; /* of what is not to count nothing was promised to anybody */
}

void wal_reader_where(const struct wal_reader *r, char *dst, size_t dst_bytes)
{
    snprintf(dst, dst_bytes, "byte %" PRIu64 " of %s", r->offset, r->end.path);
}

const struct wal_end *wal_reader_end(const struct wal_reader *r)
{
    assert(r->state == READER_ENDED);
    return &r->end;
}

uint64_t wal_reader_n_file_bytes(const struct wal_reader *r)
{
    return r->n_file_bytes;
}

const struct wal_identity *wal_reader_identity(const struct wal_reader *r)
{
    if (r->has_segment)
        return &r->segment_identity;
    return r->has_guess ? &r->guess : NULL;
}

bool wal_reader_identity_is_sure(const struct wal_reader *r)
{
    return r->has_segment;
}

/* --- opening --- */

/* The segment in which record `from` stands, or would. */
static int find_start(struct wal_reader *r)
{
    r->next = r->from;
    if (!r->all.n) {
        end_at(r, WAL_CLEAN, 0, NULL);
        r->end.n_unread = 0;
        return 0;
    }
    if (r->all.firsts[0] > r->from) {
        int status = wal_segment_path(r->dir, r->all.firsts[0], r->end.path, r->err);

        if (status)
            return status;
        end_at(r, WAL_DAMAGED, 0, "the log begins behind the record that is needed");
        r->end.is_truncated = true;
        return 0;
    }
    while (!is_last(r) && r->all.firsts[r->at + 1] <= r->from)
        r->at++;
    return open_segment(r);
}

int wal_reader_open(const struct file_ops *files, const char *dir,
                    const struct wal_identity *identity, uint64_t from, struct wal_reader **ret,
                    struct err *err)
{
    struct wal_reader *r = memory_alloc(sizeof *r);
    int status = 0;

    assert(from > 0);
    r->files = files;
    r->identity = identity;
    r->from = from;
    r->fd = -1;
    r->err = err;
    if (strlen(dir) >= sizeof r->dir)
        status = err_set(err, -ENAMETOOLONG, "%.100s...: the path is too long", dir);
    if (!status) {
        memcpy(r->dir, dir, strlen(dir) + 1);
        status = wal_segment_list(files, dir, &r->all, err);
    }
    if (!status)
        status = find_start(r);
    if (status) {
        wal_reader_free(r);
        return status;
    }
    *ret = r;
    return 0;
}

void wal_reader_free(struct wal_reader *r)
{
    if (!r)
        return;
    close_file(r);
    free(r->all.firsts);
    bytes_deinit(&r->in);
    bytes_deinit(&r->scratch);
    free(r);
}
