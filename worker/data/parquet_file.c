#include "worker/data/parquet_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/memory.h"
#include "worker/data/input_pipe.h"
#include "worker/data/parquet_thrift.h"

#define MAGIC "PAR1"
#define MAGIC_ENCRYPTED "PARE"
#define MAGIC_BYTES 4u
#define HEAD_BYTES 512u /* the first page's head begins with small numbers, 0 among them */
#define TAIL_BYTES 8u   /* the footer's size, and the magic again */
#define ROWS_MAX (UINT64_C(1) << 48)

struct group {
    uint64_t n_rows_end; /* of the rows up to its end */
    uint32_t at;         /* in the footer */
};

struct parquet_file {
    int fd;
    uint64_t n_bytes, n_rows;
    uint8_t *footer; /* owned */
    uint32_t n_footer;
    struct parquet_file_column *columns; /* owned, [n_columns] */
    char *names;                         /* owned */
    uint32_t n_columns, n_leaves;
    struct group *groups; /* owned, [n_groups] */
    uint32_t n_groups;
    char path[INPUT_PIPE_NAME_MAX + 1]; /* for sentences */
};

bool parquet_file_begins(const void *bytes, size_t n_bytes)
{
    return n_bytes > MAGIC_BYTES &&
           (memcmp(bytes, MAGIC, MAGIC_BYTES) == 0 ||
            memcmp(bytes, MAGIC_ENCRYPTED, MAGIC_BYTES) == 0) &&
           memchr(bytes, '\0', n_bytes) != NULL;
}

bool parquet_file_is_one(const char *path)
{
    uint8_t head[HEAD_BYTES];
    struct stat st;
    ssize_t n;
    int fd;

    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = pread(fd, head, sizeof head, 0);
    close(fd);
    return n > 0 && parquet_file_begins(head, (size_t)n);
}

static int damaged(const struct parquet_file *f, const char *what, struct err *err)
{
    return err_set(err, PS_EDATA, "%s: its Parquet footer is damaged: %s", f->path, what);
}

int parquet_file_read(const struct parquet_file *f, uint64_t at, void *dst, size_t n_bytes,
                      struct err *err)
{
    uint8_t *to = dst;

    while (n_bytes > 0) {
        ssize_t n = pread(f->fd, to, n_bytes, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, -errno, "%s: cannot read: %s", f->path, strerror(errno));
        if (n == 0)
            return err_set(err, PS_EDATA, "%s: the file has become shorter", f->path);
        to += n;
        at += (uint64_t)n;
        n_bytes -= (size_t)n;
    }
    return 0;
}

/* ---- the schema: a tree, in the order of its nodes, each followed by its children ---- */

enum repetition { REQUIRED = 0, OPTIONAL = 1, REPEATED = 2 };

enum converted {
    CONVERTED_MAP = 1,
    CONVERTED_MAP_KEY_VALUE = 2,
    CONVERTED_LIST = 3,
    CONVERTED_NONE = -1
};

enum logical {
    LOGICAL_NONE = 0,
    LOGICAL_MAP = 2,
    LOGICAL_LIST = 3,
    LOGICAL_INTEGER = 10,
    LOGICAL_HALF = 15
};

struct node {
    const char *name;
    size_t name_len;
    int64_t storage, value_bytes, repetition, n_children, converted;
    int32_t logical; /* the number of its field in LogicalType */
    bool is_unsigned;
};

static void read_integer_type(struct parquet_thrift *t, struct node *n)
{
    struct parquet_thrift_field f = { 0 };

    while (parquet_thrift_field(t, &f)) {
        if (f.id == 2)
            n->is_unsigned = !parquet_thrift_bool(t, &f);
        else
            parquet_thrift_skip(t, &f);
    }
}

static void read_logical(struct parquet_thrift *t, struct node *n)
{
    struct parquet_thrift_field f = { 0 };

    while (parquet_thrift_field(t, &f)) {
        n->logical = f.id;
        if (f.id == LOGICAL_INTEGER && parquet_thrift_struct(t, &f))
            read_integer_type(t, n);
        else
            parquet_thrift_skip(t, &f);
    }
}

