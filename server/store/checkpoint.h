/*
 * Checkpoints: each shard's state as one file (part.h); the node's manifest, renamed into place last,
 * says that all of them are whole. README.md gives the formats as byte tables.
 *
 *     DATA_DIR/checkpoints/NUMBER/shard-III.psc   one per shard of this node
 *     DATA_DIR/checkpoints/NUMBER/MANIFEST        JSON
 *
 * NUMBER is 20 digits, greater than any that was ever there. A directory without a manifest is
 * no checkpoint. A file is full, or a delta to the same shard's file in the checkpoint `base`:
 *
 *     1 full <- 2 delta <- 3 delta     4 full <- 5 delta     ...
 *
 * A restore point is a checkpoint with all that its deltas need. Who writes one:
 *
 *     checkpoint_next     a number, its directory           any thread, nothing else under way here
 *     saver_*             each shard's file                 server/durable/saver.h
 *     checkpoint_commit   when each shard's log is durable through its file's `through`
 *
 * and who starts from one:
 *
 *     checkpoint_find     the newest; loader_load() of each shard (server/durable/loader.h); where that finds
 *                         damage, checkpoint_find() with what is below it, and new shards
 */
#ifndef SERVER_STORE_CHECKPOINT_H
#define SERVER_STORE_CHECKPOINT_H

#include "common/file.h"
#include "common/status.h"
#include "server/store/manifest.h"

#define CHECKPOINT_PATH_MAX 1024u
#define CHECKPOINT_FILE_PATH_MAX (CHECKPOINT_PATH_MAX + MANIFEST_NAME_MAX)
#define CHECKPOINT_CHAIN_MAX \
    64u /* checkpoints of a restore point; a writer makes a full one before */

/* A restore point. */
struct checkpoint {
    char dir[CHECKPOINT_PATH_MAX]; /* of links[0] */
    uint32_t n_links;
    struct manifest
        *links; /* owned, n_links: the checkpoint itself, its base, that one's base ... */
};

/* The number that a new checkpoint in this data directory gets. Makes the directories, and
 * removes those of checkpoints that were not finished: none may be under way here. */
int checkpoint_next(const struct file_ops *files, const char *data_dir, uint64_t *ret_number,
                    struct err *err) MUST_CHECK;

/* The same, above `floor`, too. */
int checkpoint_next_above(const struct file_ops *files, const char *data_dir, uint64_t floor,
                          uint64_t *ret_number, struct err *err) MUST_CHECK;

/* Of a shard's file. */
int checkpoint_file_path(const char *data_dir, uint64_t number, uint32_t shard_index,
                         char ret[static CHECKPOINT_FILE_PATH_MAX], struct err *err) MUST_CHECK;

/*
 * After all shards: writes, syncs and renames the manifest, then removes all but the newest
 * `keep` restore points (CHECKPOINT_KEEP_ALL: none); a checkpoint that one of these needs stays, too. What cannot be removed does not fail it, and is
 * tried again after the next one. A failure may come after the rename: then the new checkpoint or the one before is
 * the newest, and both are whole.
 *
 * A delta whose base is not there any more is refused (-ENOENT, PS_ECORRUPT), as is one that makes a chain of
 * more than CHECKPOINT_CHAIN_MAX (-EINVAL): the next one has to be full.
 *
 * ret_firsts (may be NULL): for each of m->n_files shards the smallest `first` of the restore points that are
 * there: its log may be cut at the record behind it. 0: it may not be cut, as while there are fewer than `keep`:
 * then the state in which the log begins is one of those that can be gone back to.
 */
#define CHECKPOINT_KEEP_ALL UINT32_MAX
int checkpoint_commit(const struct file_ops *files, const char *data_dir,
                      const struct manifest *m, uint32_t keep, uint64_t *ret_firsts,
                      struct err *err) MUST_CHECK;

/* A process that died between a manifest's rename and its sync leaves a name that the next one reads and a power
 * cut takes away: whoever lets anything stand on a checkpoint that he has read (a delta, a log that goes on from it) makes
 * it safe first. */
int checkpoint_sync(const struct file_ops *files, const char *data_dir, uint64_t number,
                    struct err *err) MUST_CHECK;

/* The newest restore point below number `below` (0: of all) whose manifests are valid; its files are
 * opened as far as their heads, and hold what these say only once they are read to their ends (loader.h, checkpoint_verify()). One
 * that is damaged, or lacks a link, is told to `report` (may be NULL) and skipped. PS_ENOCHECKPOINT when there
 * is none, PS_ECORRUPT when there are some and all are damaged (starting empty would hide a loss). */
int checkpoint_find(const struct file_ops *files, const char *data_dir, uint64_t below,
                    struct checkpoint *ret, void (*report)(void *, const char *sentence),
                    void *arg, struct err *err) MUST_CHECK;

/* Of that number alone, also where it was set aside. */
int checkpoint_find_numbered(const struct file_ops *files, const char *data_dir,
                             uint64_t number, struct checkpoint *ret,
                             void (*report)(void *arg, const char *sentence), void *arg,
                             struct err *err) MUST_CHECK;

/* The same of one directory, DATA_DIR/checkpoints/NUMBER, also as people type it (shelf_resolve()); its links stand
 * beside it. */
int checkpoint_open(const struct file_ops *files, const char *dir, struct checkpoint *ret,
                    struct err *err) MUST_CHECK;

/* A zeroed one is fine. */
void checkpoint_close(struct checkpoint *c);

/* Holds every checksum, count and row of all its files; progress(arg) between chunks (NULL is fine). */
int checkpoint_verify(const struct file_ops *files, const struct checkpoint *c,
                      void (*progress)(void *), void *arg, struct err *err) MUST_CHECK;

/* checkpoint_find() and checkpoint_verify(), on down until one is whole: for who would not load twice. */
int checkpoint_find_whole(const struct file_ops *files, const char *data_dir,
                          struct checkpoint *ret, void (*report)(void *, const char *sentence),
                          void *arg, struct err *err) MUST_CHECK;

/* Is this about the files, so that an older restore point is the better start? All else (no
 * permission, no memory) is about this process: starting from an older state would be a loss without need. */
bool checkpoint_is_damage(int status);

/* Was file i written by this shard, in this layout? If so the shard can be made again whole; else its rows can
 * be dealt out (loader.h). */
bool checkpoint_is_of(const struct checkpoint *c, uint32_t i, const struct part_identity *who);

/* From here on this checkpoint does not count, and nothing removes it: its directory becomes NUMBER.aside. For a start
 * from an older one: all newer ones, the newest first. Its number is not used again. */
int checkpoint_set_aside(const struct file_ops *files, const char *data_dir, uint64_t number,
                         struct err *err) MUST_CHECK;

#endif
