/*
 * A column of one row group, page by page: its levels, and the values or dictionary numbers that go with them.
 *
 *     levels    an entry has a value if def == def_max, and begins a row if rep == 0 (always, if the column is no LIST)
 *     values    of the entries that were taken, in the same order: parquet_column_numbers() while the page has numbers
 *               of the dictionary, else parquet_column_values()
 *
 *     dictionary page | data page, version 1 or 2 | data page | ...
 *
 * At most one page of the column is in memory, packed and unpacked, and its dictionary. A page's size is believed only
 * as far as its packed bytes can hold as much (parquet_codec_unpacked_max()), and up to PARQUET_PAGE_MAX.
 */
#ifndef WORKER_DATA_PARQUET_COLUMN_H
#define WORKER_DATA_PARQUET_COLUMN_H

#include "worker/data/parquet_decoder.h"

#define PARQUET_PAGE_MAX (256u * 1024u * 1024u)
#define PARQUET_LEVELS_MAX 512u /* that are decoded at once */

struct parquet_column {
    const struct parquet_file *file;        /* borrowed */
    const struct parquet_file_column *type; /* borrowed */
    struct parquet_file_chunk chunk;        /* what of it was not read yet */
    uint64_t n_entries_left;                /* of the chunk's pages that were not begun */
    struct bytes packed;                    /* owned; read from the chunk, and not used yet */
    size_t page_bytes;                      /* of its front: the page at hand */
    struct bytes page;                      /* owned; unpacked */
    struct parquet_rle reps, defs, numbers;
    struct parquet_decoder decoder;
    uint64_t n_left;              /* entries of the page at hand */
    bool has_numbers;             /* its values are numbers of dictionary entries */
    bool begun;                   /* a chunk */
    struct bytes dictionary_page; /* owned */
    uint32_t n_dictionary;
    void *dictionary;       /* owned, [n_dictionary] of what struct parquet_values points to */
    uint64_t dictionary_id; /* another one for each */
    /* Entries decoded, and those taken; a column without levels has none here. */
    uint32_t n_levels, level_at;
    uint32_t rep[PARQUET_LEVELS_MAX], def[PARQUET_LEVELS_MAX];
};

void parquet_column_init(struct parquet_column *c, const struct parquet_file *file,
                         const struct parquet_file_column *type);
void parquet_column_deinit(struct parquet_column *c);

/* Begins a row group. */
void parquet_column_begin(struct parquet_column *c, const struct parquet_file_chunk *chunk);

/*
 * Up to n_max entries of the page at hand, or of the next one; 0 at the chunk's end. *ret_def: their levels, borrowed,
 * or NULL if all of them have a value; *ret_rep: likewise, NULL if each begins a row. They are taken by
 * parquet_column_take(), maybe fewer of them, before the next call. PS_EDATA, -ENOMEM, a negative errno.
 */
int parquet_column_levels(struct parquet_column *c, uint32_t n_max, const uint32_t **ret_rep,
                          const uint32_t **ret_def, uint32_t *ret_n, struct err *err)
    MUST_CHECK;
void parquet_column_take(struct parquet_column *c, uint32_t n);

/* Numbers of dictionary entries, all of them less than n_dictionary. */
int parquet_column_numbers(struct parquet_column *c, uint32_t *dst, uint32_t n, struct err *err)
    MUST_CHECK;

/* As parquet_decoder_read(). */
int parquet_column_values(struct parquet_column *c, uint32_t n_max, struct parquet_values *to,
                          struct err *err) MUST_CHECK;

/* The dictionary's entries first .. first + n - 1; borrowed. */
void parquet_column_dictionary(const struct parquet_column *c, uint32_t first, uint32_t n,
                               struct parquet_values *to);

/* Passes the next n rows; pages of nothing else are not unpacked. scratch: for PARQUET_VALUES_MAX values. */
int parquet_column_skip(struct parquet_column *c, uint64_t n_rows,
                        struct parquet_values *scratch, struct err *err) MUST_CHECK;

#endif