static void read_node(struct parquet_thrift *t, struct node *n)
{
    struct parquet_thrift_field f = { 0 };

    *n = (struct node){ .storage = -1, .converted = CONVERTED_NONE };
    while (parquet_thrift_field(t, &f)) {
        switch (f.id) {
        case 1:
            n->storage = parquet_thrift_int(t, &f);
            break;
        case 2:
            n->value_bytes = parquet_thrift_int(t, &f);
            break;
        case 3:
            n->repetition = parquet_thrift_int(t, &f);
            break;
        case 4:
            n->name = (const char *)parquet_thrift_binary(t, &f, &n->name_len);
            break;
        case 5:
            n->n_children = parquet_thrift_int(t, &f);
            break;
        case 6:
            n->converted = parquet_thrift_int(t, &f);
            break;
        case 10:
            if (parquet_thrift_struct(t, &f))
                read_logical(t, n);
            break;
        default:
            parquet_thrift_skip(t, &f);
        }
    }
    if (n->n_children < 0 || n->n_children > UINT16_MAX || n->repetition < REQUIRED ||
        n->repetition > REPEATED)
        t->bad = true;
}

static void refuse(struct parquet_file_column *c, const char *what)
{
    snprintf(c->refused, sizeof c->refused, "%s", what);
}

/* The name of a meaning that no number and no token stands for, or NULL. */
static const char *refused_meaning(const struct node *n)
{
    static const char *const logical[] = {
        [5] = "DECIMAL", [6] = "DATE",     [7] = "TIME",      [8] = "TIMESTAMP",
        [14] = "UUID",   [16] = "VARIANT", [17] = "GEOMETRY", [18] = "GEOGRAPHY"
    };
    static const char *const converted[] = {
        [5] = "DECIMAL",   [6] = "DATE",       [7] = "TIME",     [8] = "TIME",
        [9] = "TIMESTAMP", [10] = "TIMESTAMP", [21] = "INTERVAL"
    };

    if (n->logical > 0 && n->logical < (int32_t)COUNT_OF(logical) && logical[n->logical])
        return logical[n->logical];
    if (n->logical > (int32_t)COUNT_OF(logical))
        return "newer type";
    if (n->converted >= 0 && n->converted < (int64_t)COUNT_OF(converted))
        return converted[n->converted];
    return NULL;
}

static bool is_unsigned(const struct node *n)
{
    return n->logical == LOGICAL_INTEGER ? n->is_unsigned
                                         : n->converted >= 11 && n->converted <= 14;
}

/* What the values of a leaf are. */
static void set_type(struct parquet_file_column *c, const struct node *n)
{
    const char *meaning = refused_meaning(n);

    c->storage = (enum parquet_storage)n->storage;
    switch (n->storage) {
    case PARQUET_STORAGE_BOOLEAN:
        c->type = PARQUET_INT;
        break;
    case PARQUET_STORAGE_INT32:
    case PARQUET_STORAGE_INT64:
        c->type = is_unsigned(n) ? PARQUET_UINT : PARQUET_INT;
        break;
    case PARQUET_STORAGE_FLOAT:
        c->type = PARQUET_FLOAT;
        break;
    case PARQUET_STORAGE_DOUBLE:
        c->type = PARQUET_DOUBLE;
        break;
    case PARQUET_STORAGE_BYTES:
        c->type = PARQUET_TEXT;
        break;
    case PARQUET_STORAGE_FIXED:
        c->type = n->logical == LOGICAL_HALF ? PARQUET_HALF : PARQUET_TEXT;
        c->value_bytes = (uint32_t)n->value_bytes;
        if (n->value_bytes <= 0 || n->value_bytes > INT32_MAX ||
            (c->type == PARQUET_HALF && n->value_bytes != 2))
            refuse(c, "value of no length");
        break;
    default:
        refuse(c, n->storage == 3 ? "INT96" : "type of another kind");
    }
    if (meaning)
        refuse(c, meaning);
}

static bool is_list(const struct node *n)
{
    return n->logical == LOGICAL_LIST || n->converted == CONVERTED_LIST;
}

static const char *kind_of_group(const struct node *n)
{
    if (is_list(n))
        return "nested LIST";
    return n->logical == LOGICAL_MAP || n->converted == CONVERTED_MAP ||
                   n->converted == CONVERTED_MAP_KEY_VALUE
               ? "MAP"
               : "STRUCT";
}

/* What is being read of the schema's list. */
struct walk {
    struct parquet_thrift t;
    uint64_t n_left;   /* nodes of the list */
    uint32_t n_leaves; /* so far */
};

static void next_node(struct walk *w, struct node *n)
{
    if (w->n_left == 0)
        w->t.bad = true;
    w->n_left -= w->n_left > 0;
    read_node(&w->t, n);
    w->n_leaves += n->n_children == 0;
}

/* All below; a row group has chunks for its leaves. */
static void pass_nodes(struct walk *w, uint64_t n)
{
    struct node node;

    while (n > 0 && !w->t.bad) {
        next_node(w, &node);
        n += (uint64_t)node.n_children - 1;
    }
}

