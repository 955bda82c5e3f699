#include "tests/emu/rt.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/memory.h"

/* Shared by the queues and graphs that it stands in. */
struct work {
    void (*run)(void *);
    void (*drop)(void *);
    void *arg;
    long n_owners;
};

enum op_kind { OP_WORK, OP_RECORD, OP_WAIT };

struct op {
    struct op *next;
    enum op_kind kind;
    struct work *work;
    struct emu_event *event;
    long version;
};

struct emu_event {
    long recorded, done; /* versions: the last one asked for, the last one reached */
    int device;
};

struct emu_stream {
    struct emu_stream *next;
    struct op *head, **tail;
    int number, device;
};

struct emu_graph {
    struct work **works;
    size_t n_works;
};

struct emu_graph_exec {
    struct emu_graph graph;
};

static struct {
    uint64_t random;
    struct emu_stream *streams;
    int n_streams_made;
    struct emu_stream *captured;
    struct emu_graph *capture;
    bool spoiled; /* the capture */
    int ignored;
    long calls_left;
    enum emu_rt_fault fault;
    bool failed;
    long alive;
} rt = { .random = 1, .ignored = -2, .calls_left = -1 };

/* Whom a capture forbids what: the thread that began it, or with cudaStreamCaptureModeGlobal all. */
static _Thread_local bool is_forbidden_here;
static _Atomic bool is_forbidden;

static _Thread_local int chosen_here = -1; /* the device; -1: none, which is 0 */
static _Atomic unsigned used_devices;

static uint32_t draw(uint32_t n)
{
    rt.random = rt.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(rt.random >> 33) % n;
}

bool emu_rt_is_real(void)
{
    return false;
}

void emu_rt_seed(uint64_t seed)
{
    assert(!emu_rt_alive() && !rt.streams && !rt.capture);
    memset(&rt, 0, sizeof rt);
    chosen_here = -1;
    used_devices = 0;
    rt.random = seed;
    rt.ignored = -2;
    rt.calls_left = -1;
}

int emu_rt_use_device(void)
{
    const int device = chosen_here < 0 ? 0 : chosen_here;

    used_devices |= 1u << device;
    return device;
}

bool emu_rt_has_device(int device)
{
    return chosen_here == device;
}

void emu_rt_set_device(int device)
{
    chosen_here = device;
}

unsigned emu_rt_used_devices(void)
{
    return used_devices;
}

void emu_rt_ignore_waits(int i)
{
    rt.ignored = i;
}

void emu_rt_fail(long n, enum emu_rt_fault fault)
{
    rt.calls_left = n;
    rt.fault = fault;
    rt.failed = false;
}

bool emu_rt_has_failed(void)
{
    return rt.failed;
}

bool emu_rt_is_faulty(void)
{
    if (rt.calls_left < 0)
        return false;
    if (rt.calls_left > 0) {
        rt.calls_left--;
        return false;
    }
    rt.failed = true;
    if (rt.fault == EMU_RT_ONCE)
        rt.calls_left = -1;
    return true;
}

long emu_rt_alive(void)
{
    return rt.alive + emu_memory_alive();
}

void emu_rt_count(long more)
{
    rt.alive += more;
}

bool emu_rt_is_capturing(void)
{
    return rt.capture != NULL;
}

static void *make(size_t n_bytes)
{
    void *made = calloc(1, n_bytes);

    assert(made);
    rt.alive++;
    return made;
}

static void unmake(void *made)
{
    rt.alive--;
    free(made);
}

cudaError_t emu_rt_forbid_in_capture(void)
{
    if (!is_forbidden_here && !is_forbidden)
        return cudaSuccess;
    rt.spoiled = true;
    return cudaErrorStreamCaptureUnsupported;
}

/* Work */

static void release(struct work *w)
{
    if (--w->n_owners)
        return;
    w->drop(w->arg);
    free(w);
}

static bool is_ready(const struct emu_stream *s)
{
    return s->head && !(s->head->kind == OP_WAIT && s->head->event->done < s->head->version);
}

static void run_head(struct emu_stream *s)
{
    struct op *op = s->head;

    s->head = op->next;
    if (!s->head)
        s->tail = &s->head;
    if (op->kind == OP_RECORD) {
        op->event->done = op->version;
    } else if (op->kind == OP_WORK) {
        emu_memory_open(s->device);
        op->work->run(op->work->arg);
        emu_memory_close();
        release(op->work);
    }
    free(op);
}

/* Of the streams whose head is ready one, each as likely. False: there is none. */
static bool run_one(void)
{
    uint32_t n = 0;

    for (struct emu_stream *s = rt.streams; s; s = s->next)
        n += is_ready(s);
    if (!n)
        return false;
    n = draw(n);
    for (struct emu_stream *s = rt.streams; s; s = s->next)
        if (is_ready(s) && !n--) {
            run_head(s);
            return true;
        }
    return false;
}

static void run_some(uint32_t most)
{
    for (uint32_t n = draw(most + 1); n && run_one(); n--)
        ;
}

void emu_rt_run_all(void)
{
    while (run_one())
        ;
}

static void push(struct emu_stream *s, struct op op)
{
    struct op *o = malloc(sizeof *o);

    assert(o);
    *o = op;
    *s->tail = o;
    s->tail = &o->next;
    if (!draw(4))
        run_some(3);
}

