#include "server/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "common/address.h"
#include "common/file.h"
#include "common/number.h"
#include "common/token_file.h"
#include "proto/message.h"
#include "proto/placement.h"
#include "server/cluster/etcd_url.h"
#include "server/recovery/recover_shard.h"
#include "server/replication/terms.h"

#define DEV_LISTEN "127.0.0.1:7070"
#define DEV_HTTP "127.0.0.1:7071"
#define DEV_DATA_DIR "./psd-data"
#define TOKEN_BYTES_MAX (sizeof((struct hello *)0)->token - 1)
#define GRADIENT_MAX_LEAST 65536u /* above all of fp16: CODEC_MAX_LEAST */
#define MS(x) (UINT64_C(1) * (x))
#define DAY_MS MS(86400000)
#define WEEK_MS (7 * DAY_MS)

#define AT(field) offsetof(struct settings, field)

/* clang-format off */
static const struct setting rows[] = {
    { "node", "dev", SETTING_FLAG, "", "no",
      "one node on this machine: " DEV_LISTEN ", pages on " DEV_HTTP ", data in " DEV_DATA_DIR,
      AT(dev), 0, 0 },
    { "node", "listen", SETTING_TEXT, "HOST:PORT", "",
      "where workers connect; port 0 picks a free one; without a token an address of this machine alone, "
      "such as 127.0.0.1:7070: see insecure",
      AT(listen), 0, 0 },
    { "node", "advertise", SETTING_TEXT, "HOST:PORT", "",
      "how others reach this node; default: its line of cluster, or listen",
      AT(advertise), 0, 0 },
    { "node", "http", SETTING_TEXT, "HOST:PORT", "",
      "where the stats pages are; empty or off: nowhere. Where other machines reach it, pages want a token or a "
      "certificate (but /healthz and /readyz): see insecure", AT(http), 0, 0 },
    { "node", "http-hosts", SETTING_LIST, "NAME", "",
      "names that browsers and probes may use for this node's pages, beside numbers, localhost, names without a dot "
      "and its own in http and cluster; *: all",
      AT(http_hosts), 0, 0 },
    { "node", "shards", SETTING_U32, "N", "0",
      "threads that each own a slice of every table; 0: as many as the data-dir has, a new one as many as there are "
      "cores; the same on every node. Another number than the data-dir has ends its jobs' clocks",
      AT(shards), 0, PLACEMENT_N_SHARDS_MAX },
    { "node", "memory-max", SETTING_BYTES, "BYTES", "0",
      "bytes of this node's rows; beyond it a table refuses new rows or evicts old ones (psworker --table-full); "
      "0: no limit",
      AT(memory_max_bytes), 0, UINT64_C(1) << 50 },
    { "node", "memory-reserve", SETTING_BYTES, "BYTES", "0",
      "memory that the start maps and clears in huge pages, so that growing tables never wait for the kernel or for a "
      "virtual machine's host; 0: none",
      AT(memory_reserve_bytes), 0, UINT64_C(1) << 50 },
    { "node", "log-level", SETTING_TEXT, "LEVEL", "info",
      "error, warn, info or debug", AT(log_line_level), 0, 0 },

    { "cluster", "cluster", SETTING_LIST, "HOST:PORT", "",
      "all nodes, in the same order on each; empty: this one alone", AT(cluster), 0, 0 },
    { "cluster", "node", SETTING_U32, "I", "0", "which line of cluster this node is, from 0",
      AT(node), 0, MESSAGE_NODES_MAX - 1 },
    { "cluster", "token-file", SETTING_TEXT, "FILE", "",
      "holds the secret that clients must show, 8 to 127 characters, or a line ROLE[/JOB] SECRET for each role; others "
      "must not be able to read it; empty: everybody may come in",
      AT(token_file), 0, 0 },
    { "cluster", "token", SETTING_TEXT, "TEXT", "",
      "the secret itself, for tests: other users of the machine can read a command line",
      AT(token), 0, 0 },
    { "cluster", "tls", SETTING_CHOICE, "off|on", "off",
      "speak TLS 1.3 with whoever connects, and with other nodes; needs tls-ca, tls-cert and tls-key. The stats pages "
      "are HTTPS then, and want a role",
      AT(tls_mode), 0, 0 },
    { "cluster", "tls-ca", SETTING_TEXT, "FILE", "",
      "certificate of the CA that all certificates of the cluster are of (PEM)", AT(tls_ca), 0, 0 },
    { "cluster", "tls-cert", SETTING_TEXT, "FILE", "",
      "this node's certificate (PEM), with the names of its host and psd://CLUSTER/node; psctl cert makes one",
      AT(tls_cert), 0, 0 },
    { "cluster", "tls-key", SETTING_TEXT, "FILE", "", "private key of tls-cert (PEM)", AT(tls_key), 0, 0 },
    { "cluster", "insecure", SETTING_FLAG, "", "no",
      "listen where other machines reach it, with frames or pages, without a token and without TLS: each of them can "
      "read and change all tables",
      AT(insecure), 0, 0 },

    { "waits", "lease", SETTING_MS, "TIME", "10s",
      "a worker that is silent for longer is suspected, and dead once all shards refuse it; then the others go on",
      AT(lease_ms), 50, DAY_MS },
    { "waits", "join-timeout", SETTING_MS, "TIME", "60s",
      "how long a job waits for a worker that has never come",
      AT(join_timeout_ms), 50, DAY_MS },
    { "waits", "park-max", SETTING_MS, "TIME", "30m",
      "the longest that a pull waits for slower workers", AT(park_max_ms), 1, DAY_MS },
    { "waits", "greeting-timeout", SETTING_MS, "TIME", "5s",
      "for the handshake of a new connection", AT(handshake_timeout_ms), 10, DAY_MS },
    { "waits", "idle-timeout", SETTING_MS, "TIME", "60s",
      "for a new connection to join a job or to ask; ten times as long once it has asked",
      AT(idle_timeout_ms), 10, DAY_MS },
    { "waits", "frame-timeout", SETTING_MS, "TIME", "30s",
      "for the rest of a message once it has begun, and for a peer to read its replies",
      AT(frame_timeout_ms), 10, DAY_MS },

    { "limits", "connections-max", SETTING_U32, "N", "4096",
      "connections open at a time; a sixteenth is kept for addresses that have a live worker",
      AT(connections_max), 1, 1000000 },
    { "limits", "connections-per-address", SETTING_U32, "N", "0",
      "connections of one address that have not joined a job; 0: half of connections-max, at least 64",
      AT(address_connections_max), 0, 1000000 },
    { "limits", "frame-max", SETTING_BYTES, "BYTES", "64M", "the largest message",
      AT(frame_max_bytes), 128 << 10, UINT64_C(1) << 30 },
    { "limits", "client-memory", SETTING_BYTES, "BYTES", "0",
      "for messages and replies that connections have not sent or read whole; beyond it the one that holds most is "
      "closed; 0: an eighth of the machine's memory, at least 4 times frame-max",
      AT(client_memory_bytes), 0, UINT64_C(1) << 50 },
    { "limits", "pull-delta-max", SETTING_BYTES, "BYTES", "1G",
      "of a node: copies of the rows that workers with --pull-deltas have, and keys that workers have pulled; "
      "beyond it, and with 0, rows and keys come whole",
      AT(deltas_max_bytes), 0, UINT64_C(1) << 50 },
    { "limits", "tables-max", SETTING_U32, "N", "16384",
      "tables of a shard, of all jobs; more are refused, until psctl drop JOB has removed a job's. One connection "
      "makes at most a quarter of them, or 256",
      AT(tables_max), 1, SHARD_TABLE_NUMBERS_MAX },
    { "limits", "metrics-tables", SETTING_U32, "N", "8",
      "tables of a node that have samples of their own in /metrics: the first ones, and of so many jobs a sum of their "
      "dense tables; the others are one sum",
      AT(metrics_tables), 0, SHARD_TABLE_NUMBERS_MAX },
    { "limits", "gradient-max", SETTING_FLOAT, "X", "1e15",
      "the largest magnitude of a gradient: a larger one is finite, but makes weights or optimizer state infinite; "
      "65536 or more; 0: no limit",
      AT(gradient_max), 0, 0 },
    { "limits", "gradient-over", SETTING_CHOICE, "refuse|clip", "refuse",
      "a push with a gradient above gradient-max: refuse it, or clip what is above", AT(gradient_over),
      0, 0 },
    { "limits", "compress-replies", SETTING_FLAG, "", "no",
      "zstd on the answers to pulls, for networks slower than a core compresses",
      AT(compress_replies), 0, 0 },
    { "limits", "drop-learning", SETTING_FLAG, "", "no",
      "keep nothing of what workers report of their learning, which a psd of before November 27, 2026 cannot read",
      AT(drop_learning), 0, 0 },

    { "standby", "standby", SETTING_TEXT, "HOST:PORT", "",
      "follow the psd there: copy its data, and all that changes, until psctl promote makes this one the primary; "
      "needs a data-dir, and the primary's settings. Applied until then: a promoted psd goes on as the primary",
      AT(standby), 0, 0 },
    { "standby", "coord", SETTING_TEXT, "URL", "",
      "etcd says who is the primary, and a standby in sync takes over by itself: "
      "etcd://HOST:PORT[,HOST:PORT...]/CLUSTER, the same at both psd",
      AT(coord), 0, 0 },
    { "standby", "coord-ca", SETTING_TEXT, "FILE", "",
      "ask etcd over TLS, and trust the certificates that this file signs; empty: plain HTTP", AT(coord_ca), 0, 0 },
    { "standby", "coord-cert", SETTING_TEXT, "FILE", "",
      "this psd's own certificate for etcd; needs coord-key", AT(coord_cert), 0, 0 },
    { "standby", "coord-key", SETTING_TEXT, "FILE", "", "the key of coord-cert", AT(coord_key), 0, 0 },
    { "standby", "coord-user", SETTING_TEXT, "NAME", "",
      "etcd's user; needs coord-password-file", AT(coord_user), 0, 0 },
    { "standby", "coord-password-file", SETTING_TEXT, "FILE", "",
      "the file with the user's password", AT(coord_password_file), 0, 0 },
    { "standby", "failover-after", SETTING_MS, "TIME", "700ms",
      "with coord: a standby takes over once its primary is silent for so long; at once if no process listens there",
      AT(failover_after_ms), 600, DAY_MS },
    { "standby", "standby-ack", SETTING_CHOICE, "no|got|disk", "got",
      "what a standby has done with a push before this node acknowledges it: nothing, received it, or synced it; "
      "only while it is in sync",
      AT(standby_ack), 0, 0 },
    { "standby", "standby-patience", SETTING_MS, "TIME", "1s",
      "replies wait so long for a standby that is silent; then it is out of sync, and no reply waits for it",
      AT(standby_patience_ms), 50, DAY_MS },
    { "standby", "standby-log-max", SETTING_BYTES, "BYTES", "8G",
      "the write-ahead logs keep so much for a standby that is away; one that comes later copies all anew",
      AT(standby_log_max_bytes), 1 << 20, UINT64_C(1) << 50 },

    { "data", "data-dir", SETTING_TEXT, "DIR", "",
      "checkpoints, the write-ahead logs, and a lock against a second psd; empty: nothing is kept",
      AT(data_dir), 0, 0 },
    { "data", "durability", SETTING_TEXT, "MODE", "async",
      "when a push is acknowledged: fsync: once the write-ahead log has it on the disk; async: at once, and a "
      "power cut loses at most log-interval and one sync; none: at once, and the log is never synced",
      AT(durability_name), 0, 0 },
    { "data", "log-interval", SETTING_MS, "TIME", "1s",
      "durability async: a push is on the disk after this time at the latest",
      AT(log_interval_ms), 1, DAY_MS },
    { "data", "log-max", SETTING_BYTES, "BYTES", "8G",
      "a checkpoint is taken when the write-ahead logs of this node have grown by so much since the last",
      AT(log_max_bytes), 1 << 20, UINT64_C(1) << 50 },
    { "data", "checkpoint-every", SETTING_MS, "TIME", "0s",
      "0: only when the write-ahead log is long, on SIGTERM and on request", AT(checkpoint_every_ms), 0,
      WEEK_MS },
    { "data", "checkpoint-deltas", SETTING_U32, "N", "8",
      "checkpoints in a row that hold only the rows changed since the one before; then a full one",
      AT(checkpoint_deltas), 0, CHECKPOINT_CHAIN_MAX - 1 },
    { "data", "checkpoint-rate", SETTING_BYTES, "BYTES", "256M",
      "bytes a second that a checkpoint writes at most while this node serves; 0: no limit",
      AT(checkpoint_bytes_per_s), 0, UINT64_C(1) << 40 },
    { "data", "keep", SETTING_U32, "N", "3",
      "newest checkpoints that are kept, with the older ones that they need; others are removed; archived ones "
      "(NUMBER.aside) are removed by psctl prune only",
      AT(keep), 1, 1000000 },
    { "data", "cut-every", SETTING_U32, "STEPS", "1000",
      "steps between two sync points of a bounded-staleness job: all workers wait there for the slowest, and "
      "`--at JOB:CLOCK` is exact; needs a data-dir; the same on every node; 0: none",
      AT(cut_every), 0, 1000000000 },
    { "data", "scrub-every", SETTING_MS, "TIME", "168h",
      "time between two scrubs: psd slowly reads its checkpoints and write-ahead logs and logs damage; 0: never",
      AT(scrub_every_ms), 0, 52 * WEEK_MS },
    { "data", "restore", SETTING_LIST, "DIR", "",
      "start from these data or checkpoint directories, one of every node that wrote them; "
      "default: data-dir; applied once, see at",
      AT(restore), 0, 0 },
    { "data", "at", SETTING_TEXT, "STATE", "",
      "start from an older state. NUMBER: a checkpoint. JOB:CLOCK: the state after so many steps of the job (exact in "
      "lock step and at sync points). intact: the newest state that can be read. Newer checkpoints are archived. "
      "Applied once: a restart with the same at, restore and no-restore continues from the node's own data; after a "
      "start without them they apply again",
      AT(at), 0, 0 },
    { "data", "no-restore", SETTING_FLAG, "", "no",
      "start with no tables; the checkpoints in data-dir are archived (NUMBER.aside) until psctl prune removes them; "
      "applied once, see at",
      AT(no_restore), 0, 0 },
};
/* clang-format on */