/*
 * A field at the top. A LIST has one of three forms, of which the first is today's:
 *
 *     group LIST { repeated group { value } }     group LIST { repeated value }     repeated value
 */
static void read_column(struct walk *w, struct parquet_file_column *c, struct node *n)
{
    struct node below;

    next_node(w, n);
    c->leaf = w->n_leaves - 1;
    c->def_max = n->repetition != REQUIRED;
    c->rep_max = n->repetition == REPEATED;
    if (n->n_children == 0) {
        set_type(c, n);
        return;
    }
    c->leaf = w->n_leaves;
    refuse(c, kind_of_group(n));
    if (!is_list(n) || n->n_children != 1 || c->rep_max) {
        pass_nodes(w, (uint64_t)n->n_children);
        return;
    }
    next_node(w, &below);
    c->rep_max = 1;
    c->def_max++;
    if (below.repetition != REPEATED || below.n_children > 1) {
        pass_nodes(w, (uint64_t)below.n_children);
        return;
    }
    if (below.n_children == 1) {
        next_node(w, &below);
        c->def_max += below.repetition == OPTIONAL;
        if (below.n_children > 0 || below.repetition == REPEATED) {
            pass_nodes(w, (uint64_t)below.n_children);
            return;
        }
    }
    refuse(c, "");
    set_type(c, &below);
}

/* The name without what would move a terminal's cursor; returns the place behind. */
static char *copy_name(char *to, const struct node *n)
{
    for (size_t i = 0; i < n->name_len; i++)
        *to++ = (unsigned char)n->name[i] < ' ' || n->name[i] == 0x7f ? '?' : n->name[i];
    *to++ = '\0';
    return to;
}

static int read_columns(struct parquet_file *f, struct walk *w, struct err *err)
{
    struct node root, n;
    char *to;

    next_node(w, &root);
    if (w->t.bad || root.n_children == 0 || (uint64_t)root.n_children > w->n_left)
        return damaged(f, "its schema has no columns", err);
    w->n_leaves = 0;
    f->columns = memory_try_alloc((size_t)root.n_children * sizeof *f->columns);
    /* Names stand in the footer, each with a byte at least beside it. */
    f->names = to = memory_try_alloc(f->n_footer);
    if (!f->columns || !f->names)
        return err_set(err, -ENOMEM, "%s: no memory for %u columns", f->path,
                       (unsigned)root.n_children);
    for (uint32_t i = 0; i < (uint32_t)root.n_children; i++) {
        read_column(w, &f->columns[i], &n);
        if (w->t.bad || !n.name)
            return damaged(f, "its schema", err);
        f->columns[i].name = to;
        to = copy_name(to, &n);
    }
    if (w->n_left > 0)
        return damaged(f, "its schema", err);
    f->n_columns = (uint32_t)root.n_children;
    f->n_leaves = w->n_leaves;
    return 0;
}

/* ---- row groups ---- */

static int read_groups(struct parquet_file *f, struct parquet_thrift *t, uint32_t n,
                       struct err *err)
{
    free(f->groups);
    f->groups = memory_try_alloc((n + (size_t)1) * sizeof *f->groups);
    f->n_groups = 0;
    if (!f->groups)
        return err_set(err, -ENOMEM, "%s: no memory for %u row groups", f->path, n);
    for (uint64_t rows = 0; f->n_groups < n && !t->bad; f->n_groups++) {
        struct parquet_thrift_field field = { 0 };
        struct group *g = &f->groups[f->n_groups];
        int64_t n_rows = -1;

        g->at = (uint32_t)(t->at - f->footer);
        while (parquet_thrift_field(t, &field)) {
            if (field.id == 3)
                n_rows = parquet_thrift_int(t, &field);
            else
                parquet_thrift_skip(t, &field);
        }
        if (t->bad || n_rows < 0 || (uint64_t)n_rows > ROWS_MAX ||
            rows + (uint64_t)n_rows > ROWS_MAX)
            return damaged(f, "its row groups", err);
        g->n_rows_end = rows += (uint64_t)n_rows;
    }
    return 0;
}

