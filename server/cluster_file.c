#include "server/cluster_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file_text.h"
#include "common/number.h"
#include "proto/placement.h"

#define NAME "CLUSTER"
#define PATH_BYTES 1100u
#define TEXT_BYTES_MAX 16384u /* MESSAGE_NODES_MAX addresses, and a little */

static size_t print(const struct hello_reply *map, char dst[static TEXT_BYTES_MAX])
{
    size_t n = (size_t)snprintf(dst, TEXT_BYTES_MAX,
                                "psd cluster, format 1\nmap %016" PRIx64 "\nshards %" PRIu32
                                "\nnode %" PRIu32 "\n",
                                map->map_id, map->shards_per_node, map->node);

    for (uint32_t i = 0; i < map->n_nodes; i++)
        n += (size_t)snprintf(dst + n, TEXT_BYTES_MAX - n, "at %s\n", map->nodes[i]);
    return file_text_seal(dst, n);
}

int cluster_file_write(const struct file_ops *files, const char *data_dir,
                       const struct hello_reply *map, struct err *err)
{
    char text[TEXT_BYTES_MAX];

    return file_text_replace(files, data_dir, NAME, text, print(map, text), err);
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

    if (!file_text_line(&text, "psd cluster, format 1") ||
        !(map = file_text_line(&text, "map ")))
        return false;
    ret->map_id = strtoull(map, &end, 16);
    if (*end ||
        !read_number(file_text_line(&text, "shards "), PLACEMENT_N_SHARDS_MAX,
                     &ret->shards_per_node) ||
        !read_number(file_text_line(&text, "node "), MESSAGE_NODES_MAX - 1, &ret->node))
        return false;
    while (ret->n_nodes < MESSAGE_NODES_MAX && (at = file_text_line(&text, "at ")) != NULL) {
        if (strlen(at) >= MESSAGE_ADDRESS_MAX)
            return false;
        snprintf(ret->nodes[ret->n_nodes++], MESSAGE_ADDRESS_MAX, "%s", at);
    }
    return *text == '\0' && ret->node < ret->n_nodes && ret->shards_per_node;
}

int cluster_file_read(const struct file_ops *files, const char *data_dir,
                      struct hello_reply *ret, struct err *err)
{
    char path[PATH_BYTES];
    struct bytes text = { 0 };
    int status;

    *ret = (struct hello_reply){ 0 };
    snprintf(path, sizeof path, "%s/" NAME, data_dir);
    status = file_text_read(files, path, TEXT_BYTES_MAX, &text);
    if (!status && (!file_text_unseal((char *)text.bytes + text.start, bytes_len(&text)) ||
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

int cluster_file_remove(const struct file_ops *files, const char *data_dir, struct err *err)
{
    char path[PATH_BYTES];
    int status;

    snprintf(path, sizeof path, "%s/" NAME, data_dir);
    status = files->unlink(files->state, path);
    return status && status != -ENOENT
               ? err_set(err, status, "cannot remove: %s: %s", status_text(status), path)
               : 0;
}