const struct settings_table settings_psd = {
    .program = "psd",
    .usage = "psd --dev | --config FILE | --listen HOST:PORT [options]",
    .about = "The parameter server: keeps the tables of training jobs, applies the optimizer "
             "where a row lives, "
             "and holds workers to the staleness that their job allows. One process is one "
             "node; each of its "
             "shards is a thread.",
    .rows = rows,
    .n_rows = COUNT_OF(rows),
};

static void choose(char *setting, const char *otherwise)
{
    if (!setting[0])
        snprintf(setting, SETTINGS_TEXT_MAX, "%s", otherwise);
}

static int check_address(const char *name, const char *text, struct err *err)
{
    struct address ignored;

    return text[0] ? address_parse_listen(name, text, &ignored, err) : 0;
}

static int check_addresses(const struct settings *s, struct err *err)
{
    int status = check_address("listen", s->listen, err);

    if (!status)
        status = check_address("advertise", s->advertise, err);
    if (!status)
        status = check_address("http", s->http, err);
    for (uint32_t i = 0; i < s->cluster.n && !status; i++)
        status = check_address("cluster", s->cluster.items[i], err);
    return status;
}

static int check_token_length(const char *setting, const char *token, struct err *err)
{
    size_t n_bytes = strlen(token);

    return n_bytes >= TOKEN_FILE_MIN && n_bytes <= TOKEN_BYTES_MAX
               ? 0
               : err_set(err, PS_ESETTING,
                         "%s: found %zu bytes, expected one line of %u to %zu characters",
                         setting, n_bytes, TOKEN_FILE_MIN, TOKEN_BYTES_MAX);
}