static void read_chunk_meta(struct parquet_thrift *t, struct parquet_file_chunk *c,
                            int64_t *codec, int64_t *storage)
{
    int64_t n_values = -1, n_bytes = -1, data = -1, dictionary = 0;
    struct parquet_thrift_field f = { 0 };

    while (parquet_thrift_field(t, &f)) {
        switch (f.id) {
        case 1:
            *storage = parquet_thrift_int(t, &f);
            break;
        case 4:
            *codec = parquet_thrift_int(t, &f);
            break;
        case 5:
            n_values = parquet_thrift_int(t, &f);
            break;
        case 7:
            n_bytes = parquet_thrift_int(t, &f);
            break;
        case 9:
            data = parquet_thrift_int(t, &f);
            break;
        case 11:
            dictionary = parquet_thrift_int(t, &f);
            break;
        default:
            parquet_thrift_skip(t, &f);
        }
    }
    /* The dictionary is in front; some writers say 0 for none. */
    if (dictionary > 0 && dictionary < data)
        data = dictionary;
    if (n_values < 0 || n_bytes < 0 || data < 0)
        t->bad = true;
    c->n_values = (uint64_t)n_values;
    c->n_bytes = (uint64_t)n_bytes;
    c->at = (uint64_t)data;
}

struct chunk_notes {
    int64_t codec, storage;
    bool is_elsewhere, is_encrypted;
};

static void read_chunk(struct parquet_thrift *t, struct parquet_file_chunk *c,
                       struct chunk_notes *notes)
{
    struct parquet_thrift_field f = { 0 };
    bool there = false;

    *notes = (struct chunk_notes){ .codec = -1, .storage = -1 };
    while (parquet_thrift_field(t, &f)) {
        if (f.id == 3 && parquet_thrift_struct(t, &f)) {
            read_chunk_meta(t, c, &notes->codec, &notes->storage);
            there = true;
            continue;
        }
        notes->is_elsewhere |= f.id == 1;
        notes->is_encrypted |= f.id == 8 || f.id == 9;
        parquet_thrift_skip(t, &f);
    }
    if (!there && !notes->is_encrypted)
        t->bad = true;
}

static int check_chunk(const struct parquet_file *f, uint32_t group,
                       const struct parquet_file_column *column, struct parquet_file_chunk *c,
                       const struct chunk_notes *notes, struct err *err)
{
    if (notes->is_encrypted)
        return err_set(err, PS_EDATA, "%s: column '%.60s' is encrypted", f->path, column->name);
    if (notes->is_elsewhere)
        return err_set(err, PS_EDATA, "%s: column '%.60s' is in another file", f->path,
                       column->name);
    if (parquet_codec_refused(notes->codec)[0])
        return err_set(
            err, PS_EDATA,
            "%s: column '%.60s' is packed with %s; snappy, gzip and zstd can be read", f->path,
            column->name, parquet_codec_refused(notes->codec));
    if (c->at < MAGIC_BYTES || c->at > f->n_bytes || c->n_bytes > f->n_bytes - c->at ||
        notes->storage != (int64_t)column->storage)
        return damaged(f, "where a column is", err);
    if (column->rep_max == 0 ? c->n_values != parquet_file_group_rows(f, group)
                             : c->n_values < parquet_file_group_rows(f, group))
        return damaged(f, "how many values a column has", err);
    c->codec = (enum parquet_codec)notes->codec;
    return 0;
}

int parquet_file_chunks(const struct parquet_file *f, uint32_t group,
                        const struct parquet_file_column *const *columns, uint32_t n,
                        struct parquet_file_chunk *ret, struct err *err)
{
    struct parquet_thrift t = { .at = f->footer + f->groups[group].at,
                                .end = f->footer + f->n_footer };
    struct parquet_thrift_field field = { 0 };
    struct parquet_file_chunk chunk = { 0 };
    struct chunk_notes notes;
    uint32_t n_leaves = 0, n_found = 0;
    int status = 0;

    while (n_leaves == 0 && parquet_thrift_field(&t, &field)) {
        if (field.id != 1)
            parquet_thrift_skip(&t, &field);
        else
            n_leaves = parquet_thrift_list(&t, &field, PARQUET_THRIFT_STRUCT);
    }
    if (n_leaves != f->n_leaves)
        return damaged(f, "a row group has other columns than the file", err);
    for (uint32_t leaf = 0; leaf < n_leaves && !status; leaf++) {
        read_chunk(&t, &chunk, &notes);
        if (t.bad)
            return damaged(f, "its columns", err);
        for (uint32_t i = 0; i < n && !status; i++) {
            if (columns[i]->leaf != leaf)
                continue;
            status = check_chunk(f, group, columns[i], &chunk, &notes, err);
            ret[i] = chunk;
            n_found++;
        }
    }
    assert(status || n_found == n);
    return status;
}

/* ---- the footer ---- */

