#include "server/store/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/store/manifest.h"
#include "server/store/part_read.h"
#include "server/store/part_write.h"
#include "server/store/shelf.h"

#define PART_PATH_MAX (CHECKPOINT_PATH_MAX + MANIFEST_NAME_MAX)

static void part_path(const char *dir, uint32_t shard_index, char ret[static PART_PATH_MAX])
{
    char name[MANIFEST_NAME_MAX];

    manifest_file_name(shard_index, name);
    snprintf(ret, PART_PATH_MAX, "%.*s/%s", (int)CHECKPOINT_PATH_MAX - 2, dir, name);
}

/* Has it no manifest at all? Then it is the leftover of a crash or of a failure, with a
 * bad one it is a loss. */
static bool is_unfinished(const struct file_ops *files, const char *dir)
{
    struct manifest *m = mem_alloc(sizeof *m);
    int status = manifest_read(files, dir, m, NULL);

    free(m);
    return status == -ENOENT;
}

/* Nothing else is being written now: what is unfinished stays so, and may fill the disk
 * that the next one needs. */
static void remove_unfinished(const struct file_ops *files, const char *data_dir,
                              const struct shelf_numbers *numbers)
{
    char dir[CHECKPOINT_PATH_MAX];

    for (size_t i = 0; i < numbers->n; i++)
        if (shelf_number_path(data_dir, numbers->items[i], dir, NULL) == 0 &&
            is_unfinished(files, dir))
            shelf_remove(files, dir);
}

int checkpoint_next(const struct file_ops *files, const char *data_dir, uint64_t *ret_number,
                    struct err *err)
{
    char base[CHECKPOINT_PATH_MAX], dir[CHECKPOINT_PATH_MAX];
    struct shelf_numbers numbers;
    uint64_t number;
    int status = shelf_path(data_dir, base, err);

    if (status || (status = shelf_make_dir(files, data_dir, NULL, err)) != 0 ||
        (status = shelf_make_dir(files, base, data_dir, err)) != 0)
        return status;
    status = shelf_list(files, base, &numbers, err);
    number = numbers.n ? numbers.items[0] + 1 : 1;
    remove_unfinished(files, data_dir, &numbers);
    free(numbers.items);
    if (status || (status = shelf_number_path(data_dir, number, dir, err)) != 0 ||
        (status = shelf_make_dir(files, dir, base, err)) != 0)
        return status;
    *ret_number = number;
    return 0;
}

int checkpoint_write_shard(const struct file_ops *files, const char *data_dir, uint64_t number,
                           uint32_t shard_index, struct shard *shard, void (*progress)(void *),
                           void *arg, struct checkpoint_part *ret, struct err *err)
{
    char dir[CHECKPOINT_PATH_MAX], path[PART_PATH_MAX];
    struct part_facts facts;
    int status = shelf_number_path(data_dir, number, dir, err);

    if (status)
        return status;
    part_path(dir, shard_index, path);
    status = part_write(files, path, number, shard_index, shard, progress, arg, &facts, err);
    if (status)
        return status;
    *ret = (struct checkpoint_part){ .n_bytes = facts.n_bytes,
                                     .crc = facts.crc,
                                     .n_rows = facts.n_rows,
                                     .version = facts.version };
    return 0;
}

/* Removes what is older than checkpoint `newest`, which is valid: all but keep - 1 of
 * those with a readable manifest, and what is damaged. What cannot be read for another
 * reason is left alone. */
static void prune(const struct file_ops *files, const char *data_dir, uint64_t newest,
                  uint32_t keep)
{
    char base[CHECKPOINT_PATH_MAX], dir[CHECKPOINT_PATH_MAX];
    struct manifest *m = mem_alloc(sizeof *m);
    struct shelf_numbers numbers = { 0 };
    uint32_t n_kept = 1;
    int status = shelf_path(data_dir, base, NULL);

    if (!status)
        status = shelf_list(files, base, &numbers, NULL);
    for (size_t i = 0; i < numbers.n && !status; i++) {
        if (numbers.items[i] >= newest ||
            shelf_number_path(data_dir, numbers.items[i], dir, NULL) != 0)
            continue;
        switch (n_kept < keep ? manifest_read(files, dir, m, NULL) : PS_ECORRUPT) {
        case 0:
            n_kept++;
            break;
        case PS_ECORRUPT:
        case -ENOENT:
            shelf_remove(files, dir);
            break;
        default:
            break;
        }
    }
    free(numbers.items);
    free(m);
}