/* One that stands in the settings themselves: without the blanks behind it, as in a file. */
static int trim_token(char *token, struct err *err)
{
    size_t n_bytes = strlen(token);

    while (n_bytes && strchr("\r\n\t ", token[n_bytes - 1]))
        token[--n_bytes] = '\0';
    return check_token_length("token", token, err);
}

static int read_token(struct settings *s, struct err *err)
{
    if (!s->token_file[0])
        return s->token[0] ? trim_token(s->token, err) : 0;
    if (s->token[0])
        return err_set(err, PS_ESETTING,
                       "token and token-file: both are given, expected one of them");
    if (token_file_read_roles(&file_os, s->token_file, s->token, &s->tokens, err))
        return PS_ESETTING;
    if (s->tokens.n)
        return 0;
    return check_token_length("token-file", s->token, err);
}

/* A name that has no address is for who listens there to report. */
static bool is_for_others(const char *setting, const char *address)
{
    struct sockaddr_storage at;
    struct err ignored;

    return address[0] && !address_resolve(setting, address, &at, &ignored) &&
           !address_is_loopback((const struct sockaddr *)&at);
}

static bool has_token(const struct settings *s)
{
    return s->token[0] || s->tokens.n;
}

/* Who reaches a port without a token owns the tables, or can read what psd says of all jobs. */
static int check_addresses_are_guarded(const struct settings *s, struct err *err)
{
    if (has_token(s) || s->tls || s->insecure)
        return 0;
    if (is_for_others("listen", s->listen))
        return err_set(
            err, PS_ESETTING,
            "listen: other machines reach %.100s, and there is no token and no TLS: give "
            "token-file, or tls, or listen on 127.0.0.1, or say insecure if everybody there "
            "may "
            "read and change all tables",
            s->listen);
    if (is_for_others("http", s->http))
        return err_set(
            err, PS_ESETTING,
            "http: other machines reach %.100s, and there is no token and no TLS: give "
            "token-file, or tls, or an address of 127.0.0.1, or say insecure if everybody "
            "there "
            "may read names, addresses and figures of all jobs",
            s->http);
    return 0;
}

