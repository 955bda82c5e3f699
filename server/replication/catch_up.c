#include "server/replication/catch_up.h"

#include <stdbool.h>

#define MS_PER_S 1000u
#define PATIENCE (CATCH_UP_PATIENCE_MS / CATCH_UP_WINDOW_MS) /* windows */
#define BURST_PER_S 50u /* so many turns a second: what pushes may bring at once */
#define NEAR_PER_WINDOW \
    8u /* a standby that needs an eighth of a window for what is left has as good as all */

void catch_up_begin(struct catch_up *c, uint64_t appended, uint64_t received, uint64_t now_ms)
{
    *c = (struct catch_up){ .since_ms = now_ms, .appended = appended, .received = received };
}

static uint64_t greatest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Of what pushes brought and the standby took in a window: will it have the rest soon? */
static bool is_in_time(uint64_t pushed, uint64_t taken, uint64_t left)
{
    return taken > pushed && left / (taken - pushed) < CATCH_UP_MS / CATCH_UP_WINDOW_MS;
}

static void slow_down(struct catch_up *c, uint64_t pushed, uint64_t taken, uint64_t ms)
{
    const uint64_t taken_per_s = taken * MS_PER_S / ms;

    if (!c->records_per_s) {
        c->least_per_s = greatest(pushed * MS_PER_S / ms / CATCH_UP_SLOWEST, 1);
        c->records_per_s = taken_per_s * 3 / 4;
    } else {
        c->records_per_s = greatest(c->records_per_s * 7 / 8, taken_per_s / 2);
    }
    c->records_per_s = greatest(c->records_per_s, c->least_per_s);
}

static void end_window(struct catch_up *c, uint64_t appended, uint64_t received, uint64_t ms)
{
    const uint64_t pushed = appended - c->appended, taken = received - c->received;
    const uint64_t left = appended - received;
    const bool is_done = left * NEAR_PER_WINDOW <= taken || !left;
    const bool is_idle = !is_done && !taken;

    c->n_done = is_done ? c->n_done + 1 : 0;
    c->n_idle = is_idle ? c->n_idle + 1 : 0;
    if (c->n_done >= 2 * PATIENCE || c->n_idle >= PATIENCE) {
        c->records_per_s = 0; /* it is not its speed that keeps it out of sync */
        c->n_late = 0;
    } else if (!is_done && !is_idle) {
        c->n_late = is_in_time(pushed, taken, left) ? 0 : c->n_late + 1;
        if (c->n_late >= PATIENCE) {
            slow_down(c, pushed, taken, ms);
            c->n_late = 0;
        }
    }
}

void catch_up_note(struct catch_up *c, uint64_t appended, uint64_t received, uint64_t now_ms)
{
    const uint64_t ms = now_ms - c->since_ms;

    if (ms < CATCH_UP_WINDOW_MS)
        return;
    end_window(c, appended, received, ms);
    c->since_ms = c->from_ms = now_ms;
    c->appended = c->from = appended;
    c->received = received;
}

uint64_t catch_up_wait_ms(const struct catch_up *c, uint64_t appended, uint64_t now_ms)
{
    uint64_t allowed;

    if (!c->records_per_s)
        return 0;
    allowed = c->from + c->records_per_s / BURST_PER_S +
              c->records_per_s * (now_ms - c->from_ms) / MS_PER_S;
    return appended <= allowed ? 0 : (appended - allowed) * MS_PER_S / c->records_per_s + 1;
}
