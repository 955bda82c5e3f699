#include "deploy/psctl/tensor_input.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/memory.h"

#define NPY_START 12u           /* magic, version, length */
#define NPY_HEAD_MAX (1u << 20) /* a dictionary of three members */
#define JSON_MAX (64u << 20)    /* of a safetensors file, or of tables.json */
#define NOTE_PREFIX "psd:"

/* --- the set --- */

static int reserve(void **block, uint32_t n, size_t item_bytes)
{
    void *grown;

    if (n & (n - 1)) /* grows at 0, 1, 2, 4, 8 ... */
        return 0;
    grown = memory_try_realloc(*block, (n ? 2 * (size_t)n : 1) * item_bytes);
    if (!grown)
        return -ENOMEM;
    *block = grown;
    return 0;
}

static int add_input(struct tensor_inputs *set, const struct tensor_input *t, struct err *err)
{
    if (set->n == TENSOR_INPUT_ARRAYS_MAX)
        return err_set(err, PS_EDATA, "more than %u arrays", TENSOR_INPUT_ARRAYS_MAX);
    if (reserve((void **)&set->items, set->n, sizeof *set->items))
        return err_set(err, -ENOMEM, "no memory for the names of %" PRIu32 " arrays", set->n);
    set->items[set->n++] = *t;
    return 0;
}

static int add_note(struct tensor_inputs *set, const char *name, const char *text,
                    struct err *err)
{
    struct tensor_input_note note = { .text = strdup(text) };

    if (!note.text || reserve((void **)&set->notes, set->n_notes, sizeof *set->notes)) {
        free(note.text);
        return err_set(err, -ENOMEM, "no memory for what the file says of its tables");
    }
    snprintf(note.name, sizeof note.name, "%s", name);
    set->notes[set->n_notes++] = note;
    return 0;
}

static int add_fd(struct tensor_inputs *set, int fd)
{
    if (reserve((void **)&set->fds, set->n_fds, sizeof *set->fds)) {
        close(fd);
        return -ENOMEM;
    }
    set->fds[set->n_fds++] = fd;
    return 0;
}

void tensor_inputs_close(struct tensor_inputs *set)
{
    for (uint32_t i = 0; i < set->n_notes; i++)
        free(set->notes[i].text);
    for (uint32_t i = 0; i < set->n_fds; i++)
        close(set->fds[i]);
    free(set->items);
    free(set->notes);
    free(set->fds);
    *set = (struct tensor_inputs){ 0 };
}

const struct tensor_input *tensor_inputs_find(const struct tensor_inputs *set, const char *name)
{
    for (uint32_t i = 0; i < set->n; i++)
        if (strcmp(set->items[i].name, name) == 0)
            return &set->items[i];
    return NULL;
}

const char *tensor_inputs_note(const struct tensor_inputs *set, const char *name)
{
    for (uint32_t i = 0; i < set->n_notes; i++)
        if (strcmp(set->notes[i].name, name) == 0)
            return set->notes[i].text;
    return NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor_input *)a)->name,
                  ((const struct tensor_input *)b)->name);
}

/* --- sizes --- */

/* Bytes of an item; 0: a type whose size is not known here. */
static uint32_t item_bytes(const char *type)
{
    static const struct {
        const char *type;
        uint32_t n;
    } sizes[] = { { "BOOL", 1 }, { "U8", 1 },  { "I8", 1 },  { "F8_E4M3", 1 }, { "F8_E5M2", 1 },
                  { "I16", 2 },  { "U16", 2 }, { "F16", 2 }, { "BF16", 2 },    { "I32", 4 },
                  { "U32", 4 },  { "F32", 4 }, { "I64", 8 }, { "U64", 8 },     { "F64", 8 } };

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        if (strcmp(sizes[i].type, type) == 0)
            return sizes[i].n;
    return 0;
}