int checkpoint_commit(const struct file_ops *files, const char *data_dir,
                      const struct checkpoint_id *id, const struct checkpoint_part *parts,
                      uint32_t n_parts, uint32_t keep, struct err *err)
{
    char dir[CHECKPOINT_PATH_MAX];
    struct manifest *m;
    int status = shelf_number_path(data_dir, id->number, dir, err);

    assert(n_parts > 0 && n_parts <= MANIFEST_N_FILES_MAX);
    if (status)
        return status;
    m = mem_alloc(sizeof *m);
    m->number = id->number;
    m->unix_ms = id->unix_ms;
    m->node = id->node;
    m->n_nodes = id->n_nodes;
    m->shards_per_node = id->shards_per_node;
    m->n_files = n_parts;
    for (uint32_t i = 0; i < n_parts; i++)
        m->files[i] = (struct manifest_file){ .n_bytes = parts[i].n_bytes,
                                              .crc = parts[i].crc,
                                              .n_rows = parts[i].n_rows,
                                              .version = parts[i].version };
    status = manifest_write(files, dir, m, err);
    free(m);
    if (!status)
        prune(files, data_dir, id->number, keep);
    return status;
}

/* Does the file hold what the manifest says? To be asked once it has been read to its end. */
static int check_part(const struct part_reader *r, const struct manifest *m, uint32_t i,
                      struct err *err)
{
    const struct manifest_file *want = &m->files[i];
    const struct part_facts *have = &r->facts;

    if (r->header.number != m->number || r->header.shard_index != i)
        return err_set(err, PS_ECORRUPT,
                       "it is shard %" PRIu32 " of checkpoint %" PRIu64 ", shard %" PRIu32
                       " of %" PRIu64 " was expected: %.120s",
                       r->header.shard_index, r->header.number, i, m->number, r->path);
    if (have->n_bytes != want->n_bytes || have->crc != want->crc ||
        have->n_rows != want->n_rows || have->version != want->version)
        return err_set(err, PS_ECORRUPT,
                       "%" PRIu64 " bytes with checksum %08" PRIx32
                       ", the manifest says %" PRIu64 " with %08" PRIx32 ": %.120s",
                       have->n_bytes, have->crc, want->n_bytes, want->crc, r->path);
    return 0;
}

static int verify_part(const struct file_ops *files, const char *dir, const struct manifest *m,
                       uint32_t i, struct err *err)
{
    char path[PART_PATH_MAX];
    struct part_reader reader;
    struct part_rows rows;
    int status;

    part_path(dir, i, path);
    status = part_read_open(&reader, files, path, err);
    if (status)
        return status;
    do
        status = part_read_rows(&reader, &rows);
    while (status > 0);
    if (!status)
        status = check_part(&reader, m, i, err);
    part_read_close(&reader);
    return status;
}

int checkpoint_verify(const struct file_ops *files, const char *dir,
                      struct checkpoint_id *ret_id, struct err *err)
{
    struct manifest *m = mem_alloc(sizeof *m);
    int status = manifest_read(files, dir, m, err);

    for (uint32_t i = 0; !status && i < m->n_files; i++)
        status = verify_part(files, dir, m, i, err);
    if (!status && ret_id)
        *ret_id = (struct checkpoint_id){ .number = m->number,
                                          .node = m->node,
                                          .n_nodes = m->n_nodes,
                                          .shards_per_node = m->shards_per_node,
                                          .unix_ms = m->unix_ms };
    free(m);
    return status;
}

/* What a checkpoint may suffer, and the one before it be the better start. All else (no
 * permission, no memory) is about this process: starting from an older state would be a loss
 * without need. */
static bool is_damage(int status)
{
    return status == PS_ECORRUPT || status == -EIO || status == -ENOENT;
}

