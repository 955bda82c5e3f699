/*
 * Checkpoints: each shard's state as one file (shard_file.h); the node's manifest, renamed into place last,
 * says that all of them are whole. shard_file.h and manifest.h have the formats.
 *
 *     DATA_DIR/checkpoints/NUMBER/shard-III.psc   one per shard of this node
 *     DATA_DIR/checkpoints/NUMBER/MANIFEST        JSON
 *
 * NUMBER is 20 digits, greater than any that was ever there. A directory without a manifest is
 * no checkpoint. A file is full, or a delta to the same shard's file in the checkpoint `base`:
 *
 *     1 full <- 2 delta <- 3 delta     4 full <- 5 delta     ...
 *
 * A restore point is a checkpoint with all checkpoints that its deltas need. To write one:
 *
 *     checkpoint_next     a number and its directory; from any thread, with no other checkpoint under way
 *     shard_file_writer_* each shard's file (shard_file_writer.h)
 *     checkpoint_commit   when each shard's log is durable through its file's `through`
 *
 * To recover from one:
 *
 *     checkpoint_find     the newest; then loader_load() for each shard (loader.h). If a file is corrupt, repeat with
 *                         `below` set to this checkpoint's number, and new shards
 */
#ifndef SERVER_CHECKPOINT_CHECKPOINT_H
#define SERVER_CHECKPOINT_CHECKPOINT_H

#include "common/file.h"
#include "common/status.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/shard_file_reader.h"

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

/* Returns the number for a new checkpoint of this data directory. Makes the directories, and removes those of
 * unfinished checkpoints; no checkpoint may be under way. */
int checkpoint_next(const struct file_ops *files, const char *data_dir, uint64_t *ret_number,
                    struct err *err) MUST_CHECK;

/* The same, with a number above `floor`. */
int checkpoint_next_above(const struct file_ops *files, const char *data_dir, uint64_t floor,
                          uint64_t *ret_number, struct err *err) MUST_CHECK;

/* The path of a shard's file. */
int checkpoint_file_path(const char *data_dir, uint64_t number, uint32_t shard_index,
                         char ret[static CHECKPOINT_FILE_PATH_MAX], struct err *err) MUST_CHECK;

/*
 * After all shards' files: writes, syncs and renames the manifest, then removes all but the newest `keep` restore
 * points (CHECKPOINT_KEEP_ALL: none); a checkpoint that one of these needs stays. A failed removal is no failure; it
 * is tried again after the next commit. After a failure behind the rename, the new or the previous checkpoint is the
 * newest, and both are whole.
 *
 * A delta without its base is refused (-ENOENT, PS_ECORRUPT), as is a chain of more than CHECKPOINT_CHAIN_MAX
 * (-EINVAL): the next one must be full.
 *
 * ret_firsts (may be NULL): for each of m->n_files shards the smallest `first` of the existing restore points; its log
 * may be truncated before the record after it. 0: it must not be truncated, because there are fewer than `keep`, so the
 * state at the log's beginning still counts as one.
 */
#define CHECKPOINT_KEEP_ALL UINT32_MAX
int checkpoint_commit(const struct file_ops *files, const char *data_dir,
                      const struct manifest *m, uint32_t keep, uint64_t *ret_firsts,
                      struct err *err) MUST_CHECK;

/* For each of n_files shards the smallest `first` of the restore points that there are, as checkpoint_commit(), however
 * few they are: the log's beginning is then none. 0: one of them cannot be read. */
int checkpoint_firsts(const struct file_ops *files, const char *data_dir, uint32_t n_files,
                      uint64_t *ret_firsts, struct err *err) MUST_CHECK;

/* Makes a checkpoint durable before anything depends on it (a delta, a log that continues it). A process that died
 * between a manifest's rename and its sync leaves a name that the next process reads and a power cut removes. */
int checkpoint_sync(const struct file_ops *files, const char *data_dir, uint64_t number,
                    struct err *err) MUST_CHECK;

/* Finds the newest restore point below number `below` (0: of all) whose manifests are valid. Only the headers of its
 * files are checked; loading or checkpoint_verify() checks the rest. A corrupt or incomplete one is passed to `report`
 * (may be NULL) and skipped. PS_ENOCHECKPOINT: there is none. PS_ECORRUPT: there are some, and all are corrupt (an
 * empty start would hide a loss). */
int checkpoint_find(const struct file_ops *files, const char *data_dir, uint64_t below,
                    struct checkpoint *ret, void (*report)(void *, const char *sentence),
                    void *arg, struct err *err) MUST_CHECK;

/* checkpoint_find() of that number alone, also if it is archived. */
int checkpoint_find_numbered(const struct file_ops *files, const char *data_dir,
                             uint64_t number, struct checkpoint *ret,
                             void (*report)(void *arg, const char *sentence), void *arg,
                             struct err *err) MUST_CHECK;

