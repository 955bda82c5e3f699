#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/mailbox.h"
#include "common/memory.h"

#define N_POSTERS 4
#define N_MAILS 5000

/* A loop's thread with a box, and what it has received. */
struct office {
    uv_loop_t loop;
    struct mailbox box;
    uv_timer_t deadline;
    uint32_t n_received, n_wanted;
    uint32_t next[N_POSTERS]; /* the number expected from each poster */
    uint32_t n_batches;
    bool is_at_work;
};

struct letter {
    struct mail mail;
    struct office *office;
    uint32_t poster, number;
};

static void on_letter(struct mail *mail, void *owner)
{
    struct letter *letter = CONTAINER_OF(mail, struct letter, mail);
    struct office *office = owner;

    assert(letter->office == office);
    assert(letter->number == office->next[letter->poster]);
    office->next[letter->poster]++;
    office->n_received++;
    free(letter);
    if (office->n_received == office->n_wanted)
        uv_stop(&office->loop);
}

static struct mail *letter_new(struct office *office, uint32_t poster, uint32_t number)
{
    struct letter *letter = memory_alloc(sizeof *letter);

    letter->mail.run = on_letter;
    letter->office = office;
    letter->poster = poster;
    letter->number = number;
    return &letter->mail;
}

static void open_office(struct office *office, uint32_t n_wanted)
{
    memset(office, 0, sizeof *office);
    office->n_wanted = n_wanted;
    assert_int_equal(uv_loop_init(&office->loop), 0);
    assert_int_equal(mailbox_init(&office->box, &office->loop, office), 0);
}

static void close_office(struct office *office)
{
    mailbox_close(&office->box);
    uv_run(&office->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&office->loop), 0);
    mailbox_deinit(&office->box);
}

/* The box keeps no loop alive: something else must while mail is awaited. */
static void on_never(uv_timer_t *timer)
{
    (void)timer;
    abort();
}

static void start_deadline(struct office *office)
{
    assert_int_equal(uv_timer_init(&office->loop, &office->deadline), 0);
    assert_int_equal(uv_timer_start(&office->deadline, on_never, 60000, 0), 0);
}

static void run_until_all_came(struct office *office)
{
    start_deadline(office);
    uv_run(&office->loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&office->deadline, NULL);
    uv_run(&office->loop, UV_RUN_NOWAIT);
}

struct poster {
    pthread_t thread;
    struct office *office;
    uint32_t number, n_refused;
};

static void *post_all(void *arg)
{
    struct poster *p = arg;
    struct mail *mail;
    uint32_t i;

    for (i = 0; i < N_MAILS; i++) {
        mail = letter_new(p->office, p->number, i);
        if (mailbox_post(&p->office->box, mail) < 0) {
            free(CONTAINER_OF(mail, struct letter, mail));
            p->n_refused++;
        }
    }
    return NULL;
}

static void start_posters(struct poster *posters, struct office *office)
{
    uint32_t i;

    for (i = 0; i < N_POSTERS; i++) {
        posters[i] = (struct poster){ .office = office, .number = i };
        assert_int_equal(pthread_create(&posters[i].thread, NULL, post_all, &posters[i]), 0);
    }
}

static uint32_t join_posters(struct poster *posters)
{
    uint32_t i, n_refused = 0;

    for (i = 0; i < N_POSTERS; i++) {
        assert_int_equal(pthread_join(posters[i].thread, NULL), 0);
        n_refused += posters[i].n_refused;
    }
    return n_refused;
}

static void mail_of_many_threads_arrives_in_each_ones_order(void **state)
{
    struct poster posters[N_POSTERS];
    struct office office;

    (void)state;
    open_office(&office, N_POSTERS * N_MAILS);
    start_posters(posters, &office);
    run_until_all_came(&office);
    assert_int_equal(join_posters(posters), 0);
    assert_int_equal(office.n_received, N_POSTERS * N_MAILS);
    close_office(&office);
}

static void a_box_closed_under_its_posters_runs_or_refuses_every_mail(void **state)
{
    struct poster posters[N_POSTERS];
    struct office office;
    uint32_t n_refused;

    (void)state;
    open_office(&office, 1000);
    start_posters(posters, &office);
    run_until_all_came(&office); /* some are still posting */
    mailbox_close(&office.box);
    n_refused = join_posters(posters);
    assert_int_equal(office.n_received + n_refused, N_POSTERS * N_MAILS);
    close_office(&office);
}

static void closing_runs_what_was_posted_and_takes_no_more(void **state)
{
    struct office office;
    struct mail *late;

    (void)state;
    open_office(&office, 100);
    assert_int_equal(mailbox_post(&office.box, letter_new(&office, 0, 0)), 0);
    assert_int_equal(mailbox_post(&office.box, letter_new(&office, 0, 1)), 0);
    mailbox_close(&office.box);
    assert_int_equal(office.n_received, 2);
    late = letter_new(&office, 0, 2);
    assert_int_equal(mailbox_post(&office.box, late), -EPIPE);
    free(CONTAINER_OF(late, struct letter, mail));
    mailbox_close(&office.box);
    close_office(&office);
}