/* False: the array would have more than 2^62 bytes. */
static bool array_bytes(const struct tensor_input *t, uint64_t *ret)
{
    uint64_t n = item_bytes(t->type);

    for (uint32_t i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(n, t->dims[i], &n) || n >> 62)
            return false;
    *ret = n;
    return true;
}

/* --- npy --- */

static const uint8_t npy_magic[6] = { 0x93, 'N', 'U', 'M', 'P', 'Y' };

size_t tensor_input_npy_bytes(const uint8_t start[static 12])
{
    uint32_t length = (uint32_t)start[8] | (uint32_t)start[9] << 8;

    if (memcmp(start, npy_magic, sizeof npy_magic) != 0 || start[6] < 1 || start[6] > 3)
        return 0;
    if (start[6] == 1)
        return 10 + (size_t)length;
    length |= (uint32_t)start[10] << 16 | (uint32_t)start[11] << 24;
    return 12 + (size_t)length;
}

/* Behind 'name': and blanks, or NULL. The dictionary is as NumPy writes it; any order of members will do. */
static const char *member(const char *dict, const char *name)
{
    char quoted[32];
    const char *at;

    snprintf(quoted, sizeof quoted, "'%s':", name);
    at = strstr(dict, quoted);
    if (!at)
        return NULL;
    at += strlen(quoted);
    return at + strspn(at, " ");
}

/* "'<f4'" into "F32". What is none of these stays as it is, for a sentence. */
static int take_type(const char *descr, struct tensor_input *ret)
{
    static const char *const names[][2] = {
        { "<f4", "F32" }, { "<i8", "I64" }, { "<u8", "U64" }, { "<f8", "F64" },
        { "<f2", "F16" }, { "<i4", "I32" }, { "<u4", "U32" }, { "<i2", "I16" },
        { "<u2", "U16" }, { "|i1", "I8" },  { "|u1", "U8" },  { "|b1", "BOOL" }
    };
    size_t n;

    if (!descr || descr[0] != '\'')
        return PS_EDATA;
    n = strcspn(descr + 1, "'");
    if (n >= sizeof ret->type || descr[1 + n] != '\'')
        return PS_EDATA;
    snprintf(ret->type, sizeof ret->type, "%.*s", (int)n, descr + 1);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(ret->type, names[i][0]) == 0)
            snprintf(ret->type, sizeof ret->type, "%s", names[i][1]);
    return 0;
}

/* "(3, 4)", "(3,)", "()" */
static int take_shape(const char *at, struct tensor_input *ret)
{
    char *end;

    if (!at || *at != '(')
        return PS_EDATA;
    for (at++; *at != ')';) {
        if (ret->n_dims == TENSOR_INPUT_DIMS_MAX || *at < '0' || *at > '9')
            return PS_EDATA;
        errno = 0;
        ret->dims[ret->n_dims++] = strtoull(at, &end, 10);
        if (errno)
            return PS_EDATA;
        at = end + strspn(end, " ");
        if (*at == ',')
            at += 1 + strspn(at + 1, " ");
        else if (*at != ')')
            return PS_EDATA;
    }
    return 0;
}

int tensor_input_read_npy(const uint8_t *head, size_t head_bytes, uint64_t file_bytes,
                          struct tensor_input *ret, struct err *err)
{
    const size_t at = head[6] == 1 ? 10 : 12;
    char *dict = memory_try_alloc(head_bytes - at + 1);
    const char *order;
    int status = 0;