/* The same for one directory, DATA_DIR/checkpoints/NUMBER, also as people type it (directory_resolve()). The
 * checkpoints that it needs are in directories beside it. */
int checkpoint_open(const struct file_ops *files, const char *dir, struct checkpoint *ret,
                    struct err *err) MUST_CHECK;

/* A zeroed one is fine. */
void checkpoint_close(struct checkpoint *c);

/* Checks every checksum, count and row of all its files; calls progress(arg) between chunks (NULL is fine). */
int checkpoint_verify(const struct file_ops *files, const struct checkpoint *c,
                      void (*progress)(void *), void *arg, struct err *err) MUST_CHECK;

/* The same of the checkpoint in `dir` alone, in the data directory of a running psd: of its own files, not of those
 * that they are deltas to. `damaged` gets a sentence for each damaged file; none for one that is unfinished, or that
 * psd removes meanwhile. Statuses that say nothing about the files. */
int checkpoint_verify_own(const struct file_ops *files, const char *dir,
                          void (*damaged)(void *arg, const char *sentence), void *arg,
                          struct err *err) MUST_CHECK;

/* checkpoint_find() and checkpoint_verify(), newest first, until one is whole: for callers that cannot load twice. */
int checkpoint_find_whole(const struct file_ops *files, const char *data_dir,
                          struct checkpoint *ret, void (*report)(void *, const char *sentence),
                          void *arg, struct err *err) MUST_CHECK;

/* True if the status is about the files, so an older restore point is the better start. Other failures (no
 * permission, no memory) concern this process: an older state would be a needless loss. */
bool checkpoint_is_damage(int status);

/* True if this shard wrote file i, in this layout, so it can be recovered whole; else its rows can be resharded
 * (loader.h). */
bool checkpoint_is_of(const struct checkpoint *c, uint32_t i,
                      const struct shard_file_identity *identity);

/* Archives the checkpoint: it no longer counts, and nothing removes it. Its directory becomes NUMBER.aside. A start
 * from an older checkpoint archives all newer ones, the newest first. Its number is not used again. */
int checkpoint_archive(const struct file_ops *files, const char *data_dir, uint64_t number,
                       struct err *err) MUST_CHECK;

/* True if it has no manifest: then it is left over from a crash or a failure. A checkpoint with a corrupt manifest
 * is a loss. */
bool checkpoint_is_unfinished(const struct file_ops *files, const char *dir);

/* checkpoint_open() in the data directory of a running psd. *ret_unfinished: true if it failed because the manifest is
 * not written yet, or was removed. A manifest that appears meanwhile is used. */
int checkpoint_open_live(const struct file_ops *files, const char *dir, struct checkpoint *ret,
                         bool *ret_unfinished, struct err *err) MUST_CHECK;

/* --- one shard's files in a restore point: the full one, then each delta on it, the newest last --- */

/* Receives the content of files. Anything but 0, with a sentence set, ends the reading. */
struct checkpoint_visitor {
    void *owner; /* borrowed */
    /* A file begins: header and tables are read. n_behind: the number of files that follow. */
    int (*on_file)(void *owner, const struct shard_file_reader *r, uint32_t n_behind);
    int (*on_piece)(void *owner, const struct shard_file_reader *r,
                    const struct shard_file_reader_chunk *piece);
};

/* Reads the whole chain. ret_facts (NULL is fine): the newest file's. Rows that the visitor got are valid only if 0 is
 * returned. */
int checkpoint_chain_read(const struct file_ops *files, const struct checkpoint *c, uint32_t i,
                          const struct checkpoint_visitor *visitor,
                          struct shard_file_facts *ret_facts, struct err *err) MUST_CHECK;

/* The same for one file of the chain; number 0 is the newest. */
int checkpoint_chain_read_link(const struct file_ops *files, const struct checkpoint *c,
                               uint32_t i, uint32_t link,
                               const struct checkpoint_visitor *visitor,
                               struct shard_file_facts *ret_facts, struct err *err) MUST_CHECK;

/* --- all checkpoints of a data directory by their manifests, archived ones included --- */

struct checkpoint_entry {
    uint64_t number;
    bool is_archived;
    const struct manifest *manifest; /* borrowed for the call; NULL: it is damaged */
};

/* Unfinished ones are left out. Descending; archived ones come last. -ENOMEM; file-system statuses that concern
 * this process (no permission). */
int checkpoint_each(const struct file_ops *files, const char *data_dir,
                    void (*visit)(void *arg, const struct checkpoint_entry *item), void *arg,
                    struct err *err) MUST_CHECK;

#endif
