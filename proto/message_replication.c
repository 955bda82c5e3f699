#include "proto/message_replication.h"

#include <assert.h>
#include <string.h>

#include "common/status.h"
#include "proto/message_groups.h"
#include "proto/message_head.h"
#include "proto/ps.pb-c.h"

/* ---- groups ---- */

void message_groups_put(const struct groups *groups, struct message_groups *ret)
{
    assert(groups->n <= MESSAGE_NODES_MAX);
    for (uint32_t i = 0; i < groups->n; i++) {
        const struct group *group = &groups->items[i];

        ps__group__init(&ret->items[i]);
        ret->items[i].term = group->term;
        ret->items[i].in_sync = group->in_sync;
        ret->items[i].primary = (char *)group->primary;
        ret->items[i].standby = (char *)group->standby;
        ret->list[i] = &ret->items[i];
    }
}

int message_groups_take(Ps__Group *const *list, size_t n, uint64_t number, struct groups *ret)
{
    if (n > MESSAGE_NODES_MAX)
        return PS_EPROTO;
    ret->number = number;
    ret->n = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        struct group *group = &ret->items[i];

        group->term = list[i]->term;
        group->in_sync = list[i]->in_sync != 0;
        if (message_head_name(group->primary, sizeof group->primary, list[i]->primary) ||
            message_head_name(group->standby, sizeof group->standby, list[i]->standby))
            return PS_EPROTO;
    }
    return 0;
}

/* ---- frames with a body ---- */

static int write_with_body(struct bytes *out, enum frame_type type, uint64_t request_id,
                           const ProtobufCMessage *head, const uint8_t *bytes, size_t n_bytes)
{
    struct frame_header header = { .type = type, .request_id = request_id };
    uint8_t *body;
    int status = message_head_open(out, head, n_bytes, &header, &body);

    if (status)
        return status;
    if (n_bytes)
        memcpy(body, bytes, n_bytes);
    message_head_seal(out, &header, body, NULL);
    return 0;
}

static int take_records(const uint64_t *src, size_t n, uint32_t *ret_n, uint64_t *ret)
{
    if (n > MESSAGE_NODE_SHARDS_MAX)
        return PS_EPROTO;
    *ret_n = (uint32_t)n;
    if (n)
        memcpy(ret, src, n * sizeof *ret);
    return 0;
}

/* How many terms of so many shards the body has. */
static int count_terms(size_t body_bytes, uint32_t n_shards, uint32_t *ret_n)
{
    size_t n = body_bytes / message_terms_bytes(1, n_shards);

    if (n > MESSAGE_TERMS_MAX || body_bytes != message_terms_bytes((uint32_t)n, n_shards))
        return PS_ECOUNT;
    *ret_n = (uint32_t)n;
    return 0;
}

/* ---- follow ---- */

int message_write_follow(struct bytes *out, uint64_t request_id, const struct follow *m)
{
    Ps__Follow head = PS__FOLLOW__INIT;

    head.term = m->term;
    head.history = m->history;
    head.features = m->features;
    head.memory_max = m->memory_max;
    head.settings = (char *)m->settings;
    head.cpu = (char *)m->cpu;
    head.address = (char *)m->address;
    head.n_last = m->n_shards;
    head.last = (uint64_t *)m->last;
    head.n_stored = m->n_shards;
    head.stored = (uint64_t *)m->stored;
    return write_with_body(out, FRAME_FOLLOW, request_id, &head.base, m->terms,
                           message_terms_bytes(m->n_terms, m->n_shards));
}

static int take_follow(const void *message, void *ret)
{
    const Ps__Follow *head = message;
    struct follow *m = ret;

    m->term = head->term;
    m->history = head->history;
    m->features = head->features;
    m->memory_max = head->memory_max;
    if (message_head_name(m->settings, sizeof m->settings, head->settings) ||
        message_head_name(m->cpu, sizeof m->cpu, head->cpu) ||
        message_head_name(m->address, sizeof m->address, head->address))
        return PS_EPROTO;
    if (take_records(head->last, head->n_last, &m->n_shards, m->last))
        return PS_EPROTO;
    memset(m->stored, 0, m->n_shards * sizeof *m->stored); /* an older standby does not say */
    if (head->n_stored && head->n_stored != m->n_shards)
        return PS_EPROTO;
    if (head->n_stored)
        memcpy(m->stored, head->stored, m->n_shards * sizeof *m->stored);
    return 0;
}

int message_read_follow(const struct frame_header *h, const uint8_t *head, const uint8_t *body,
                        size_t body_bytes, struct follow *ret)
{
    int status = message_head_read(&ps__follow__descriptor, h, head, take_follow, ret);

    ret->terms = body;
    return status ? status : count_terms(body_bytes, ret->n_shards, &ret->n_terms);
}