    if (!dict)
        return err_set(err, -ENOMEM, "no memory for a head of %zu bytes", head_bytes);
    memcpy(dict, head + at, head_bytes - at);
    order = member(dict, "fortran_order");
    if (take_type(member(dict, "descr"), ret) || take_shape(member(dict, "shape"), ret) ||
        !order)
        status = err_set(err, PS_EDATA, "its head is not that of an npy file");
    else if (strncmp(order, "False", 5) != 0 && ret->n_dims > 1)
        status = err_set(err, PS_EDATA,
                         "it is in Fortran order; expected C order (numpy.ascontiguousarray)");
    free(dict);
    if (status)
        return status;
    ret->offset = head_bytes;
    if (!array_bytes(ret, &ret->n_bytes))
        return err_set(err, PS_EDATA,
                       "its head is not that of an npy file: the shape is too large");
    if (file_bytes - head_bytes < ret->n_bytes)
        return err_set(err, PS_EDATA,
                       "it is cut short: %" PRIu64 " bytes of %" PRIu64 " of numbers are there",
                       file_bytes - head_bytes, ret->n_bytes);
    return 0;
}

/* --- safetensors --- */

static int take_number(const cJSON *item, uint64_t *ret)
{
    /* cJSON has doubles: exact up to 2^53. */
    if (!cJSON_IsNumber(item) ||
        !(item->valuedouble >= 0 && item->valuedouble <= 9007199254740992.0) ||
        item->valuedouble != (double)(uint64_t)item->valuedouble)
        return PS_EDATA;
    *ret = (uint64_t)item->valuedouble;
    return 0;
}

static int take_tensor(const cJSON *item, uint64_t data, uint64_t file_bytes,
                       struct tensor_input *ret)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(item, "dtype"),
                *shape = cJSON_GetObjectItemCaseSensitive(item, "shape"),
                *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets"), *dim;
    uint64_t first, end, n_bytes;

    if (!cJSON_IsString(type) || strlen(type->valuestring) >= sizeof ret->type ||
        !cJSON_IsArray(shape) || cJSON_GetArraySize(offsets) != 2 ||
        take_number(cJSON_GetArrayItem(offsets, 0), &first) ||
        take_number(cJSON_GetArrayItem(offsets, 1), &end) || end < first)
        return PS_EDATA;
    snprintf(ret->type, sizeof ret->type, "%s", type->valuestring);
    cJSON_ArrayForEach(dim, shape)
    {
        if (ret->n_dims == TENSOR_INPUT_DIMS_MAX || take_number(dim, &ret->dims[ret->n_dims++]))
            return PS_EDATA;
    }
    ret->offset = data + first;
    ret->n_bytes = end - first;
    if (item_bytes(ret->type) && (!array_bytes(ret, &n_bytes) || n_bytes != ret->n_bytes))
        return PS_EDATA;
    return end > file_bytes - data ? -ENODATA : 0;
}

static int take_notes(const cJSON *metadata, struct tensor_inputs *set, struct err *err)
{
    const cJSON *item;
    int status = 0;

    cJSON_ArrayForEach(item, metadata)
    {
        if (!status && cJSON_IsString(item) &&
            strncmp(item->string, NOTE_PREFIX, strlen(NOTE_PREFIX)) == 0)
            status = add_note(set, item->string + strlen(NOTE_PREFIX), item->valuestring, err);
    }
    return status;
}

static int add_tensor(const cJSON *item, uint64_t data, uint64_t file_bytes, int fd,
                      struct tensor_inputs *set, struct err *err)
{
    struct tensor_input t = { .fd = fd };
    int status;

    if (strcmp(item->string, SAFETENSORS_NO_NAME) == 0)
        return take_notes(item, set, err);
    if (strlen(item->string) >= sizeof t.name)
        return err_set(err, PS_EDATA, "the name of an array has more than %u bytes: %.60s...",
                       TENSOR_FILES_NAME_MAX - 1, item->string);
    snprintf(t.name, sizeof t.name, "%s", item->string);
    status = take_tensor(item, data, file_bytes, &t);
    if (status == -ENODATA)
        return err_set(err, PS_EDATA, "it is cut short: array %s ends behind its end", t.name);
    if (status)
        return err_set(err, status, "what its head says of array %s makes no sense", t.name);
    return add_input(set, &t, err);
}

