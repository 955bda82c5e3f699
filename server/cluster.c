#include "server/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/address.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "proto/placement.h"
#include "server/cluster_file.h"

static uint64_t make_id(struct hello_reply *map)
{
    char *nodes[MESSAGE_NODES_MAX];

    for (uint32_t i = 0; i < map->n_nodes; i++)
        nodes[i] = map->nodes[i];
    return placement_map_id(map->shards_per_node, nodes, map->n_nodes);
}

static int add_node(struct hello_reply *map, const char *address, struct err *err)
{
    if (strlen(address) >= MESSAGE_ADDRESS_MAX)
        return err_set(err, PS_ECLUSTER, "cluster: \"%.100s\" is longer than %u bytes", address,
                       MESSAGE_ADDRESS_MAX - 1);
    for (uint32_t i = 0; i < map->n_nodes; i++)
        if (strcmp(map->nodes[i], address) == 0)
            return err_set(err, PS_ECLUSTER, "cluster: %s stands in the list twice", address);
    snprintf(map->nodes[map->n_nodes++], MESSAGE_ADDRESS_MAX, "%s", address);
    return 0;
}

static int check_self(const struct settings *s, const struct hello_reply *map, struct err *err)
{
    if (s->node >= map->n_nodes)
        return err_set(err, PS_ECLUSTER, "node: found %u, the cluster list has 0 to %u",
                       s->node, map->n_nodes - 1);
    if (!s->standby[0] && s->advertise[0] && strcmp(s->advertise, map->nodes[s->node]) != 0)
        return err_set(
            err, PS_ECLUSTER,
            "advertise: found %.80s, but node %u of the cluster list is %s (see --node)",
            s->advertise, s->node, map->nodes[s->node]);
    return 0;
}

int cluster_map(const struct settings *s, struct hello_reply *ret, struct err *err)
{
    struct hello_reply map = { .version = PROTO_VERSION_MAX,
                               .node = s->node,
                               .shards_per_node = s->shards,
                               .frame_max_bytes = (uint32_t)s->frame_max_bytes };
    int status = 0;

    for (uint32_t i = 0; i < s->cluster.n && !status; i++)
        status = add_node(&map, s->cluster.items[i], err);
    if (!status && s->cluster.n == 0)
        status = add_node(&map, s->advertise[0] ? s->advertise : s->listen, err);
    if (!status)
        status = check_self(s, &map, err);
    if (status)
        return status;
    map.map_id = make_id(&map);
    *ret = map;
    return 0;
}

static int note_name(void *arg, const char *name)
{
    bool *has_data = arg;

    *has_data = *has_data || strcmp(name, "TERMS") == 0 || strcmp(name, "log") == 0;
    return 0;
}

/* A standby that has followed nobody leaves the file and no data: this psd, which is to be none, is not of that
 * primary's cluster. */
static bool is_left_over(const struct settings *s, const struct file_ops *files)
{
    bool has_data = false;

    return !s->standby[0] &&
           files->list(files->state, s->data_dir, note_name, &has_data) == 0 && !has_data;
}

int cluster_map_of_file(const struct settings *s, const struct file_ops *files,
                        struct hello_reply *map, bool *ret_is_there, struct err *err)
{
    struct hello_reply *found;
    int status;

    *ret_is_there = false;
    if (s->cluster.n || !s->data_dir[0])
        return 0;
    if (is_left_over(s, files))
        return cluster_file_remove(files, s->data_dir, err);
    found = memory_alloc(sizeof *found);
    status = cluster_file_read(files, s->data_dir, found, err);
    if (!status && found->n_nodes && found->shards_per_node == s->shards) {
        *ret_is_there = true;
        found->version = map->version;
        found->frame_max_bytes = map->frame_max_bytes;
        *map = *found;
    }
    free(found);
    return status;
}

void cluster_choose_shards(struct settings *s, const struct file_ops *files)
{
    struct hello_reply *found = memory_alloc(sizeof *found);
    struct err unwanted;

    if (s->shards_are_chosen && s->data_dir[0] && !s->cluster.n && !is_left_over(s, files) &&
        cluster_file_read(files, s->data_dir, found, &unwanted) == 0 && found->n_nodes)
        s->shards = found->shards_per_node;
    free(found);
}

void cluster_own_address(const struct settings *s, const char *listening,
                         char ret[static MESSAGE_ADDRESS_MAX])
{
    const char *port = strrchr(listening, ':');
    char host[MESSAGE_ADDRESS_MAX - 8] = "localhost";

    if (s->advertise[0]) {
        snprintf(ret, MESSAGE_ADDRESS_MAX, "%.127s", s->advertise);
    } else if (strncmp(listening, "0.0.0.0:", 8) == 0 || strncmp(listening, "[::]:", 5) == 0) {
        (void)gethostname(host, sizeof host - 1);
        snprintf(ret, MESSAGE_ADDRESS_MAX, "%.100s%.8s", host, port);
    } else {
        snprintf(ret, MESSAGE_ADDRESS_MAX, "%.127s", listening);
    }
}

void cluster_name_self(const struct settings *s, const char *listening, struct hello_reply *map)
{
    if (s->cluster.n || s->advertise[0])
        return;
    cluster_own_address(s, listening, map->nodes[0]);
    map->map_id = make_id(map);
}

void cluster_warn_elsewhere(const struct settings *s)
{
    const char *line = s->node < s->cluster.n ? s->cluster.items[s->node] : "";

    if (!s->advertise[0] && !s->standby[0] && !s->coord[0] &&
        address_is_elsewhere(s->listen, line))
        log_line_warn("cluster: its line %u, of this node, is %s, and this psd listens on %s: "
                      "workers look for it there (--node, --listen; --advertise %s, if both "
                      "lead to it)",
                      s->node, line, s->listen, line);
}

void cluster_warn_open(const struct settings *s, const char *listening)
{
    if (!s->token[0] && !s->tokens.n && !s->tls && strncmp(listening, "127.", 4) != 0 &&
        strncmp(listening, "[::1]", 5) != 0)
        log_line_warn("listening on %s without a token and TLS: whoever reaches it can read "
                      "and change all "
                      "tables (--token-file, --tls)",
                      listening);
}