int message_write_follow_reply(struct bytes *out, uint64_t request_id,
                               const struct follow_reply *m)
{
    Ps__FollowReply head = PS__FOLLOW_REPLY__INIT;

    head.status = m->status;
    head.text = (char *)m->text;
    head.term = m->term;
    head.history = m->history;
    head.cpu = (char *)m->cpu;
    if (!m->status) {
        head.action = m->action;
        head.begun = m->begun;
        head.patience_ms = m->patience_ms;
        head.n_keep = m->n_shards;
        head.keep = (uint64_t *)m->keep;
    }
    return write_with_body(out, FRAME_FOLLOW_REPLY, request_id, &head.base, m->terms,
                           m->status ? 0 : message_terms_bytes(m->n_terms, m->n_shards));
}

static int take_follow_reply(const void *message, void *ret)
{
    const Ps__FollowReply *head = message;
    struct follow_reply *m = ret;

    if (message_head_status(&m->status, head->status) || head->action >= FOLLOW_ACTION_END ||
        (!m->status) != (head->action != 0))
        return PS_EPROTO;
    message_head_text(m->text, sizeof m->text, head->text);
    m->term = head->term;
    m->history = head->history;
    m->action = (enum follow_action)head->action;
    m->begun = m->status || head->begun >= FOLLOW_BEGUN_END ? FOLLOW_BEGUN_UNKNOWN
                                                            : (enum follow_begun)head->begun;
    m->patience_ms = head->patience_ms;
    if (message_head_name(m->cpu, sizeof m->cpu, head->cpu))
        return PS_EPROTO;
    return take_records(head->keep, m->status ? 0 : head->n_keep, &m->n_shards, m->keep);
}

int message_read_follow_reply(const struct frame_header *h, const uint8_t *head,
                              const uint8_t *body, size_t body_bytes, struct follow_reply *ret)
{
    int status =
        message_head_read(&ps__follow_reply__descriptor, h, head, take_follow_reply, ret);

    ret->terms = body;
    ret->n_terms = 0;
    if (status || ret->status)
        return status;
    return count_terms(body_bytes, ret->n_shards, &ret->n_terms);
}

/* ---- file ---- */

int message_write_file(struct bytes *out, uint64_t request_id, const struct file_request *m)
{
    Ps__File head = PS__FILE__INIT;

    head.name = (char *)m->name;
    head.offset = m->offset;
    head.max_bytes = m->max_bytes;
    return message_head_write(out, FRAME_FILE, request_id, &head.base);
}

static int take_file(const void *message, void *ret)
{
    const Ps__File *head = message;
    struct file_request *m = ret;

    m->offset = head->offset;
    m->max_bytes = head->max_bytes;
    return message_head_name(m->name, sizeof m->name, head->name);
}

int message_read_file(const struct frame_header *h, const uint8_t *head,
                      struct file_request *ret)
{
    return message_head_read(&ps__file__descriptor, h, head, take_file, ret);
}

int message_write_file_reply(struct bytes *out, uint64_t request_id, const struct file_reply *m)
{
    Ps__FileReply head = PS__FILE_REPLY__INIT;

    head.status = m->status;
    head.text = (char *)m->text;
    head.file_bytes = m->file_bytes;
    return write_with_body(out, FRAME_FILE_REPLY, request_id, &head.base, m->bytes, m->n_bytes);
}

static int take_file_reply(const void *message, void *ret)
{
    const Ps__FileReply *head = message;
    struct file_reply *m = ret;

    if (message_head_status(&m->status, head->status))
        return PS_EPROTO;
    message_head_text(m->text, sizeof m->text, head->text);
    m->file_bytes = head->file_bytes;
    return 0;
}

int message_read_file_reply(const struct frame_header *h, const uint8_t *head,
                            const uint8_t *body, size_t body_bytes, struct file_reply *ret)
{
    ret->bytes = body;
    ret->n_bytes = body_bytes;
    return message_head_read(&ps__file_reply__descriptor, h, head, take_file_reply, ret);
}

/* ---- fetch ---- */

int message_write_fetch(struct bytes *out, uint64_t request_id, const struct fetch *m)
{
    Ps__Fetch head = PS__FETCH__INIT;

    head.term = m->term;
    head.next = m->next;
    head.durable = m->durable;
    head.applied = m->applied;
    head.wait_ms = m->wait_ms;
    head.max_bytes = m->max_bytes;
    head.heard_ms = m->heard_ms;
    head.differs = (char *)m->differs;
    return message_head_write(out, FRAME_FETCH, request_id, &head.base);
}

/* What was fetched is before `next`: a standby has neither written nor applied more. */
static int take_fetch(const void *message, void *ret)
{
    const Ps__Fetch *head = message;
    struct fetch *m = ret;

    if (!head->next || head->durable >= head->next || head->applied >= head->next)
        return PS_EPROTO;
    *m = (struct fetch){
        .term = head->term,
        .next = head->next,
        .durable = head->durable,
        .applied = head->applied,
        .heard_ms = head->heard_ms,
        .wait_ms = head->wait_ms,
        .max_bytes = head->max_bytes,
    };
    message_head_text(m->differs, sizeof m->differs, head->differs);
    return 0;
}