int tensor_input_read_safetensors(const char *json, uint64_t json_bytes, uint64_t file_bytes,
                                  int fd, struct tensor_inputs *set, struct err *err)
{
    cJSON *root = cJSON_ParseWithLength(json, json_bytes + 1), *item;
    int status = 0;

    if (!cJSON_IsObject(root))
        status = err_set(err, PS_EDATA, "its head is no JSON object");
    if (!status)
        cJSON_ArrayForEach(item, root)
        {
            if (!status)
                status = add_tensor(item, 8 + json_bytes, file_bytes, fd, set, err);
        }
    cJSON_Delete(root);
    return status;
}

/* --- files --- */

static int read_at(int fd, uint64_t offset, void *dst, size_t n)
{
    uint8_t *at = dst;

    while (n) {
        ssize_t got = pread(fd, at, n, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -ENODATA;
        at += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

int tensor_input_read(const struct tensor_input *t, uint64_t from, void *dst, size_t n,
                      struct err *err)
{
    int status = read_at(t->fd, t->offset + from, dst, n);

    if (status == -ENODATA)
        return err_set(err, PS_EDATA, "array %s: its file has become shorter meanwhile",
                       t->name);
    return status ? err_set(err, status, "array %s cannot be read: %s", t->name,
                            status_text(status))
                  : 0;
}

/* Opens a regular file; the set closes it. */
static int open_file(struct tensor_inputs *set, const char *path, int *ret_fd,
                     uint64_t *ret_bytes, struct err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return err_set(err, -errno, "%.180s cannot be opened: %s", path, status_text(-errno));
    if (add_fd(set, fd))
        return err_set(err, -ENOMEM, "no memory");
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "%.180s is no file", path);
    *ret_fd = fd;
    *ret_bytes = (uint64_t)st.st_size;
    return 0;
}

static int name_file(const char *path, int status, struct err *err)
{
    struct err inner = *err;

    return status ? err_set(err, status, "%.120s: %s", path, inner.text) : 0;
}

static int read_npy_head(int fd, uint64_t file_bytes, const uint8_t *start,
                         struct tensor_input *t, struct err *err)
{
    const size_t head_bytes = tensor_input_npy_bytes(start);
    uint8_t *head;
    int status;

    if (head_bytes < NPY_START || head_bytes > NPY_HEAD_MAX || head_bytes > file_bytes)
        return err_set(err, PS_EDATA, "it is no npy file, or cut short");
    head = memory_try_alloc(head_bytes);
    if (!head)
        return err_set(err, -ENOMEM, "no memory");
    status = read_at(fd, 0, head, head_bytes);
    if (status)
        status = err_set(err, status, "it cannot be read: %s", status_text(status));
    else
        status = tensor_input_read_npy(head, head_bytes, file_bytes, t, err);
    free(head);
    t->fd = fd;
    return status;
}

static int read_safetensors_head(int fd, uint64_t file_bytes, uint64_t json_bytes,
                                 struct tensor_inputs *set, struct err *err)
{
    char *json;
    int status;

    if (json_bytes > JSON_MAX || json_bytes > file_bytes - 8)
        return err_set(err, PS_EDATA,
                       "it is neither an npy nor a safetensors file, or cut short");
    json = memory_try_alloc(json_bytes + 1);
    if (!json)
        return err_set(err, -ENOMEM, "no memory for a head of %" PRIu64 " bytes", json_bytes);
    status = read_at(fd, 8, json, json_bytes);
    if (status)
        status = err_set(err, status, "it cannot be read: %s", status_text(status));
    else
        status = tensor_input_read_safetensors(json, json_bytes, file_bytes, fd, set, err);
    free(json);
    return status;
}

/* NAME.npy -> NAME; bytes that came as %XX. */
static void name_of(const char *file, char ret[static TENSOR_FILES_NAME_MAX])
{
    const char *end = file + strlen(file) - strlen(".npy");
    uint32_t n = 0;
    unsigned value;
    int len;

    while (file < end && n + 1 < TENSOR_FILES_NAME_MAX) {
        len = 0;
        if (*file == '%' && end - file >= 3 && sscanf(file, "%%%2X%n", &value, &len) == 1 &&
            len == 3 && value) {
            ret[n++] = (char)value;
            file += 3;
        } else {
            ret[n++] = *file++;
        }
    }
    ret[n] = '\0';
}

/* One file of either kind; `name`: of an npy file's array. */
static int add_file(struct tensor_inputs *set, const char *path, const char *name,
                    struct err *err)
{
    struct tensor_input t = { 0 };
    uint8_t start[NPY_START] = { 0 };
    uint64_t n_bytes, json_bytes = 0;
    int fd, status = open_file(set, path, &fd, &n_bytes, err);

    if (status)
        return status;
    status = read_at(fd, 0, start, n_bytes < NPY_START ? (size_t)n_bytes : NPY_START);
    if (status)
        return err_set(err, status, "%.120s cannot be read: %s", path, status_text(status));
    if (memcmp(start, npy_magic, sizeof npy_magic) == 0 || n_bytes < 8) {
        name_of(name, t.name);
        status = read_npy_head(fd, n_bytes, start, &t, err);
        if (!status)
            status = add_input(set, &t, err);
    } else {
        memcpy(&json_bytes, start, 8);
        status = read_safetensors_head(fd, n_bytes, json_bytes, set, err);
    }
    return name_file(path, status, err);
}

/* What psctl export has written beside the arrays. */
static int add_index(struct tensor_inputs *set, const char *path, struct err *err)
{
    const cJSON *item;
    cJSON *root = NULL;
    uint64_t n_bytes;
    char *json, *text;
    int fd, status = open_file(set, path, &fd, &n_bytes, err);

    if (status)
        return status;
    json = n_bytes <= JSON_MAX ? memory_try_alloc(n_bytes + 1) : NULL;
    if (json && !read_at(fd, 0, json, n_bytes))
        root = cJSON_ParseWithLength(json, n_bytes + 1);
    free(json);
    if (!root)
        return err_set(err, PS_EDATA, "%.180s cannot be read, or is no JSON", path);
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "tables"))
    {
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(item, "name");

        text = cJSON_PrintUnformatted(item);
        if (!status && text && cJSON_IsString(name))
            status = add_note(set, name->valuestring, text, err);
        free(text);
    }
    cJSON_Delete(root);
    return status;
}