bool settings_pages_want_role(const struct settings *s)
{
    return s->tls || (has_token(s) && !s->insecure && is_for_others("http", s->http));
}

/* Certificates of clients are asked for, unless a token can take their place. */
static int open_tls(struct settings *s, struct err *err)
{
    const bool is_named = s->tls_ca[0] || s->tls_cert[0] || s->tls_key[0];
    int status;

    if (!s->tls_mode)
        return is_named ? err_set(err, PS_ESETTING,
                                  "tls: it is off, and there are tls-ca, tls-cert or tls-key: "
                                  "say tls on")
                        : 0;
    if (!s->tls_ca[0] || !s->tls_cert[0] || !s->tls_key[0])
        return err_set(err, PS_ESETTING, "tls: it needs tls-ca, tls-cert and tls-key");
    status = tls_context_new(
        &(struct tls_files){ s->tls_ca, s->tls_cert, s->tls_key, .is_node = true }, &s->tls,
        err);
    if (!status)
        tls_context_set_needs_certificate(s->tls, !has_token(s));
    return status;
}

static int read_durability(struct settings *s, struct err *err)
{
    static const char *const names[] = { "none", "async", "fsync" };

    for (int i = 0; i < 3; i++)
        if (strcmp(s->durability_name, names[i]) == 0) {
            s->durability = (enum wal_durability)i;
            return 0;
        }
    return err_set(err, PS_ESETTING,
                   "durability: found \"%.40s\", expected none, async or fsync",
                   s->durability_name);
}

