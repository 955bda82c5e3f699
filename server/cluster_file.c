#include "server/cluster_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/crc32c.h"
#include "common/file_text.h"
#include "common/number.h"
#include "proto/placement.h"

#define PATH_BYTES 1100u
#define TEXT_BYTES_MAX 16384u /* MESSAGE_NODES_MAX addresses, and a little */
#define TAIL_BYTES 16u        /* crc32c 01234567 newline */

static int path_of(const char *data_dir, char ret[static PATH_BYTES], struct err *err)
{
    int n = snprintf(ret, PATH_BYTES, "%s/CLUSTER", data_dir);

    return n < 0 || (size_t)n + sizeof ".tmp" > PATH_BYTES
               ? err_set(err, -ENAMETOOLONG, "the data directory's path is too long")
               : 0;
}

static void tail(char dst[static TAIL_BYTES + 1], const char *text, size_t n_bytes)
{
    snprintf(dst, TAIL_BYTES + 1, "crc32c %08" PRIx32 "\n", crc32c_extend(0, text, n_bytes));
}

static size_t print(const struct hello_reply *map, char dst[static TEXT_BYTES_MAX])
{
    size_t n = (size_t)snprintf(dst, TEXT_BYTES_MAX,
                                "psd cluster, format 1\nmap %016" PRIx64 "\nshards %" PRIu32
                                "\nnode %" PRIu32 "\n",
                                map->map_id, map->shards_per_node, map->node);

    for (uint32_t i = 0; i < map->n_nodes; i++)
        n += (size_t)snprintf(dst + n, TEXT_BYTES_MAX - n, "at %s\n", map->nodes[i]);
    tail(dst + n, dst, n);
    return n + TAIL_BYTES;
}

int cluster_file_write(const struct file_ops *files, const char *data_dir,
                       const struct hello_reply *map, struct err *err)
{
    char path[PATH_BYTES], tmp[PATH_BYTES + 8], text[TEXT_BYTES_MAX];
    int status = path_of(data_dir, path, err);

    if (status)
        return status;
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    status = file_text_write(files, tmp, text, print(map, text));
    if (!status)
        status = files->rename(files->state, tmp, path);
    if (!status)
        status = files->sync_dir(files->state, data_dir);
    return status ? err_set(err, status, "cannot write: %s: %s", status_text(status), path) : 0;
}

/* The rest of the line at *text if it begins with these words, as a string; *text is the next line. NULL: it does
 * not. */
static char *line(char **text, const char *words)
{
    size_t n = strlen(words);
    char *rest = *text + n, *end;

    if (strncmp(*text, words, n) != 0)
        return NULL;
    end = strchr(rest, '\n');
    if (!end)
        return NULL;
    *end = '\0';
    *text = end + 1;
    return rest;
}

static bool read_number(const char *word, uint64_t max, uint32_t *ret)
{
    uint64_t number;

    if (!word || number_read_u64(word, &number) || number > max)
        return false;
    *ret = (uint32_t)number;
    return true;
}

static bool parse(char *text, struct hello_reply *ret)
{
    const char *map, *at;
    char *end;

    if (!line(&text, "psd cluster, format 1") || !(map = line(&text, "map ")))
        return false;
    ret->map_id = strtoull(map, &end, 16);
    if (*end ||
        !read_number(line(&text, "shards "), PLACEMENT_N_SHARDS_MAX, &ret->shards_per_node) ||
        !read_number(line(&text, "node "), MESSAGE_NODES_MAX - 1, &ret->node))
        return false;
    while (ret->n_nodes < MESSAGE_NODES_MAX && (at = line(&text, "at ")) != NULL) {
        if (strlen(at) >= MESSAGE_ADDRESS_MAX)
            return false;
        snprintf(ret->nodes[ret->n_nodes++], MESSAGE_ADDRESS_MAX, "%s", at);
    }
    return *text == '\0' && ret->node < ret->n_nodes && ret->shards_per_node;
}

/* Cuts off the last line. False: it is not the crc of the bytes before it. */
static bool check_crc(char *text, size_t n_bytes)
{
    char want[TAIL_BYTES + 1];

    if (n_bytes < TAIL_BYTES || memchr(text, '\0', n_bytes))
        return false;
    n_bytes -= TAIL_BYTES;
    tail(want, text, n_bytes);
    if (memcmp(text + n_bytes, want, TAIL_BYTES) != 0)
        return false;
    text[n_bytes] = '\0';
    return true;
}

int cluster_file_read(const struct file_ops *files, const char *data_dir,
                      struct hello_reply *ret, struct err *err)
{
    char path[PATH_BYTES];
    struct bytes text = { 0 };
    int status = path_of(data_dir, path, err);

    *ret = (struct hello_reply){ 0 };
    if (status)
        return status;
    status = file_text_read(files, path, TEXT_BYTES_MAX, &text);
    if (!status && (!check_crc((char *)text.bytes + text.start, bytes_len(&text)) ||
                    !parse((char *)text.bytes + text.start, ret)))
        status = PS_ECORRUPT;
    bytes_deinit(&text);
    if (!status)
        return 0;
    *ret = (struct hello_reply){ 0 };
    return status == -ENOENT
               ? 0
               : err_set(err, status, "cannot read which cluster this node is of: %s: %s",
                         status_text(status), path);
}
