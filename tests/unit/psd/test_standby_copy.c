/* A primary's files for a standby that copies: how long one that has stopped in the middle is waited for. */
#include <fcntl.h>

#include "common/clock.h"
#include "common/memory.h"
#include "proto/message_replication.h"
#include "server/standby_copy.h"
#include "serving.h"

#define FILE_BYTES 10u

struct copying {
    struct fixture f;
    struct peer p;
    struct standby_copy *copy;
    struct connection *connection;
};

static int on_request(void *owner, struct request *r)
{
    enter_main();
    return standby_copy_request(((struct copying *)owner)->copy, r);
}

static void on_closed(void *owner, struct connection *c, int why)
{
    (void)why;
    enter_main();
    standby_copy_drop(((struct copying *)owner)->copy, c);
}

static const struct connection_events copying_events = { .on_request = on_request,
                                                         .on_closed = on_closed };

static bool serves_clients(void *owner)
{
    return !owner;
}

/* Two files of FILE_BYTES. */
static void begin(struct copying *c)
{
    struct standby_files files = { .items = memory_alloc(2 * sizeof *files.items), .n = 2 };

    set_up(&c->f);
    c->p = client(&c->f, "standby");
    c->connection = c->f.connections.first;
    c->f.connections.config.events = &copying_events;
    c->f.connections.config.owner = c;
    for (uint32_t i = 0; i < 2; i++) {
        char path[] = "/tmp/test_standby_copy.XXXXXX";

        files.items[i].fd = mkstemp(path);
        assert_true(files.items[i].fd >= 0);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(write(files.items[i].fd, "0123456789", FILE_BYTES), FILE_BYTES);
        files.items[i].n_bytes = FILE_BYTES;
        snprintf(files.items[i].name, sizeof files.items[i].name, "file%u", i);
    }
    enter_main();
    c->copy = standby_copy_new(&(struct standby_copy_config){
        .loop = &c->f.loop, .files = &file_os, .serves_clients = serves_clients, .owner = c });
    standby_copy_begin(c->copy, c->connection, &files);
    assert_ptr_equal(standby_copy_of(c->copy), c->connection);
}

static void end(struct copying *c)
{
    peer_close(&c->p);
    enter_main();
    standby_copy_close(c->copy);
    tear_down(&c->f);
    standby_copy_free(c->copy);
}

static void ask(struct copying *c, const char *name, uint32_t max_bytes)
{
    struct file_request m = { .max_bytes = max_bytes };
    struct bytes frame = { 0 };

    snprintf(m.name, sizeof m.name, "%s", name);
    assert_int_equal(message_write_file(&frame, 7, &m), 0);
    peer_send(&c->p, &frame);
    assert_true(peer_receive(&c->p));
    assert_int_equal(c->p.header.type, FRAME_FILE_REPLY);
}

static void tick(struct copying *c, uint64_t in_ms)
{
    enter_main();
    standby_copy_tick(c->copy, clock_mono_ms() + in_ms);
}

static void a_standby_that_stops_in_the_middle_of_a_file_is_given_up(void **state)
{
    static const struct {
        const char *name; /* "": the list */
        uint32_t max_bytes;
    } lasts[] = {
        { NULL, 0 }, { "", 0 }, { "file0", FILE_BYTES }, { "file1", FILE_BYTES - 1 }
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(lasts); i++) {
        struct copying c;

        begin(&c);
        if (lasts[i].name)
            ask(&c, lasts[i].name, lasts[i].max_bytes);
        tick(&c, STANDBY_COPY_SILENCE_MS - 5000);
        assert_ptr_equal(standby_copy_of(c.copy), c.connection);
        tick(&c, STANDBY_COPY_SILENCE_MS);
        assert_null(standby_copy_of(c.copy));
        assert_false(peer_receive(&c.p)); /* it hears of it */
        end(&c);
    }
}

static void a_standby_that_has_all_files_is_waited_for(void **state)
{
    struct copying c;

    (void)state;
    begin(&c);
    ask(&c, "file0", FILE_BYTES);
    ask(&c, "file1", FILE_BYTES);
    tick(&c, 100 * STANDBY_COPY_SILENCE_MS);
    assert_ptr_equal(standby_copy_of(c.copy), c.connection);
    end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_standby_that_stops_in_the_middle_of_a_file_is_given_up),
        cmocka_unit_test(a_standby_that_has_all_files_is_waited_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