static int read_footer(struct parquet_file *f, struct err *err)
{
    struct parquet_thrift t = { .at = f->footer, .end = f->footer + f->n_footer };
    struct parquet_thrift_field field = { 0 };
    struct walk w;
    int64_t n_rows = -1;
    int status = 0;

    while (!status && parquet_thrift_field(&t, &field)) {
        if (field.id == 2 && !f->columns) {
            w.n_left = parquet_thrift_list(&t, &field, PARQUET_THRIFT_STRUCT);
            w.t = t;
            status = read_columns(f, &w, err);
            t = w.t;
        } else if (field.id == 3) {
            n_rows = parquet_thrift_int(&t, &field);
        } else if (field.id == 4) {
            status =
                read_groups(f, &t, parquet_thrift_list(&t, &field, PARQUET_THRIFT_STRUCT), err);
        } else {
            parquet_thrift_skip(&t, &field);
        }
    }
    if (status)
        return status;
    if (t.bad || f->n_columns == 0 || n_rows < 0)
        return damaged(f, "it makes no sense", err);
    f->n_rows = f->n_groups ? f->groups[f->n_groups - 1].n_rows_end : 0;
    if (f->n_rows != (uint64_t)n_rows)
        return damaged(f, "its row groups have not as many rows as the file", err);
    return 0;
}

static int load_footer(struct parquet_file *f, struct err *err)
{
    uint8_t tail[TAIL_BYTES];
    int status;

    if (f->n_bytes < MAGIC_BYTES + TAIL_BYTES)
        return err_set(err, PS_EDATA, "%s: is too short for Parquet", f->path);
    status = parquet_file_read(f, f->n_bytes - TAIL_BYTES, tail, sizeof tail, err);
    if (status)
        return status;
    if (memcmp(tail + 4, MAGIC_ENCRYPTED, MAGIC_BYTES) == 0)
        return err_set(err, PS_EDATA, "%s: its Parquet footer is encrypted", f->path);
    if (memcmp(tail + 4, MAGIC, MAGIC_BYTES) != 0)
        return err_set(err, PS_EDATA,
                       "%s: begins as Parquet and does not end so: it was not written, or "
                       "copied, to its end",
                       f->path);
    f->n_footer =
        tail[0] | (uint32_t)tail[1] << 8 | (uint32_t)tail[2] << 16 | (uint32_t)tail[3] << 24;
    if (f->n_footer > f->n_bytes - MAGIC_BYTES - TAIL_BYTES)
        return damaged(f, "its size", err);
    f->footer = memory_try_alloc(f->n_footer + (size_t)1);
    if (!f->footer)
        return err_set(err, -ENOMEM, "%s: no memory for a Parquet footer of %u bytes", f->path,
                       f->n_footer);
    status = parquet_file_read(f, f->n_bytes - TAIL_BYTES - f->n_footer, f->footer, f->n_footer,
                               err);
    return status ? status : read_footer(f, err);
}

int parquet_file_open(const char *path, struct parquet_file **ret, struct err *err)
{
    struct parquet_file *f = memory_try_alloc(sizeof *f);
    struct stat st;
    int status = 0;

    if (!f)
        return err_set(err, -ENOMEM, "%s: no memory to read it", path);
    snprintf(f->path, sizeof f->path, "%s", input_pipe_name(path));
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0 || fstat(f->fd, &st) != 0)
        status = err_set(err, -errno, "%s: cannot open: %s", f->path, strerror(errno));
    if (!status) {
        f->n_bytes = (uint64_t)st.st_size;
        status = load_footer(f, err);
    }
    if (status) {
        parquet_file_close(f);
        return status;
    }
    *ret = f;
    return 0;
}

void parquet_file_close(struct parquet_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    free(f->footer);
    free(f->columns);
    free(f->names);
    free(f->groups);
    free(f);
}

const char *parquet_file_path(const struct parquet_file *f)
{
    return f->path;
}

uint64_t parquet_file_n_rows(const struct parquet_file *f)
{
    return f->n_rows;
}

uint64_t parquet_file_n_bytes(const struct parquet_file *f)
{
    return f->n_bytes;
}

uint32_t parquet_file_n_columns(const struct parquet_file *f)
{
    return f->n_columns;
}

const struct parquet_file_column *parquet_file_column(const struct parquet_file *f, uint32_t i)
{
    assert(i < f->n_columns);
    return &f->columns[i];
}

uint32_t parquet_file_n_groups(const struct parquet_file *f)
{
    return f->n_groups;
}

uint64_t parquet_file_group_end(const struct parquet_file *f, uint32_t group)
{
    return f->groups[group].n_rows_end;
}

uint64_t parquet_file_group_rows(const struct parquet_file *f, uint32_t group)
{
    return f->groups[group].n_rows_end - (group ? f->groups[group - 1].n_rows_end : 0);
}
