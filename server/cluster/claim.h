/*
 * What the coordination service (coord.h) has about a cluster:
 *
 *     config           what all nodes share: how many they are, how many shards each has, settings that shape the state
 *     groups/NUMBER    of each node: which psd is its primary, under which term, and which one may take over
 *
 * A value is one line of JSON as these functions write it. Anything else is nobody's, and is never written over.
 */
#ifndef SERVER_CLUSTER_CLAIM_H
#define SERVER_CLUSTER_CLAIM_H

#include <stdbool.h>

#include "common/status.h"

#define CLAIM_ADDRESS_MAX 128u /* MESSAGE_ADDRESS_MAX */
#define CLAIM_TAKEOVERS_MAX 9u
#define CLAIM_TAKEOVERS_MS UINT64_C(600000) /* those of so long ago count; */
#define CLAIM_TAKEOVERS_MANY 3u             /* so many of them double the patience */
#define CLAIM_KEY_MAX 32u
#define CLAIM_VALUE_MAX 768u    /* with NUL */
#define CLAIM_SETTINGS_MAX 320u /* with NUL */
#define CLAIM_CONFIG_KEY "config"

/* Who writes: in each value, so that no other writer's is equal. */
struct claim_writer {
    uint64_t id; /* random */
    uint64_t n;  /* of its values */
};

struct claim {
    uint64_t term, history;
    char primary[CLAIM_ADDRESS_MAX], standby[CLAIM_ADDRESS_MAX]; /* standby "": none */
    bool in_sync; /* the standby has all that was acknowledged, and may take over */
    /* The terms that a standby has begun by itself: the last of them, oldest first. */
    uint32_t n_takeovers;
    uint64_t takeovers[CLAIM_TAKEOVERS_MAX];
    struct claim_writer writer; /* as it was read */
};

void claim_key(uint32_t group, char dst[static CLAIM_KEY_MAX]);
void claim_print(const struct claim *c, const struct claim_writer *writer,
                 char dst[static CLAIM_VALUE_MAX]);

/* -EINVAL: it is no claim. */
int claim_read(const char *text, struct claim *ret) MUST_CHECK;

/* `c` was written after `before`, which the same psd has written, or one of an earlier term. */
bool claim_is_newer(const struct claim *c, const struct claim *before);

void claim_add_takeover(struct claim *c, uint64_t term);

/* When this psd has seen the takeovers of a claim, by its own monotonic clock: the time of day decides nothing. One
 * that starts counts what it finds as new, for as long as any other; whoever writes a claim drops those that it does
 * not count any more. Zeroed: none. */
struct claim_takeovers {
    uint32_t n;
    uint64_t terms[CLAIM_TAKEOVERS_MAX], seen_ms[CLAIM_TAKEOVERS_MAX];
};

/* As the claim has them now; true if one is new. */
bool claim_takeovers_note(struct claim_takeovers *t, const struct claim *c, uint64_t now_ms);

/* How many of them count. */
uint32_t claim_takeovers_count(const struct claim_takeovers *t, uint64_t now_ms);

/* Adds those that count. */
void claim_takeovers_keep(const struct claim_takeovers *t, uint64_t now_ms, struct claim *c);

struct claim_config {
    uint32_t n_nodes, n_shards;        /* n_shards: of each node */
    char settings[CLAIM_SETTINGS_MAX]; /* "name=value name=value" */
};

void claim_config_print(const struct claim_config *c, char dst[static CLAIM_VALUE_MAX]);
int claim_config_read(const char *text, struct claim_config *ret) MUST_CHECK;

#define CLAIM_SETTING_MAX 160u

/* The n_bytes of one of these settings as an operator writes it: what is compared has numbers in another form. */
void claim_write_setting(const char *setting, size_t n_bytes,
                         char dst[static CLAIM_SETTING_MAX]);

/* PS_ECLUSTER, and a sentence that names the first difference: `ours` is not of the cluster that has `theirs`. Settings
 * that only one of both knows are passed over, so that versions may differ. */
int claim_config_compare(const struct claim_config *theirs, const struct claim_config *ours,
                         struct err *err) MUST_CHECK;

#endif