static int read_at(struct settings *s, struct err *err)
{
    struct recover_shard_at at;
    int status = recover_shard_at_read(s->at, s->at_job, &at, err);

    s->at_number = at.number;
    s->at_clock = at.clock;
    s->at_intact = at.intact;
    return status;
}

#define MEMORY_MAX_LEAST (UINT64_C(1) << 20) /* less is a size without its unit */

static int check_pairs(const struct settings *s, struct err *err)
{
    if (s->memory_max_bytes && s->memory_max_bytes < MEMORY_MAX_LEAST)
        return err_set(err, PS_ESETTING,
                       "memory-max: %" PRIu64
                       " bytes hold no table; expected 1M or more, with its unit, as in %s, or "
                       "0 for no limit",
                       s->memory_max_bytes, s->memory_max_bytes <= 1024 ? "64G" : "64M");
    if (s->memory_max_bytes && s->memory_reserve_bytes > s->memory_max_bytes)
        return err_set(err, PS_ESETTING,
                       "memory-reserve: rows may not have more than memory-max, %" PRIu64
                       " bytes",
                       s->memory_max_bytes);
    if (s->cluster.n > MESSAGE_NODES_MAX)
        return err_set(err, PS_ESETTING, "cluster: found %u nodes, expected at most %u",
                       s->cluster.n, MESSAGE_NODES_MAX);
    if (s->node >= (s->cluster.n ? s->cluster.n : 1))
        return err_set(err, PS_ESETTING, "node: found %u, expected 0 to %u, a line of cluster",
                       s->node, s->cluster.n ? s->cluster.n - 1 : 0);
    if (s->cluster.n && s->shards * s->cluster.n > PLACEMENT_N_SHARDS_MAX)
        return err_set(err, PS_ESETTING,
                       "shards: %u on each of %u nodes are more than the %u of a cluster",
                       s->shards, s->cluster.n, PLACEMENT_N_SHARDS_MAX);
    if (s->client_memory_bytes < s->frame_max_bytes)
        return err_set(err, PS_ESETTING,
                       "client-memory: found %" PRIu64 " bytes, expected at least those of "
                       "frame-max, %" PRIu64,
                       s->client_memory_bytes, s->frame_max_bytes);
    if (s->gradient_max != 0 && !(s->gradient_max >= GRADIENT_MAX_LEAST))
        return err_set(err, PS_ESETTING, "gradient-max: found %g, expected 0, or %u and more",
                       (double)s->gradient_max, GRADIENT_MAX_LEAST);
    if (s->checkpoint_every_ms && !s->data_dir[0])
        return err_set(err, PS_ESETTING, "checkpoint-every: needs a data-dir to write to");
    if (s->no_restore && s->restore.n)
        return err_set(err, PS_ESETTING,
                       "restore and no-restore: both are given, expected one of them");
    if (s->at[0] && s->no_restore)
        return err_set(err, PS_ESETTING,
                       "at and no-restore: both are given, expected one of them");
    if (s->at[0] && !s->data_dir[0] && !s->restore.n)
        return err_set(err, PS_ESETTING, "at: needs a data-dir, or restore, to read from");
    return 0;
}

