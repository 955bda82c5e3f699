#include "server/store/chain.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/store/shelf.h"

/* One file on its way through the reader. */
struct link {
    const struct checkpoint *checkpoint;
    uint32_t link, file;
    struct err *err;
};

uint32_t chain_length(const struct checkpoint *c, uint32_t i)
{
    uint32_t n = 1;

    while (n < c->n_links && c->links[n - 1].files[i].is_delta)
        n++;
    return n;
}

static int wrong(const struct link *l, const struct part_reader *r, const char *reason)
{
    return err_set(l->err, PS_ECORRUPT, "%s: %.160s", reason, r->path);
}

/* Is it the file that the manifest means, and on what its manifest says it is built? */
static int check_head(const struct link *l, const struct part_reader *r)
{
    const struct manifest *m = &l->checkpoint->links[l->link];
    const struct part_facts *want = &m->files[l->file];
    const struct part_header *h = &r->header;

    if (h->number != m->number || h->shard_index != l->file)
        return err_set(l->err, PS_ECORRUPT,
                       "it is shard %" PRIu32 " of checkpoint %" PRIu64 ", shard %" PRIu32
                       " of %" PRIu64 " was expected: %.120s",
                       h->shard_index, h->number, l->file, m->number, r->path);
    if (h->version != want->version || h->first != want->first ||
        h->base != (want->is_delta ? m->base : 0))
        return wrong(l, r, "its header is not what the manifest says");
    if (h->format >= 3 &&
        (h->identity.shard != want->shard || h->identity.node != m->node ||
         h->identity.n_shards != m->n_shards || h->identity.map_id != m->map_id))
        return wrong(l, r, "it was written by another shard than the manifest says");
    if (want->is_delta &&
        h->base_version != l->checkpoint->links[l->link + 1].files[l->file].version)
        return wrong(l, r, "it is a delta to another file than the one that is there");
    return 0;
}

/* To be asked once it has been read to its end. */
static int check_facts(const struct link *l, const struct part_reader *r)
{
    const struct part_facts *want = &l->checkpoint->links[l->link].files[l->file];
    const struct part_facts *have = &r->facts;

    if (have->n_bytes != want->n_bytes || have->crc != want->crc)
        return err_set(l->err, PS_ECORRUPT,
                       "%" PRIu64 " bytes with checksum %08" PRIx32
                       ", the manifest says %" PRIu64 " with %08" PRIx32 ": %.120s",
                       have->n_bytes, have->crc, want->n_bytes, want->crc, r->path);
    if (have->n_rows != want->n_rows || have->n_gone != want->n_gone ||
        have->through != want->through)
        return wrong(l, r, "its counts are not what the manifest says");
    return 0;
}

/* links[k] stands beside links[0], under its number. */
static void file_path(const struct link *l, const struct file_ops *files,
                      char ret[static CHECKPOINT_FILE_PATH_MAX])
{
    const struct checkpoint *c = l->checkpoint;
    char dir[CHECKPOINT_PATH_MAX], name[MANIFEST_NAME_MAX];

    if (l->link)
        shelf_beside(files, c->dir, c->links[l->link].number, dir);
    else
        memcpy(dir, c->dir, sizeof dir);
    manifest_file_name(l->file, name);
    snprintf(ret, CHECKPOINT_FILE_PATH_MAX, "%s/%s", dir, name);
}

static int open_link(const struct link *l, const struct file_ops *files, const char *path,
                     struct part_reader *r)
{
    int status = part_read_open(r, files, path, l->err);

    if (status)
        return status;
    status = check_head(l, r);
    if (status)
        part_read_close(r);
    return status;
}

int chain_check(const struct file_ops *files, const struct checkpoint *c, uint32_t i,
                struct err *err)
{
    char path[CHECKPOINT_FILE_PATH_MAX];
    struct part_reader r;
    int status = 0;

    for (uint32_t k = chain_length(c, i); k-- > 0 && !status;) {
        struct link l = { .checkpoint = c, .link = k, .file = i, .err = err };

        file_path(&l, files, path);
        status = open_link(&l, files, path, &r);
        if (!status)
            part_read_close(&r);
    }
    return status;
}

static int read_open(const struct link *l, struct part_reader *r,
                     const struct chain_visitor *visitor)
{
    struct part_piece piece;
    int found, status = visitor->on_file(visitor->owner, r, l->link);

    while (!status && (found = part_read_more(r, &piece)) != 0) {
        if (found < 0)
            return found;
        status = visitor->on_piece(visitor->owner, r, &piece);
    }
    return status ? status : check_facts(l, r);
}

int chain_read_link(const struct file_ops *files, const struct checkpoint *c, uint32_t i,
                    uint32_t link, const struct chain_visitor *visitor,
                    struct part_facts *ret_facts, struct err *err)
{
    const struct link l = { .checkpoint = c, .link = link, .file = i, .err = err };
    char path[CHECKPOINT_FILE_PATH_MAX];
    struct part_reader r;
    int status;

    file_path(&l, files, path);
    status = open_link(&l, files, path, &r);
    if (status)
        return status;
    status = read_open(&l, &r, visitor);
    if (!status && ret_facts)
        *ret_facts = r.facts;
    part_read_close(&r);
    return status;
}

int chain_read(const struct file_ops *files, const struct checkpoint *c, uint32_t i,
               const struct chain_visitor *visitor, struct part_facts *ret_facts,
               struct err *err)
{
    int status = 0;

    for (uint32_t k = chain_length(c, i); k-- > 0 && !status;)
        status = chain_read_link(files, c, i, k, visitor, ret_facts, err);
    return status;
}