static void graph_add(struct emu_graph *g, struct work *w)
{
    g->works = realloc(g->works, (g->n_works + 1) * sizeof(struct work *));
    assert(g->works);
    g->works[g->n_works++] = w;
    w->n_owners++;
}

static void graph_clear(struct emu_graph *g)
{
    for (size_t i = 0; i < g->n_works; i++)
        release(g->works[i]);
    free(g->works);
    *g = (struct emu_graph){ 0 };
}

cudaError_t emu_stream_launch(cudaStream_t s, void (*run)(void *), void (*drop)(void *),
                              void *arg)
{
    const int device = emu_rt_use_device();
    struct work *w;

    if (s && s->device != device) {
        drop(arg);
        return cudaErrorInvalidResourceHandle;
    }
    if (emu_rt_is_faulty()) {
        drop(arg);
        return cudaErrorIllegalAddress;
    }
    if (!s) {
        run(arg);
        drop(arg);
        return cudaSuccess;
    }
    w = malloc(sizeof *w);
    assert(w);
    *w = (struct work){ run, drop, arg, 0 };
    if (s == rt.captured) {
        graph_add(rt.capture, w);
    } else {
        w->n_owners = 1;
        push(s, (struct op){ .kind = OP_WORK, .work = w });
    }
    return cudaSuccess;
}

/* Streams and events */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret_s, unsigned flags)
{
    struct emu_stream *s;

    (void)flags;
    if (emu_rt_is_faulty())
        return cudaErrorMemoryAllocation;
    s = make(sizeof *s);
    *s = (struct emu_stream){ .next = rt.streams,
                              .number = rt.n_streams_made++,
                              .device = emu_rt_use_device() };
    s->tail = &s->head;
    rt.streams = *ret_s = s;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    struct emu_stream **at = &rt.streams;

    (void)emu_rt_use_device();
    emu_rt_run_all();
    assert(!s->head && s != rt.captured);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    unmake(s);
    return cudaSuccess;
}

static void die_of_deadlock(void)
{
    fprintf(stderr, "emulated runtime: the host waits for what nothing can reach\n");
    abort();
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    const cudaError_t forbidden = emu_rt_forbid_in_capture();

    (void)emu_rt_use_device();
    if (forbidden)
        return forbidden;
    while (s->head)
        if (!run_one())
            die_of_deadlock();
    return emu_rt_is_faulty() ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    (void)flags;
    if (emu_rt_is_faulty())
        return cudaErrorMemoryAllocation;
    *e = make(sizeof **e);
    (*e)->device = emu_rt_use_device();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    (void)emu_rt_use_device();
    emu_rt_run_all();
    unmake(e);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    if (emu_rt_is_faulty())
        return cudaErrorIllegalAddress;
    assert(s != rt.captured);
    (void)emu_rt_use_device();
    if (e->device != s->device)
        return cudaErrorInvalidResourceHandle;
    push(s, (struct op){ .kind = OP_RECORD, .event = e, .version = ++e->recorded });
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    (void)flags;
    if (emu_rt_is_faulty())
        return cudaErrorIllegalAddress;
    assert(s != rt.captured);
    (void)emu_rt_use_device();
    if (s->number != rt.ignored)
        push(s, (struct op){ .kind = OP_WAIT, .event = e, .version = e->recorded });
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    const cudaError_t forbidden = emu_rt_forbid_in_capture();

    (void)emu_rt_use_device();
    if (forbidden)
        return forbidden;
    while (rt.ignored != -1 && e->done < e->recorded)
        if (!run_one())
            die_of_deadlock();
    run_some(2);
    return emu_rt_is_faulty() ? cudaErrorIllegalAddress : cudaSuccess;
}

/* Graphs */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    if (emu_rt_is_faulty())
        return cudaErrorStreamCaptureUnsupported;
    assert(!rt.capture && !s->head);
    (void)emu_rt_use_device();
    rt.captured = s;
    rt.capture = make(sizeof *rt.capture);
    is_forbidden_here = mode == cudaStreamCaptureModeThreadLocal;
    is_forbidden = mode == cudaStreamCaptureModeGlobal;
    rt.spoiled = false;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    assert(s == rt.captured);
    *graph = rt.capture;
    rt.capture = NULL;
    rt.captured = NULL;
    is_forbidden_here = false;
    is_forbidden = false;
    if (!rt.spoiled && !emu_rt_is_faulty())
        return cudaSuccess;
    cudaGraphDestroy(*graph);
    *graph = NULL;
    return cudaErrorStreamCaptureInvalidated;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags)
{
    (void)flags;
    if (emu_rt_is_faulty())
        return cudaErrorMemoryAllocation;
    (void)emu_rt_use_device();
    *exec = make(sizeof **exec);
    for (size_t i = 0; i < graph->n_works; i++)
        graph_add(&(*exec)->graph, graph->works[i]);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    graph_clear(graph);
    unmake(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    if (emu_rt_is_faulty())
        return cudaErrorIllegalAddress;
    if (s->device != emu_rt_use_device())
        return cudaErrorInvalidResourceHandle;
    for (size_t i = 0; i < exec->graph.n_works; i++) {
        exec->graph.works[i]->n_owners++;
        push(s, (struct op){ .kind = OP_WORK, .work = exec->graph.works[i] });
    }
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    graph_clear(&exec->graph);
    unmake(exec);
    return cudaSuccess;
}
