/*
 * A pull through the handle's row_cache. Its keys are looked up, a batch at a time (struct cached_lookup). If one is
 * missing, a struct cached_pull gathers those that are, and is pulled in place of what the caller asked for; at its end
 * the rows go to the caller's arrays and into the cache.
 *
 * The bound holds when psd_wait() ends: rows of the cache that have become too old while the others were under way are
 * not handed out. The pull then begins once more, as a pull of all its keys (`is_whole`).
 */
#ifndef WORKER_LIBPSD_CACHED_PULL_H
#define WORKER_LIBPSD_CACHED_PULL_H

#include "worker/libpsd/handle.h"

/* Looks keys up, in their order. Rows that are found are copied to the sections' dsts. */
struct cached_lookup {
    psd *c;
    const struct ps_pull_section *sections; /* borrowed */
    uint32_t n;
    uint64_t now_ns,
        oldest_ns; /* oldest_ns: when the oldest row that was found was asked for */
    uint64_t n_keys, n_missing; /* of all sections; so far */

    /* The last batch: keys[from .. from + n_batch) of a section, and those that are missing as bits. */
    uint32_t section, from, n_batch;
    uint64_t missing;
};

/* The sections have been checked. */
void cached_lookup_start(struct cached_lookup *lookup, psd *c,
                         const struct ps_pull_section *sections, uint32_t n);

/* Looks on, up to the end of the first batch with a missing key. False: there is no more. */
bool cached_lookup_next(struct cached_lookup *lookup);

/* True if a row that was found has become too old while the others were looked up. The clock is asked where that may be
 * so: it costs as much as a key. */
bool cached_lookup_took_too_long(struct cached_lookup *lookup);

/* Counts its keys, which all were found, and are handed out now. */
void cached_lookup_count(const struct cached_lookup *lookup);

struct cached_miss; /* the missing keys of one section */

/* A slot's; its memory stays for the slot's next pull. Zeroed at first. */
struct cached_pull {
    struct ps_pull_section *asked; /* what the caller asked for */
    uint32_t n_asked, n_misses;
    struct cached_miss *misses;
    uint64_t *keys;            /* that are missing */
    uint32_t *indices;         /* of them, in their sections */
    float *rows;               /* of them */
    uint8_t *presences;        /* likewise */
    void *memory, *row_memory; /* owned: of the arrays above */
    size_t n_memory, n_row_memory;

    uint64_t sent_ns, oldest_ns;
    uint64_t n_keys, n_missing; /* of all that was asked for */
    bool is_whole;              /* all keys are under way */
};

/* The look has found that a key is missing: looks on to its end. ret_sections [look->n] are to be pulled. -ENOMEM. */
int cached_pull_start(struct cached_pull *p, struct cached_lookup *lookup,
                      struct ps_pull_section *ret_sections, uint32_t *ret_n, struct err *err)
    MUST_CHECK;

/* All keys are to be pulled: p->asked. -ENOMEM. */
int cached_pull_start_whole(struct cached_pull *p, const struct ps_pull_section *sections,
                            uint32_t n, struct err *err) MUST_CHECK;

/* The rows have come. False: the caller's arrays are filled, and the keys counted. True: p->asked is to be pulled. */
bool cached_pull_end(struct cached_pull *p, psd *c);

void cached_pull_deinit(struct cached_pull *p);

#endif
