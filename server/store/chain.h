/*
 * The files of one shard in a restore point (checkpoint.h), read one after another: the full one, then
 * each delta on it, the newest last. Each is held against its manifest, and each delta against what it is
 * a delta to.
 */
#ifndef SERVER_STORE_CHAIN_H
#define SERVER_STORE_CHAIN_H

#include "server/store/checkpoint.h"
#include "server/store/part_read.h"

/* Who is shown what is read. Anything but 0, with a sentence set, ends the reading. */
struct chain_visitor {
    void *owner; /* borrowed */
    /* A file begins: header and tables are there. n_behind: so many files come behind it. */
    int (*on_file)(void *owner, const struct part_reader *r, uint32_t n_behind);
    int (*on_piece)(void *owner, const struct part_reader *r, const struct part_piece *piece);
};

/* How many files file i is put together of; 1: it is full. */
uint32_t chain_length(const struct checkpoint *c, uint32_t i);

/* The heads alone: are the files there, and those that the manifests say? */
int chain_check(const struct file_ops *files, const struct checkpoint *c, uint32_t i,
                struct err *err) MUST_CHECK;

/* All of it. ret_facts (NULL is fine): the newest file's. What was shown counts only when 0 is returned. */
int chain_read(const struct file_ops *files, const struct checkpoint *c, uint32_t i,
               const struct chain_visitor *visitor, struct part_facts *ret_facts,
               struct err *err) MUST_CHECK;

/* The same of one file of the chain, number 0 being the newest: for who has read the others. */
int chain_read_link(const struct file_ops *files, const struct checkpoint *c, uint32_t i,
                    uint32_t link, const struct chain_visitor *visitor,
                    struct part_facts *ret_facts, struct err *err) MUST_CHECK;

#endif