static int newest_of(const struct file_ops *files, const char *data_dir,
                     const struct shelf_numbers *numbers,
                     char ret_dir[static CHECKPOINT_PATH_MAX], struct checkpoint_id *ret_id,
                     void (*report)(void *, const char *), void *arg, struct err *err)
{
    char dir[CHECKPOINT_PATH_MAX];
    uint32_t n_damaged = 0;
    int status;

    for (size_t i = 0; i < numbers->n; i++) {
        status = shelf_number_path(data_dir, numbers->items[i], dir, err);
        if (!status)
            status = checkpoint_verify(files, dir, ret_id, err);
        if (!status) {
            memcpy(ret_dir, dir, sizeof dir);
            return 0;
        }
        if (!is_damage(status))
            return status;
        if (status == -ENOENT && is_unfinished(files, dir))
            continue;
        n_damaged++;
        if (report)
            report(arg, err->text);
    }
    if (n_damaged)
        return err_set(err, PS_ECORRUPT,
                       "no checkpoint of %" PRIu32
                       " is whole; to start empty, move them away: %.150s/checkpoints",
                       n_damaged, data_dir);
    return err_set(err, PS_ENOCHECKPOINT, "no checkpoint in %.200s", data_dir);
}

int checkpoint_newest(const struct file_ops *files, const char *data_dir,
                      char ret_dir[CHECKPOINT_PATH_MAX], struct checkpoint_id *ret_id,
                      void (*report)(void *, const char *sentence), void *arg, struct err *err)
{
    char base[CHECKPOINT_PATH_MAX];
    struct err own = { 0 };
    struct shelf_numbers numbers;
    int status;

    if (!err)
        err = &own; /* `report` needs the sentence anyway */
    status = shelf_path(data_dir, base, err);
    if (status)
        return status;
    status = shelf_list(files, base, &numbers, err);
    if (!status)
        status = newest_of(files, data_dir, &numbers, ret_dir, ret_id, report, arg, err);
    free(numbers.items);
    return status;
}

/* Makes the file's tables, or finds them as another file had them. ids: the shard's number of
 * each. */
static int load_tables(const struct part_reader *r, struct shard *shard, uint32_t *ids,
                       struct err *err) ON_SHARD
{
    struct err why = { 0 };

    for (uint32_t i = 0; i < r->header.n_tables; i++) {
        const struct part_table *t = &r->tables[i];
        const struct shard_table *have;
        uint64_t version = shard_version(shard);
        int status = shard_table_ask(shard, &t->spec, false, &ids[i], &why);

        if (status)
            return err_set(err, status == PS_ESPEC ? PS_ECORRUPT : status, "%.110s: %.110s",
                           why.text[0] ? why.text : status_text(status), r->path);
        have = shard_table(shard, ids[i]);
        assert(have->payload_bytes == t->payload_bytes); /* both are the catalog's */
        shard_restore_counts(shard, ids[i],
                             t->n_pushes > have->n_pushes ? t->n_pushes : have->n_pushes,
                             r->header.version > version ? r->header.version : version);
    }
    return 0;
}

static int load_rows(const struct part_rows *rows, struct shard *shard, uint32_t id) ON_SHARD
{
    uint64_t key, stamp;
    int status = 0;

    for (uint32_t i = 0; i < rows->n_rows && !status; i++) {
        const void *payload = part_read_row(rows, i, &key, &stamp);

        status = shard_restore_row(shard, id, key, stamp, payload);
    }
    return status;
}

static int load_part(struct part_reader *r, struct shard *shard, uint32_t *ids,
                     void (*progress)(void *), void *arg, struct err *err) ON_SHARD
{
    struct part_rows rows;
    int found, status = load_tables(r, shard, ids, err);

    while (!status && (found = part_read_rows(r, &rows)) != 0) {
        if (found < 0)
            return found;
        status = load_rows(&rows, shard, ids[rows.table]);
        if (status)
            return err_set(err, status, "cannot load table %s: %s: %.100s",
                           r->tables[rows.table].spec.name, status_text(status), r->path);
        if (progress)
            progress(arg);
    }
    return status;
}

int checkpoint_load(const struct file_ops *files, const char *dir, struct shard *shard,
                    void (*progress)(void *), void *arg, struct err *err)
{
    uint32_t *ids = mem_alloc(SHARD_N_TABLES_MAX * sizeof *ids);
    struct manifest *m = mem_alloc(sizeof *m);
    char path[PART_PATH_MAX];
    struct part_reader reader;
    int status = manifest_read(files, dir, m, err);

    for (uint32_t i = 0; !status && i < m->n_files; i++) {
        part_path(dir, i, path);
        status = part_read_open(&reader, files, path, err);
        if (status)
            break;
        status = load_part(&reader, shard, ids, progress, arg, err);
        if (!status)
            status = check_part(&reader, m, i, err);
        part_read_close(&reader);
    }
    free(ids);
    free(m);
    return status;
}
