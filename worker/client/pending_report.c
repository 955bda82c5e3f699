#include "worker/client/pending_report.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "common/memory.h"

/* Numbers of reports. */
struct node {
    _Atomic uint64_t sent;
    uint64_t answered; /* under the lock */
};

struct pending_report {
    char job[TABLE_SPEC_NAME_MAX];
    uint32_t rank;
    uv_mutex_t lock; /* of all below */
    uv_cond_t was_answered;
    _Atomic uint64_t newest; /* number of the report; 0: none was put */
    struct learning_report report;
    bool is_taken; /* by any node */
    uint64_t incarnation;
    struct node *nodes; /* owned; changed by open alone */
    uint32_t n_nodes;
};

struct pending_report *pending_report_new(const char *job, uint32_t rank)
{
    struct pending_report *o = memory_try_alloc(sizeof *o);

    if (!o || uv_mutex_init(&o->lock)) {
        free(o);
        return NULL;
    }
    if (uv_cond_init(&o->was_answered)) {
        uv_mutex_destroy(&o->lock);
        free(o);
        return NULL;
    }
    snprintf(o->job, sizeof o->job, "%s", job);
    o->rank = rank;
    return o;
}

void pending_report_free(struct pending_report *o)
{
    if (!o)
        return;
    uv_cond_destroy(&o->was_answered);
    uv_mutex_destroy(&o->lock);
    free(o->nodes);
    free(o);
}

/* What `report` says, and of the one before it the loss, as nobody has got that. */
static struct learning_report merged(const struct learning_report *before,
                                     const struct learning_report *report)
{
    const double n_before = before->steps, n = report->steps;
    struct learning_report both = *report;

    if (!before->steps)
        return both;
    if (!report->steps) {
        both.loss = before->loss;
        memcpy(both.busy, before->busy, sizeof both.busy);
    } else {
        both.loss = (float)(((double)before->loss * n_before + (double)report->loss * n) /
                            (n_before + n));
    }
    both.steps =
        before->steps > UINT32_MAX - report->steps ? UINT32_MAX : before->steps + report->steps;
    return both;
}

void pending_report_put(struct pending_report *o, const struct learning_report *report)
{
    uv_mutex_lock(&o->lock);
    o->report = o->newest && !o->is_taken ? merged(&o->report, report) : *report;
    o->is_taken = false;
    o->newest++;
    uv_mutex_unlock(&o->lock);
}

static bool is_answered(const struct pending_report *o)
{
    for (uint32_t i = 0; i < o->n_nodes; i++)
        if (o->nodes[i].answered < o->newest)
            return false;
    return true;
}

void pending_report_wait(struct pending_report *o, uint32_t timeout_ms)
{
    const uint64_t until_ns = uv_hrtime() + timeout_ms * UINT64_C(1000000);
    uint64_t now_ns;

    uv_mutex_lock(&o->lock);
    while (!is_answered(o) && (now_ns = uv_hrtime()) < until_ns)
        (void)uv_cond_timedwait(&o->was_answered, &o->lock, until_ns - now_ns);
    uv_mutex_unlock(&o->lock);
}

int pending_report_open(struct pending_report *o, uint32_t n_nodes)
{
    struct node *nodes = o ? memory_try_alloc(n_nodes * sizeof *nodes) : NULL;

    if (!nodes)
        return o ? -ENOMEM : 0;
    uv_mutex_lock(&o->lock);
    for (uint32_t i = 0; i < n_nodes; i++) {
        nodes[i].sent = o->newest;
        nodes[i].answered = o->newest;
    }
    free(o->nodes);
    o->nodes = nodes;
    o->n_nodes = n_nodes;
    uv_mutex_unlock(&o->lock);
    return 0;
}

bool pending_report_has(const struct pending_report *o, uint32_t node)
{
    return o && node < o->n_nodes && o->nodes[node].sent != o->newest;
}

void pending_report_take(struct pending_report *o, uint32_t node, uint64_t incarnation,
                         struct beat *ret)
{
    if (o && incarnation)
        o->incarnation = incarnation;
    if (!pending_report_has(o, node))
        return;
    uv_mutex_lock(&o->lock);
    ret->has_learning = true;
    ret->learning = o->report;
    o->is_taken = true;
    o->nodes[node].sent = o->newest;
    uv_mutex_unlock(&o->lock);
    if (incarnation)
        return;
    snprintf(ret->job, sizeof ret->job, "%s", o->job);
    ret->rank = o->rank;
    ret->incarnation = o->incarnation;
}

void pending_report_answered(struct pending_report *o, uint32_t node)
{
    if (!o || node >= o->n_nodes)
        return;
    uv_mutex_lock(&o->lock);
    o->nodes[node].answered = o->nodes[node].sent;
    uv_cond_broadcast(&o->was_answered);
    uv_mutex_unlock(&o->lock);
}