/* Mail that is only added waits until somebody runs the box, or wakes the loop. */
static void added_mail_wakes_nobody(void **state)
{
    struct office office;
    struct mail *late;

    (void)state;
    open_office(&office, 3);
    uv_run(&office.loop, UV_RUN_NOWAIT);
    assert_false(mailbox_has_mail(&office.box));
    assert_int_equal(mailbox_add(&office.box, letter_new(&office, 0, 0)), 0);
    assert_int_equal(mailbox_add(&office.box, letter_new(&office, 0, 1)), 0);
    start_deadline(&office);
    uv_run(&office.loop, UV_RUN_NOWAIT);
    assert_true(mailbox_has_mail(&office.box));
    assert_int_equal(office.n_received, 0);
    mailbox_run(&office.box);
    assert_int_equal(office.n_received, 2);
    assert_false(mailbox_has_mail(&office.box));
    assert_int_equal(mailbox_add(&office.box, letter_new(&office, 0, 2)), 0);
    mailbox_wake(&office.box);
    uv_run(&office.loop, UV_RUN_DEFAULT); /* until the third one stops it */
    assert_int_equal(office.n_received, 3);
    uv_close((uv_handle_t *)&office.deadline, NULL);
    mailbox_close(&office.box);
    late = letter_new(&office, 0, 3);
    assert_int_equal(mailbox_add(&office.box, late), -EPIPE);
    free(CONTAINER_OF(late, struct letter, mail));
    mailbox_wake(&office.box); /* nothing happens */
    close_office(&office);
}

static void on_begin(void *owner)
{
    struct office *office = owner;

    assert_false(office->is_at_work);
    office->is_at_work = true;
    office->n_batches++;
}

static void on_end(void *owner)
{
    struct office *office = owner;

    assert_true(office->is_at_work);
    office->is_at_work = false;
}

static void mails_that_wait_are_run_between_begin_and_end(void **state)
{
    struct office office;

    (void)state;
    open_office(&office, 3);
    mailbox_set_batch(&office.box, on_begin, on_end);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(mailbox_post(&office.box, letter_new(&office, 0, i)), 0);
    run_until_all_came(&office);
    assert_int_equal(office.n_batches, 1);
    assert_false(office.is_at_work);
    close_office(&office);
}

static void a_box_keeps_no_loop_alive(void **state)
{
    struct office office;

    (void)state;
    open_office(&office, 100);
    assert_int_equal(uv_run(&office.loop, UV_RUN_DEFAULT), 0);
    close_office(&office);
}

static void on_stop_letter(struct mail *mail, void *owner)
{
    struct office *office = owner;

    mailbox_close(&office->box);
    on_letter(mail, owner);
}

static void mail_that_closes_its_box_lets_the_later_mail_run_once(void **state)
{
    struct office office;
    struct mail *stop;

    (void)state;
    open_office(&office, 3);
    stop = letter_new(&office, 1, 0);
    stop->run = on_stop_letter;
    assert_int_equal(mailbox_post(&office.box, letter_new(&office, 0, 0)), 0);
    assert_int_equal(mailbox_post(&office.box, stop), 0);
    assert_int_equal(mailbox_post(&office.box, letter_new(&office, 0, 1)), 0);
    run_until_all_came(&office);
    assert_int_equal(office.n_received, 3);
    close_office(&office);
}

static void on_echo(struct mail *mail, void *owner)
{
    struct office *office = owner;

    if (++office->n_received < office->n_wanted)
        assert(mailbox_post(&office->box, mail) == 0);
    else
        free(CONTAINER_OF(mail, struct letter, mail));
}

static void mail_that_posts_itself_leaves_the_loop_its_turns(void **state)
{
    struct office office;
    struct mail *echo;
    uint32_t before;

    (void)state;
    open_office(&office, 50);
    echo = letter_new(&office, 0, 0);
    echo->run = on_echo;
    assert_int_equal(mailbox_post(&office.box, echo), 0);
    start_deadline(&office);
    while (office.n_received < 50) {
        before = office.n_received;
        uv_run(&office.loop, UV_RUN_NOWAIT);
        assert_in_range(office.n_received - before, 0, 1);
    }
    uv_close((uv_handle_t *)&office.deadline, NULL);
    close_office(&office);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mail_of_many_threads_arrives_in_each_ones_order),
        cmocka_unit_test(a_box_closed_under_its_posters_runs_or_refuses_every_mail),
        cmocka_unit_test(closing_runs_what_was_posted_and_takes_no_more),
        cmocka_unit_test(added_mail_wakes_nobody),
        cmocka_unit_test(mails_that_wait_are_run_between_begin_and_end),
        cmocka_unit_test(a_box_keeps_no_loop_alive),
        cmocka_unit_test(mail_that_closes_its_box_lets_the_later_mail_run_once),
        cmocka_unit_test(mail_that_posts_itself_leaves_the_loop_its_turns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
