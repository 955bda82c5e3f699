#include "server/log/log_segment.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/crc.h"
#include "common/mem.h"

#define FORMAT 1u
#define NAME_DIGITS 20u
#define NAME_END ".psl"

static const char magic[8] = "PSDLOG\n";

void log_segment_encode(uint8_t dst[static LOG_SEGMENT_HEADER_BYTES],
                        struct log_segment *header)
{
    const struct log_identity *who = &header->identity;
    const uint32_t words[] = { FORMAT, header->flags, who->node, who->shard, who->n_shards, 0 };
    const uint64_t numbers[] = { who->map_id, header->first, header->durable, header->version,
                                 header->unix_ms };

    memset(dst, 0, LOG_SEGMENT_HEADER_BYTES);
    memcpy(dst, magic, sizeof magic);
    memcpy(dst + 8, words, sizeof words);
    memcpy(dst + 32, numbers, sizeof numbers);
    header->crc = crc_extend(0, dst, 76);
    memcpy(dst + 76, &header->crc, 4);
}

const char *log_segment_decode(const uint8_t src[static LOG_SEGMENT_HEADER_BYTES],
                               struct log_segment *ret)
{
    uint32_t words[6];
    uint64_t numbers[5];

    memcpy(words, src + 8, sizeof words);
    memcpy(numbers, src + 32, sizeof numbers);
    memcpy(&ret->crc, src + 76, 4);
    if (memcmp(src, magic, sizeof magic) != 0)
        return "no segment of a log: the magic is wrong";
    if (words[0] != FORMAT)
        return "the format version is not 1, which this program reads";
    if (crc_extend(0, src, 76) != ret->crc)
        return "the header fails its checksum";
    if (words[1] & ~(uint32_t)LOG_SEGMENT_FLAGS_KNOWN)
        return "the header has unknown flags";
    ret->flags = words[1];
    ret->identity = (struct log_identity){
        .node = words[2], .shard = words[3], .n_shards = words[4], .map_id = numbers[0]
    };
    ret->first = numbers[1];
    ret->durable = numbers[2];
    ret->version = numbers[3];
    ret->unix_ms = numbers[4];
    if (!ret->first || ret->durable >= ret->first)
        return "the header's numbers do not fit";
    return NULL;
}

int log_segment_path(const char *dir, uint64_t first, char ret[static LOG_PATH_MAX],
                     struct err *err)
{
    int n = snprintf(ret, LOG_PATH_MAX, "%s/%020" PRIu64 NAME_END, dir, first);

    if (n < 0 || (size_t)n >= LOG_PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "%.100s...: the path is too long", dir);
    return 0;
}

/* True if it is the name of a segment. */
static bool read_name(const char *name, uint64_t *ret_first)
{
    uint64_t first = 0;

    if (strlen(name) != NAME_DIGITS + strlen(NAME_END) ||
        strcmp(name + NAME_DIGITS, NAME_END) != 0)
        return false;
    for (size_t i = 0; i < NAME_DIGITS; i++) {
        uint64_t digit = (uint64_t)(name[i] - '0');

        if (digit > 9 || first > (UINT64_MAX - digit) / 10)
            return false;
        first = first * 10 + digit;
    }
    *ret_first = first;
    return first > 0;
}

static int on_name(void *arg, const char *name)
{
    struct log_segments *all = arg;
    uint64_t first, *more;

    if (!read_name(name, &first))
        return 0;
    more = mem_try_realloc(all->firsts, (all->n + 1) * sizeof *more);
    if (!more)
        return -ENOMEM;
    all->firsts = more;
    all->firsts[all->n++] = first;
    return 0;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

int log_segment_list(const struct file_ops *files, const char *dir, struct log_segments *ret,
                     struct err *err)
{
    int status;

    *ret = (struct log_segments){ 0 };
    status = files->list(files->state, dir, on_name, ret);
    if (status && status != -ENOENT)
        return err_set(err, status, "cannot list: %s: %s", status_text(status), dir);
    if (ret->n)
        qsort(ret->firsts, ret->n, sizeof *ret->firsts, by_number);
    return 0;
}