static int add_directory(struct tensor_inputs *set, const char *path, struct err *err)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;
    char file[TENSOR_FILES_PATH_MAX + 300];
    int status = 0;

    if (!dir)
        return err_set(err, -errno, "%.180s cannot be opened: %s", path, status_text(-errno));
    while (!status && (entry = readdir(dir)) != NULL) {
        const size_t n = strlen(entry->d_name);

        snprintf(file, sizeof file, "%.1000s/%s", path, entry->d_name);
        if (strcmp(entry->d_name, "tables.json") == 0)
            status = add_index(set, file, err);
        else if (n > 4 && strcmp(entry->d_name + n - 4, ".npy") == 0)
            status = add_file(set, file, entry->d_name, err);
    }
    closedir(dir);
    return status;
}

int tensor_inputs_open(struct tensor_inputs *ret, const char *path, struct err *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct stat st;
    int status;

    *ret = (struct tensor_inputs){ 0 };
    if (stat(path, &st))
        status = err_set(err, -errno, "%.180s cannot be opened: %s", path, status_text(-errno));
    else if (S_ISDIR(st.st_mode))
        status = add_directory(ret, path, err);
    else
        status = add_file(ret, path, strlen(name) > 4 ? name : "array.npy", err);
    if (!status && ret->n > 1)
        qsort(ret->items, ret->n, sizeof *ret->items, by_name);
    if (status)
        tensor_inputs_close(ret);
    return status;
}