struct coord_options settings_coord(const struct settings *s)
{
    return (struct coord_options){ .url = s->coord,
                                   .ca_file = s->coord_ca,
                                   .cert_file = s->coord_cert,
                                   .key_file = s->coord_key,
                                   .user = s->coord_user,
                                   .password_file = s->coord_password_file };
}

static int check_readable(const char *name, const char *path, struct err *err)
{
    if (!path[0] || access(path, R_OK) == 0)
        return 0;
    return err_set(err, PS_ESETTING, "%s: %.200s: %s", name, path, strerror(errno));
}

/* What cannot be mended while psd runs: else it would ask for ever. */
static int check_coord(const struct settings *s, struct err *err)
{
    struct err why = { 0 };
    struct etcd_url url;
    const bool has_options = s->coord_ca[0] || s->coord_cert[0] || s->coord_key[0] ||
                             s->coord_user[0] || s->coord_password_file[0];

    if (!s->coord[0])
        return has_options ? err_set(err, PS_ESETTING,
                                     "coord-ca, coord-cert, coord-key, coord-user and "
                                     "coord-password-file need coord")
                           : 0;
    if (etcd_url_parse(s->coord, &url, &why))
        return err_set(err, PS_ESETTING, "coord: %.200s", why.text);
    if (!s->coord_user[0] != !s->coord_password_file[0])
        return err_set(err, PS_ESETTING,
                       "coord-user and coord-password-file: give both, or none");
    if (!s->coord_cert[0] != !s->coord_key[0])
        return err_set(err, PS_ESETTING, "coord-cert and coord-key: give both, or none");
    if (s->coord_cert[0] && !s->coord_ca[0])
        return err_set(err, PS_ESETTING,
                       "coord-cert: is for TLS, which coord-ca asks for: give it, too");
    if (check_readable("coord-ca", s->coord_ca, err) ||
        check_readable("coord-cert", s->coord_cert, err) ||
        check_readable("coord-key", s->coord_key, err) ||
        check_readable("coord-password-file", s->coord_password_file, err))
        return err->status;
    return s->data_dir[0] ? 0 : err_set(err, PS_ESETTING, "coord: needs a data-dir");
}

