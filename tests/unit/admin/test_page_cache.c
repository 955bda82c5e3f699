/* Pages rendered on a thread of their own, and shared. */
#include <stdatomic.h>

#include "common/clock.h"
#include "server/admin/page_cache.h"
#include "tests/unit/admin/fixture.h"

#define BIG_BYTES (PAGE_CACHE_BYTES_MAX / 4)

static _Atomic uint32_t n_rendered;

/* A rendering waits here. */
struct gated_node {
    struct node_report report;
    uv_sem_t entered, gate;
};

static void with_report(void *node, void (*use)(void *arg, const struct node_report *report),
                        void *arg)
{
    struct gated_node *n = node;

    uv_sem_post(&n->entered);
    uv_sem_wait(&n->gate);
    use(arg, &n->report);
}

static char *render_number(void *owner, const struct node_report *node)
{
    char *text = malloc(16);

    (void)owner, (void)node;
    snprintf(text, 16, "%u", atomic_fetch_add(&n_rendered, 1) + 1);
    return text;
}

static char *render_big(void *owner, const struct node_report *node)
{
    char *text = malloc(BIG_BYTES + 1);

    (void)owner, (void)node;
    memset(text, 'x', BIG_BYTES);
    text[BIG_BYTES] = '\0';
    return text;
}

static char *render_nothing(void *owner, const struct node_report *node)
{
    (void)owner, (void)node;
    return NULL;
}

enum { NUMBER, BIG, NOTHING, N_PAGES };

static const page_cache_render renders[N_PAGES] = { render_number, render_big, render_nothing };

struct one {
    struct page_waiter waiter;
    uv_sem_t made;
};

static void on_made(struct page_waiter *waiter)
{
    uv_sem_post(&CONTAINER_OF(waiter, struct one, waiter)->made);
}

static void ask(struct page_cache *c, uint32_t page, struct one *one)
{
    *one = (struct one){ .waiter.on_made = on_made };
    assert_int_equal(uv_sem_init(&one->made, 0), 0);
    page_cache_wait(c, page, &one->waiter);
}

static struct page_text *take(struct one *one)
{
    uv_sem_wait(&one->made);
    uv_sem_destroy(&one->made);
    return one->waiter.text;
}

static struct page_cache *started(struct gated_node *n)
{
    struct page_cache *c = NULL;
    struct err err;

    *n = (struct gated_node){ 0 };
    atomic_store(&n_rendered, 0);
    assert_int_equal(uv_sem_init(&n->entered, 0), 0);
    assert_int_equal(uv_sem_init(&n->gate, 0), 0);
    assert_int_equal(page_cache_start(renders, N_PAGES, NULL, with_report, n, &c, &err), 0);
    return c;
}

static void stop(struct page_cache *c, struct gated_node *n)
{
    page_cache_stop(c);
    page_cache_free(c);
    uv_sem_destroy(&n->entered);
    uv_sem_destroy(&n->gate);
}

static void all_who_ask_meanwhile_share_one_rendering(void **state)
{
    enum { N = 100 };
    struct gated_node n;
    struct page_cache *c = started(&n);
    struct page_text *text;
    struct one all[N];

    (void)state;
    assert_null(page_cache_find(c, NUMBER));
    ask(c, NUMBER, &all[0]);
    uv_sem_wait(&n.entered);
    for (int i = 1; i < N; i++)
        ask(c, NUMBER, &all[i]);
    uv_sem_post(&n.gate);
    for (int i = 0; i < N; i++) {
        text = take(&all[i]);
        assert_string_equal(text->text, "1");
        assert_int_equal(text->n_bytes, 1);
        page_text_release(text);
    }
    assert_int_equal(atomic_load(&n_rendered), 1);
    stop(c, &n);
}

/* Asked without end, it is rendered no more than so often; and what is served is never older. */
static void a_text_is_served_while_it_is_fresh_and_no_longer(void **state)
{
    struct gated_node n;
    struct page_cache *c = started(&n);
    uint64_t made_ms, seen_ms;
    struct page_text *text;
    struct one one;

    (void)state;
    ask(c, NUMBER, &one);
    uv_sem_wait(&n.entered);
    made_ms = clock_mono_ms();
    while (clock_mono_ms() < made_ms + 3) /* so long does it take, so it is fresh for 300 ms */
        ;
    uv_sem_post(&n.gate);
    text = take(&one);
    page_text_release(text);
    do {
        seen_ms = clock_mono_ms();
        text = page_cache_find(c, NUMBER);
        if (text)
            assert_string_equal(text->text, "1");
        page_text_release(text);
    } while (text);
    assert_in_range(seen_ms - made_ms, 200, PAGE_CACHE_FRESH_MS + 500);
    uv_sem_post(&n.gate);
    ask(c, NUMBER, &one);
    text = take(&one);
    assert_string_equal(text->text, "2");
    page_text_release(text);
    stop(c, &n);
}

static void texts_that_are_held_are_bounded(void **state)
{
    enum { N = 6 };
    struct gated_node n;
    struct page_cache *c = started(&n);
    struct page_text *texts[N];
    struct one one;

    (void)state;
    for (int i = 0; i < N; i++) {
        while ((texts[i] = page_cache_find(c, BIG)) != NULL)
            page_text_release(texts[i]); /* until it is not fresh */
        uv_sem_post(&n.gate);
        ask(c, BIG, &one);
        texts[i] = take(&one);
        assert_int_equal(texts[i]->number, i + 1);
        assert_int_equal(page_cache_surplus(c), i < 4 ? 0 : 1);
    }
    page_text_release(texts[0]);
    assert_int_equal(page_cache_surplus(c), 2);
    page_text_release(texts[1]);
    assert_int_equal(page_cache_surplus(c), 0);
    for (int i = 2; i < N; i++)
        page_text_release(texts[i]);
    stop(c, &n);
}

static void without_memory_and_at_the_end_there_is_no_text(void **state)
{
    struct gated_node n;
    struct page_cache *c = started(&n);
    struct one first, second;

    (void)state;
    uv_sem_post(&n.gate);
    ask(c, NOTHING, &first);
    assert_null(take(&first));
    assert_null(page_cache_find(c, NOTHING));
    uv_sem_post(&n.gate);
    page_cache_stop(c);
    ask(c, NUMBER, &second);
    assert_null(take(&second));
    page_cache_free(c);
    uv_sem_destroy(&n.entered);
    uv_sem_destroy(&n.gate);
    page_cache_stop(NULL);
    page_cache_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_who_ask_meanwhile_share_one_rendering),
        cmocka_unit_test(a_text_is_served_while_it_is_fresh_and_no_longer),
        cmocka_unit_test(texts_that_are_held_are_bounded),
        cmocka_unit_test(without_memory_and_at_the_end_there_is_no_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