int message_read_fetch(const struct frame_header *h, const uint8_t *head, struct fetch *ret)
{
    return message_head_read(&ps__fetch__descriptor, h, head, take_fetch, ret);
}

static Ps__FetchReply head_of_fetch_reply(const struct fetch_reply *m)
{
    Ps__FetchReply head = PS__FETCH_REPLY__INIT;

    head.status = m->status;
    head.text = (char *)m->text;
    head.term = m->term;
    head.first = m->first;
    head.n_records = m->n_records;
    head.appended = m->appended;
    head.durable = m->durable;
    head.sent_ms = m->sent_ms;
    head.in_sync = m->in_sync;
    head.audit = (ProtobufCBinaryData){ m->audit_bytes, (uint8_t *)m->audit };
    head.hands_over = m->hands_over;
    return head;
}

int message_write_fetch_reply(struct bytes *out, uint64_t request_id,
                              const struct fetch_reply *m)
{
    const Ps__FetchReply head = head_of_fetch_reply(m);

    return write_with_body(out, FRAME_FETCH_REPLY, request_id, &head.base, m->records,
                           m->record_bytes);
}

int message_write_fetch_reply_around(struct bytes *records, uint32_t crc, uint64_t request_id,
                                     const struct fetch_reply *m)
{
    struct frame_header header = { .type = FRAME_FETCH_REPLY, .request_id = request_id };
    const Ps__FetchReply head = head_of_fetch_reply(m);

    return message_head_prepend(records, crc, &header, &head.base);
}

static int take_fetch_reply(const void *message, void *ret)
{
    const Ps__FetchReply *head = message;
    struct fetch_reply *m = ret;

    if (message_head_status(&m->status, head->status) || head->durable > head->appended ||
        head->audit.len > sizeof m->audit ||
        (head->n_records && (!head->first || head->first > UINT64_MAX - head->n_records)))
        return PS_EPROTO;
    message_head_text(m->text, sizeof m->text, head->text);
    m->term = head->term;
    m->first = head->first;
    m->n_records = head->n_records;
    m->appended = head->appended;
    m->durable = head->durable;
    m->sent_ms = head->sent_ms;
    m->in_sync = head->in_sync;
    m->audit_bytes = (uint32_t)head->audit.len;
    if (head->audit.len)
        memcpy(m->audit, head->audit.data, head->audit.len);
    m->hands_over = head->hands_over;
    return 0;
}

int message_read_fetch_reply(const struct frame_header *h, const uint8_t *head,
                             const uint8_t *body, size_t body_bytes, struct fetch_reply *ret)
{
    int status =
        message_head_read(&ps__fetch_reply__descriptor, h, head, take_fetch_reply, ret);

    ret->records = body;
    ret->record_bytes = body_bytes;
    if (!status && (ret->n_records == 0) != (body_bytes == 0))
        status = PS_ECOUNT;
    return status;
}

/* ---- watch ---- */

int message_write_watch(struct bytes *out, uint64_t request_id, const struct watch *m)
{
    Ps__Watch head = PS__WATCH__INIT;

    head.above = m->above;
    head.wait_ms = m->wait_ms;
    return message_head_write(out, FRAME_WATCH, request_id, &head.base);
}

static int take_watch(const void *message, void *ret)
{
    const Ps__Watch *head = message;

    *(struct watch *)ret = (struct watch){ .above = head->above, .wait_ms = head->wait_ms };
    return 0;
}

int message_read_watch(const struct frame_header *h, const uint8_t *head, struct watch *ret)
{
    return message_head_read(&ps__watch__descriptor, h, head, take_watch, ret);
}

int message_write_watch_reply(struct bytes *out, uint64_t request_id,
                              const struct watch_reply *m)
{
    Ps__WatchReply head = PS__WATCH_REPLY__INIT;
    struct message_groups groups;

    head.status = m->status;
    head.text = (char *)m->text;
    head.number = m->groups.number;
    message_groups_put(&m->groups, &groups);
    head.n_groups = m->groups.n;
    head.groups = groups.list;
    return message_head_write(out, FRAME_WATCH_REPLY, request_id, &head.base);
}

static int take_watch_reply(const void *message, void *ret)
{
    const Ps__WatchReply *head = message;
    struct watch_reply *m = ret;

    if (message_head_status(&m->status, head->status))
        return PS_EPROTO;
    message_head_text(m->text, sizeof m->text, head->text);
    return message_groups_take(head->groups, head->n_groups, head->number, &m->groups);
}

int message_read_watch_reply(const struct frame_header *h, const uint8_t *head,
                             struct watch_reply *ret)
{
    return message_head_read(&ps__watch_reply__descriptor, h, head, take_watch_reply, ret);
}