static int check_standby(const struct settings *s, struct err *err)
{
    struct err why = { 0 };
    struct address primary;

    if (check_coord(s, err))
        return err->status;
    if (s->standby_ack == TERMS_ACK_DISK && s->durability == WAL_NONE)
        return err_set(
            err, PS_ESETTING,
            "standby-ack: disk needs durability async or fsync, as with none nothing is "
            "synced");
    if (!s->standby[0])
        return 0;
    if (address_parse(s->standby, strlen(s->standby), &primary, &why))
        return err_set(err, PS_ESETTING, "standby: %.200s", why.text);
    if (strcmp(s->standby, s->advertise[0] ? s->advertise : s->listen) == 0)
        return err_set(err, PS_ESETTING,
                       "standby: %.200s is this psd's own address: give that of its primary",
                       s->standby);
    if (!s->data_dir[0])
        return err_set(err, PS_ESETTING, "standby: needs a data-dir to copy to");
    if (s->at[0] || s->restore.n || s->no_restore)
        return err_set(err, PS_ESETTING,
                       "standby: its data is the primary's: at, restore and no-restore cannot "
                       "be given with it");
    return 0;
}

static uint64_t default_client_memory(const struct settings *s)
{
    uint64_t there = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE),
             allowed = uv_get_constrained_memory(), least = 4 * s->frame_max_bytes;

    if (allowed && allowed < there)
        there = allowed;
    return there / 8 > least ? there / 8 : least;
}

int settings_complete(struct settings *s, struct err *err)
{
    int status;

    if (s->dev) {
        choose(s->listen, DEV_LISTEN);
        choose(s->http, DEV_HTTP);
        choose(s->data_dir, DEV_DATA_DIR);
    }
    if (!s->data_dir[0])
        s->cut_every = 0; /* nobody would have anything of it */
    if (strcmp(s->http, "off") == 0)
        s->http[0] = '\0';
    if (!s->listen[0])
        return err_set(err, PS_ESETTING,
                       "no address to listen on: type psd --dev to try it on this machine, or "
                       "psd --config FILE, "
                       "or give --listen HOST:PORT");
    s->shards_are_chosen = s->shards == 0;
    if (s->shards == 0) {
        s->shards = uv_available_parallelism();
        if (s->shards > PLACEMENT_N_SHARDS_MAX)
            s->shards = PLACEMENT_N_SHARDS_MAX;
    }
    if (s->client_memory_bytes == 0)
        s->client_memory_bytes = default_client_memory(s);
    status = check_addresses(s, err);
    if (!status)
        status = read_durability(s, err);
    if (!status)
        status = read_at(s, err);
    if (!status)
        status = check_pairs(s, err);
    if (!status)
        status = check_standby(s, err);
    if (!status)
        status = read_token(s, err);
    if (!status)
        status = open_tls(s, err);
    return status ? status : check_addresses_are_guarded(s, err);
}

void settings_shard(const struct settings *s, uint32_t n_shards, struct shard_config *ret)
{
    *ret = (struct shard_config){ .n_shards = n_shards,
                                  .memory_max_bytes = s->memory_max_bytes / s->shards,
                                  /* 0 would be no limit */
                                  .deltas_max_bytes = s->deltas_max_bytes / s->shards + 1,
                                  .lease_ms = (uint32_t)s->lease_ms,
                                  .join_ms = (uint32_t)s->join_timeout_ms,
                                  .park_ms = (uint32_t)s->park_max_ms,
                                  .tables_max = s->tables_max,
                                  .sync_steps = s->cut_every,
                                  .gradient_max = s->gradient_max,
                                  .clip_gradients = s->gradient_over == 1,
                                  .drops_learning = s->drop_learning };
}
