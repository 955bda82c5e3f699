/*
 * All settings of psd, as one value. settings.c holds the table from which
 * the command line, the file, --help and the sample are made.
 */
#ifndef SERVER_SETTINGS_H
#define SERVER_SETTINGS_H

#include <stdbool.h>
#include <uv.h>

#include "common/settings.h"
#include "common/tls.h"
#include "common/token_file.h"
#include "proto/table_spec.h"
#include "server/cluster/coord.h"
#include "server/core/shard.h"
#include "server/wal/wal_queue.h"

struct settings {
    bool dev;
    char listen[SETTINGS_TEXT_MAX], advertise[SETTINGS_TEXT_MAX], http[SETTINGS_TEXT_MAX];
    struct setting_list cluster, http_hosts;
    uint32_t node, shards;
    bool shards_are_chosen; /* after settings_complete(): the number was not set */
    char token_file[SETTINGS_TEXT_MAX];
    char token[SETTINGS_TEXT_MAX]; /* after settings_complete(): the token itself */
    struct token_list tokens;      /* after it: of each role, where the file has roles */
    bool insecure; /* neither token nor TLS, and an address that other machines reach */
    int tls_mode;  /* 0: off, 1: on */
    char tls_ca[SETTINGS_TEXT_MAX], tls_cert[SETTINGS_TEXT_MAX], tls_key[SETTINGS_TEXT_MAX];
    struct tls_context *tls; /* owned: of these files, after settings_complete(); NULL: off */
    uint64_t memory_max_bytes, memory_reserve_bytes, frame_max_bytes, client_memory_bytes,
        deltas_max_bytes;
    uint32_t connections_max, address_connections_max, tables_max, metrics_tables;
    uint64_t lease_ms, join_timeout_ms, park_max_ms, frame_timeout_ms, handshake_timeout_ms,
        idle_timeout_ms;
    float gradient_max;
    int gradient_over; /* 0: refuse, 1: clip */
    bool compress_replies, drop_learning;
    char data_dir[SETTINGS_TEXT_MAX];
    char durability_name[SETTINGS_TEXT_MAX];
    enum wal_durability durability; /* after settings_complete(), like at_* */
    uint64_t log_interval_ms, log_max_bytes;
    uint64_t checkpoint_every_ms, checkpoint_bytes_per_s;
    uint32_t checkpoint_deltas, keep;
    uint32_t cut_every; /* steps */
    uint64_t scrub_every_ms;
    char standby[SETTINGS_TEXT_MAX];
    char coord[SETTINGS_TEXT_MAX];
    /* main()'s: the service that coord names. NULL in programs without one. */
    coord_open *open_coord;
    char coord_ca[SETTINGS_TEXT_MAX], coord_cert[SETTINGS_TEXT_MAX],
        coord_key[SETTINGS_TEXT_MAX];
    char coord_user[SETTINGS_TEXT_MAX], coord_password_file[SETTINGS_TEXT_MAX];
    uint64_t failover_after_ms;
    int standby_ack; /* enum terms_ack */
    uint64_t standby_patience_ms, standby_log_max_bytes;
    struct setting_list restore;
    char at[SETTINGS_TEXT_MAX];
    uint64_t at_number;               /* of a checkpoint; 0: none is named */
    char at_job[TABLE_SPEC_NAME_MAX]; /* "": none is named */
    uint64_t at_clock;
    bool at_intact;
    bool no_restore;
    char log_line_level[SETTINGS_TEXT_MAX];
};

extern const struct settings_table settings_psd;

/*
 * Completes and checks settings beyond the table. Fills in the values that --dev and the machine choose for unset
 * ones, reads the token file, and checks addresses and settings that belong together. PS_ESETTING with a sentence.
 */
int settings_complete(struct settings *s, struct err *err) MUST_CHECK;

/* Whether who reads the stats pages shows a certificate or a token (server/admin/http_access.h). */
bool settings_pages_want_role(const struct settings *s);

/* Where --coord is. Borrows the settings' texts. */
struct coord_options settings_coord(const struct settings *s);

/* Each shard's configuration, but for its number. n_shards: of the cluster. */
void settings_shard(const struct settings *s, uint32_t n_shards, struct shard_config *ret);

#endif
