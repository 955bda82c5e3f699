/*
 * Checkpoints: each shard's state as one file (shard_file.h); the node's manifest, renamed into place last,
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
 *     shard_file_writer_* each shard's file                 server/checkpoint/shard_file_writer.h
 *     checkpoint_commit   when each shard's log is durable through its file's `through`
 *
 * and who starts from one:
 *
 *     checkpoint_find     the newest; loader_load() of each shard (server/checkpoint/loader.h); where that finds
 *                         damage, checkpoint_find() with what is below it, and new shards
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
 * `keep` restore points (CHECKPOINT_KEEP_ALL: none); a checkpoint that one of these needs stays, too. What
 * cannot be removed is no failure, and is tried again after the next commit. A failure may come after the
 * rename: then the new checkpoint or the previous one is the newest, and both are whole.
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

/* Makes a checkpoint durable before anything depends on it (a delta, a log that continues it). A process that died
 * between a manifest's rename and its sync leaves a name that the next process reads and a power cut removes. */
int checkpoint_sync(const struct file_ops *files, const char *data_dir, uint64_t number,
                    struct err *err) MUST_CHECK;

/* The newest restore point below number `below` (0: of all) whose manifests are valid; its files are opened
 * as far as their heads, and hold what these say only once they are read to their ends (loader.h,
 * checkpoint_verify()). One that is damaged, or lacks a link, is told to `report` (may be NULL) and skipped.
 * PS_ENOCHECKPOINT when there is none, PS_ECORRUPT when there are some and all are damaged (starting empty
 * would hide a loss). */
int checkpoint_find(const struct file_ops *files, const char *data_dir, uint64_t below,
                    struct checkpoint *ret, void (*report)(void *, const char *sentence),
                    void *arg, struct err *err) MUST_CHECK;

/* checkpoint_find() of that number alone, also if it is archived. */
int checkpoint_find_numbered(const struct file_ops *files, const char *data_dir,
                             uint64_t number, struct checkpoint *ret,
                             void (*report)(void *arg, const char *sentence), void *arg,
                             struct err *err) MUST_CHECK;

/* The same of one directory, DATA_DIR/checkpoints/NUMBER, also as people type it (directory_resolve()); its links stand
 * beside it. */
int checkpoint_open(const struct file_ops *files, const char *dir, struct checkpoint *ret,
                    struct err *err) MUST_CHECK;

/* A zeroed one is fine. */
void checkpoint_close(struct checkpoint *c);

/* Checks every checksum, count and row of all its files; progress(arg) between chunks (NULL is fine). */
int checkpoint_verify(const struct file_ops *files, const struct checkpoint *c,
                      void (*progress)(void *), void *arg, struct err *err) MUST_CHECK;

/* checkpoint_find() and checkpoint_verify(), on down until one is whole: for who would not load twice. */
int checkpoint_find_whole(const struct file_ops *files, const char *data_dir,
                          struct checkpoint *ret, void (*report)(void *, const char *sentence),
                          void *arg, struct err *err) MUST_CHECK;

/* True if the status is about the files, so an older restore point is the better start. Other failures (no
 * permission, no memory) concern this process: an older state would be a needless loss. */
bool checkpoint_is_damage(int status);

/* True if this shard wrote file i, in this layout, so it can be recovered whole; else its rows can be resharded
 * (loader.h). */
bool checkpoint_is_of(const struct checkpoint *c, uint32_t i,
                      const struct shard_file_identity *who);

/* Archives the checkpoint: it no longer counts, and nothing removes it. Its directory becomes NUMBER.aside. A start
 * from an older checkpoint archives all newer ones, the newest first. Its number is not used again. */
int checkpoint_archive(const struct file_ops *files, const char *data_dir, uint64_t number,
                       struct err *err) MUST_CHECK;

/* True if it has no manifest: then it is left over from a crash or a failure. A checkpoint with a corrupt manifest
 * is a loss. */
bool checkpoint_is_unfinished(const struct file_ops *files, const char *dir);

/* The manifests of a restore point: its own, and those of what it is a delta to. No file is opened. On
 * failure *ret is empty. */
int checkpoint_read_links(const struct file_ops *files, const char *dir, struct checkpoint *ret,
                          struct err *err) MUST_CHECK;

/* checkpoint_open() where psd may be at work. *ret_unfinished: it failed for the want of a manifest, and
 * there is none yet, or no more; one that came while it was looked for is taken. */
int checkpoint_open_live(const struct file_ops *files, const char *dir, struct checkpoint *ret,
                         bool *ret_unfinished, struct err *err) MUST_CHECK;

/* --- one shard's files in a restore point: the full one, then each delta on it, the newest last --- */

/* Receives the content of files. Anything but 0, with a sentence set, ends the reading. */
struct checkpoint_visitor {
    void *owner; /* borrowed */
    /* A file begins: header and tables are there. n_behind: so many files come behind it. */
    int (*on_file)(void *owner, const struct shard_file_reader *r, uint32_t n_behind);
    int (*on_piece)(void *owner, const struct shard_file_reader *r,
                    const struct shard_file_reader_chunk *piece);
};

/* The number of files in the chain of file i; 1: it is full. */
uint32_t checkpoint_chain_length(const struct checkpoint *c, uint32_t i);

/* All of it. ret_facts (NULL is fine): the newest file's. What was shown counts only when 0 is returned. */
int checkpoint_chain_read(const struct file_ops *files, const struct checkpoint *c, uint32_t i,
                          const struct checkpoint_visitor *visitor,
                          struct shard_file_facts *ret_facts, struct err *err) MUST_CHECK;

/* The same of one file of the chain, number 0 being the newest: for who has read the others. */
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
