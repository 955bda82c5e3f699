#include "server/standby_settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/address.h"
#include "common/number.h"

void standby_settings_shared(const struct settings *s, char ret[static CLAIM_SETTINGS_MAX])
{
    snprintf(ret, CLAIM_SETTINGS_MAX,
             "cut-every=%" PRIu32 " lease=%" PRIu64 "ms join-timeout=%" PRIu64
             "ms frame-max=%" PRIu64 " gradient-max=%.9g gradient-over=%d tables-max=%" PRIu32,
             s->cut_every, s->lease_ms, s->join_timeout_ms, s->frame_max_bytes,
             (double)s->gradient_max, s->gradient_over, s->tables_max);
}

void standby_settings_text(const struct settings *s, const struct hello_reply *map,
                           char ret[static MESSAGE_SETTINGS_MAX])
{
    /* A cluster of one node has the node's address in its map, and the standby's is another. */
    const uint64_t map_id = map->n_nodes > 1 ? map->map_id : 0;
    const char *cluster =
        strrchr(s->coord, '/'); /* of the service, whichever of its hosts are named */
    char shared[CLAIM_SETTINGS_MAX];

    standby_settings_shared(s, shared);
    snprintf(ret, MESSAGE_SETTINGS_MAX,
             "shards=%" PRIu32 " node=%" PRIu32 " cluster=%016" PRIx64 " %s%s%.100s", s->shards,
             map->node, map_id, shared, cluster ? " coord=" : "", cluster ? cluster + 1 : "");
}

bool standby_settings_arithmetic_differs(const char *primary, const char *standby,
                                         char ret[static STANDBY_SETTINGS_NOTE_MAX])
{
    if (!primary[0] || !standby[0] || strcmp(primary, standby) == 0)
        return false;
    snprintf(ret, STANDBY_SETTINGS_NOTE_MAX,
             "the primary computes as %.40s, the standby as %.40s: rows may come to differ in "
             "their last bits, and the standby copies anew then",
             primary, standby);
    return true;
}

/* The length of the word at `text`; the one behind it begins at *ret_next. */
static size_t word(const char *text, const char **ret_next)
{
    const size_t n = strcspn(text, " ");

    *ret_next = text + n + strspn(text + n, " ");
    return n;
}

/* What is compared of the list of nodes says nothing to a person. */
static bool is_cluster(const char *setting)
{
    static const char cluster[] = "cluster=";

    return strncmp(setting, cluster, sizeof cluster - 1) == 0;
}

static int refuse_setting(const char *primary, size_t primary_bytes, const char *standby,
                          size_t standby_bytes, struct err *err)
{
    char theirs[CLAIM_SETTING_MAX], ours[CLAIM_SETTING_MAX];

    if (is_cluster(primary) && is_cluster(standby))
        return err_set(err, PS_ECLUSTER,
                       "the standby's list of nodes is not the primary's: give both the same "
                       "--cluster");
    claim_write_setting(standby, standby_bytes, theirs);
    claim_write_setting(primary, primary_bytes, ours);
    return err_set(err, PS_ECLUSTER,
                   "the standby has %.80s, the primary %.80s: give both the same settings",
                   theirs, ours);
}

/* 0, or PS_ECLUSTER with a sentence that names the first one that differs. */
static int compare(const char *primary, const char *standby, struct err *err)
{
    while (*primary || *standby) {
        const char *next_primary, *next_standby;
        const size_t a = word(primary, &next_primary), b = word(standby, &next_standby);

        if (!a || !b) /* of another version: as it is compared */
            return err_set(err, PS_ECLUSTER,
                           "the %s has %.*s, and the %s has none: give both the same settings",
                           b ? "standby" : "primary", (int)(a + b), b ? standby : primary,
                           b ? "primary" : "standby");
        if (a != b || memcmp(primary, standby, a) != 0)
            return refuse_setting(primary, a, standby, b, err);
        primary = next_primary;
        standby = next_standby;
    }
    return 0;
}

int standby_settings_check(const struct settings *s, const struct hello_reply *map,
                           const struct follow *asked, struct err *err)
{
    char ours[MESSAGE_SETTINGS_MAX];
    struct address address;
    int status;

    if (address_parse(asked->address, strlen(asked->address), &address, NULL))
        return err_set(err, PS_EPROTO,
                       "a standby says under which address it listens, and \"%.60s\" is none",
                       asked->address);
    if (asked->n_shards != s->shards)
        return err_set(
            err, PS_ECLUSTER,
            "the standby has %u shard%s, the primary %u: give both the same --shards",
            asked->n_shards, NUMBER_PLURAL(asked->n_shards), s->shards);
    standby_settings_text(s, map, ours);
    status = compare(ours, asked->settings, err);
    if (status)
        return status;
    if (asked->memory_max &&
        (!s->memory_max_bytes || asked->memory_max < s->memory_max_bytes)) {
        char theirs[NUMBER_TEXT_MAX], own[NUMBER_TEXT_MAX];

        number_write_bytes(asked->memory_max, theirs);
        number_write_bytes(s->memory_max_bytes, own);
        return err_set(err, PS_ECLUSTER,
                       "the standby has --memory-max %s, the primary %s%s: it could not hold "
                       "the primary's rows",
                       theirs, own, s->memory_max_bytes ? "" : " (no limit)");
    }
    return 0;
}
