#include "worker/client/request.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

struct request *request_new(uint32_t n_sections)
{
    struct request *r = memory_try_alloc(sizeof *r + n_sections * sizeof r->sections[0]);

    if (r)
        r->n_sections = r->cap_sections = n_sections;
    return r;
}

static void destroy(struct request *r)
{
    bytes_deinit(&r->bytes);
    free(r);
}

void request_free(struct request *r)
{
    if (!r)
        return;
    if (r->most_bytes < r->bytes.end)
        r->most_bytes = r->bytes.end;
    memory_hide(r->bytes.bytes, r->bytes.cap_bytes);
    if (r->home && shared_free_list_push(r->home, &r->pooled, sizeof *r + r->most_bytes))
        return; /* another thread may have it by now */
    memory_show(r->bytes.bytes, r->bytes.cap_bytes);
    destroy(r);
}

static void copy_sections(const struct request *r, const uint32_t *table_ids,
                          struct section *ret)
{
    memcpy(ret, r->sections, r->n_sections * sizeof *ret);
    for (uint32_t i = 0; i < r->n_sections; i++)
        ret[i].table_id = table_ids[r->sections[i].table_id];
}

void request_push(const struct request *r, const uint32_t *table_ids, struct push *ret)
{
    ret->seq = r->seq;
    ret->clock = r->clock;
    ret->n_samples = r->n_samples;
    ret->tick = r->tick;
    ret->keys_of = 0;
    ret->n_sections = r->n_sections;
    copy_sections(r, table_ids, ret->sections);
}

void request_pull(const struct request *r, const uint32_t *table_ids, uint32_t deadline_ms,
                  struct pull *ret)
{
    ret->clock = r->clock;
    ret->unfinished = r->unfinished;
    ret->deadline_ms = deadline_ms;
    ret->keep = r->keep_number != 0;
    ret->n_sections = r->n_sections;
    copy_sections(r, table_ids, ret->sections);
}

/* ---- frames ---- */

/* Of a frame beside its body: as much as a push may have. A pull with more grows its buffer. */
#define HEAD_BYTES 256u
#define SECTION_HEAD_BYTES 48u

size_t request_push_bytes_max(const struct request *r)
{
    return HEAD_BYTES + r->n_sections * SECTION_HEAD_BYTES + bytes_len(&r->bytes);
}

static int reserve_frame(const struct request *r, struct channel_loop *channels,
                         struct bytes *ret)
{
    return channel_loop_acquire(channels, request_push_bytes_max(r), ret);
}

int request_frame_push(const struct request *r, const struct push *push,
                       struct channel_loop *channels, struct message_zstd *zstd,
                       struct bytes *ret)
{
    const int status = reserve_frame(r, channels, ret);

    return status ? status : message_write_push(ret, r->request_id, push, zstd);
}

int request_frame_pull(const struct request *r, const uint32_t *table_ids, uint64_t now_ms,
                       struct channel_loop *channels, struct message_zstd *zstd,
                       struct bytes *ret)
{
    uint64_t waited_ms = now_ms - r->asked_ms;
    uint32_t left_ms = waited_ms < r->deadline_ms ? r->deadline_ms - (uint32_t)waited_ms : 1;
    struct pull pull;
    int status = reserve_frame(r, channels, ret);

    if (status)
        return status;
    request_pull(r, table_ids, left_ms, &pull);
    return message_write_pull(ret, r->request_id, &pull, zstd);
}

/* ---- a set ---- */

void request_set_init(struct request_set *s, uint32_t n_shards, size_t max_bytes)
{
    s->n_shards = n_shards;
    s->requests = NULL;
    shared_free_list_init(&s->free_list, 2 * n_shards, max_bytes);
}

/* One that has come home, as it was; NULL: there is none. */
static struct request *take_home(struct shared_free_list *home)
{
    struct shared_free_link *pooled = shared_free_list_pop(home);
    struct request *r = pooled ? CONTAINER_OF(pooled, struct request, pooled) : NULL;

    if (r)
        memory_show(r->bytes.bytes, r->bytes.cap_bytes);
    return r;
}

void request_set_deinit(struct request_set *s)
{
    struct request *r;

    request_set_release(s);
    while ((r = take_home(&s->free_list)) != NULL)
        destroy(r);
    shared_free_list_deinit(&s->free_list);
    free(s->requests);
}

/* Space for more sections. Frees the request if it cannot grow. */
static struct request *grow(struct request *r, uint32_t n_sections)
{
    struct request *grown =
        memory_try_realloc(r, sizeof *r + n_sections * sizeof r->sections[0]);

    if (grown)
        grown->cap_sections = n_sections;
    else
        destroy(r);
    return grown;
}

static struct request *acquire(struct shared_free_list *home, uint32_t n_sections)
{
    struct request *r = take_home(home);

    if (!r)
        r = request_new(n_sections);
    else if (r->cap_sections < n_sections)
        r = grow(r, n_sections);
    if (!r)
        return NULL;
    bytes_consume(&r->bytes, bytes_len(&r->bytes));
    *r = (struct request){ .home = home,
                           .bytes = r->bytes,
                           .most_bytes = r->most_bytes,
                           .n_sections = n_sections,
                           .cap_sections = r->cap_sections };
    return r;
}

int request_set_acquire(struct request_set *s, uint32_t n_sections)
{
    if (!s->requests)
        s->requests = memory_try_alloc(s->n_shards * sizeof(struct request *));
    if (!s->requests)
        return -ENOMEM;
    for (uint32_t i = 0; i < s->n_shards; i++) {
        s->requests[i] = acquire(&s->free_list, n_sections);
        if (!s->requests[i]) {
            request_set_release(s);
            return -ENOMEM;
        }
    }
    return 0;
}

void request_set_release(struct request_set *s)
{
    for (uint32_t i = 0; s->requests && i < s->n_shards; i++)
        request_free(s->requests[i]);
    request_set_reset(s);
}

void request_set_reset(struct request_set *s)
{
    for (uint32_t i = 0; s->requests && i < s->n_shards; i++)
        s->requests[i] = NULL;
}

/* ---- a queue ---- */

void request_queue_add(struct request_queue *q, struct request *push)
{
    assert(!push->seq || push->seq == q->last_seq + 1);
    push->seq = ++q->last_seq;
    push->next = NULL;
    if (q->last)
        q->last->next = push;
    else
        q->first = push;
    q->last = push;
}

struct request *request_queue_ack(struct request_queue *q)
{
    struct request *push = q->first;

    if (!push)
        return NULL;
    q->first = push->next;
    if (!q->first)
        q->last = NULL;
    q->last_acked = push->seq;
    push->next = NULL;
    return push;
}

void request_queue_clear(struct request_queue *q)
{
    struct request *push;

    while ((push = request_queue_ack(q)))
        request_free(push);
    *q = (struct request_queue){ 0 };
}
